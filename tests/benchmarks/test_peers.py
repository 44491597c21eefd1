"""The networks in other frameworks compute the same as onnxruntime, so that latencies are comparable."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from networks import zoo_model

from iosched.models.model import Model
from iosched.runtime.inputs import random_inputs
from iosched.runtime.reference import Reference
from iosched.scheduler.precision import PrecisionName

FOLDER = Path(__file__).parents[2] / "benchmarks"
NETWORKS = ("squeezenet", "inception_v3", "densenet121")  # together, every operator of the bundled networks


@pytest.fixture(autouse=True)
def _scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))


def case(network: str) -> tuple[Model, Mapping[str, np.ndarray], Mapping[str, np.ndarray]]:
    """The network, inputs, and onnxruntime's outputs."""
    model = zoo_model(network, 2)
    inputs = random_inputs(model.graph.inputs, seed=5)
    with Reference(model) as reference:
        return model, inputs, reference.run(inputs)


def same(found: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> bool:
    return all(np.abs(found[name] - array).max() < 1e-5 * np.abs(array).max() for name, array in expected.items())


@pytest.mark.parametrize("network", NETWORKS)
def test_pytorch_computes_the_same_as_onnxruntime(network: str) -> None:
    torch = pytest.importorskip("torch")
    from torch_peers import Network

    model, inputs, expected = case(network)
    opened = Network(model).eval()
    with torch.inference_mode():
        results = opened(*(torch.from_numpy(np.array(inputs[name])) for name in opened.inputs))
    assert same({name: array.numpy() for name, array in zip(opened.outputs, results, strict=True)}, expected)


class WallEvent:
    """Replaces the event of a GPU by the clock of the CPU."""

    def __init__(self, **_: object) -> None:
        self.at_s = 0.0

    def record(self) -> None:
        self.at_s = time.perf_counter()

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end: WallEvent) -> float:
        return (end.at_s - self.at_s) * 1e3


@pytest.mark.parametrize(("precision", "limit"), [("fp32", 1e-5), ("fp16", 2e-3)])
def test_pytorch_computes_the_same_in_either_layout_on_the_cpu(
    monkeypatch: pytest.MonkeyPatch, precision: PrecisionName, limit: float
) -> None:
    """Runs the code for GPUs, except captures and compilers."""
    torch = pytest.importorskip("torch")
    from torch_peers import opened

    from iosched.profiler.baselines import torch_runs as torch_ways

    monkeypatch.setattr(torch.cuda, "Event", WallEvent)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch_ways, "_DEVICE", "cpu")
    model, inputs, expected = case("squeezenet")
    for layout, memory_format in torch_ways.LAYOUTS.items():
        monkeypatch.setattr(torch_ways, "LAYOUTS", {layout: memory_format})
        found = opened("torch", model, inputs, precision)
        outputs = found.outputs()
        assert all(
            np.abs(outputs[name] - array).max() < limit * np.abs(array).max() for name, array in expected.items()
        )
        assert len(found.time(3)) == 3


def test_a_compiled_pytorch_network_is_one_graph_and_computes_the_same() -> None:
    torch = pytest.importorskip("torch")
    from torch_peers import Network

    model, inputs, expected = case("squeezenet")
    opened = Network(model).eval()
    compiled = torch.compile(opened, backend="aot_eager", fullgraph=True)
    with torch.inference_mode():
        results = compiled(*(torch.from_numpy(np.array(inputs[name])) for name in opened.inputs))
    assert same({name: array.numpy() for name, array in zip(opened.outputs, results, strict=True)}, expected)
