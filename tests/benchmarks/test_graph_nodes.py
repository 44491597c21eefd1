"""`gpu_nodes.py` counts the nodes of plans once for each commit, with the plans of cuDNN that it is set to prefer."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from networks import zoo_model
from small_models import separables

from iosched.runtime.cuda.kernel import Precision
from iosched.runtime.cuda.lower.lowered_model import LoweredModel
from iosched.runtime.cuda.lower.lowering import lower
from iosched.scheduler.baselines import greedy, sequential


@pytest.fixture
def nodes(script: Callable[[str], ModuleType]) -> ModuleType:
    return script("gpu_nodes")


def test_edges_match_a_capture(nodes: ModuleType) -> None:
    """As counted on an H100: `benchmarks/results/gpu-h100.json`."""
    network = LoweredModel(zoo_model("inception_v3"), Precision("fp32"))
    graph = network.model.graph
    assert nodes.edges(lower(network, sequential(graph))) == 108
    assert nodes.edges(lower(network, greedy(graph))) == 208


def test_choices_are_made_by_the_number_of_kernels(nodes: ModuleType) -> None:
    model, device = separables(), nodes._device("h100")
    backends = {name: nodes._backend(model, device, "fp32", name) for name in ("fewest", "default", "most")}
    tasks = {name: len(each.lower(sequential(model.graph)).plan.tasks) for name, each in backends.items()}
    assert tasks["fewest"] < tasks["default"] < tasks["most"]


def test_rows_of_the_same_commit_and_cudnn_are_kept(
    nodes: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    counted: list[tuple[str, str]] = []

    def row(model: str, gpu: str, precision: str, choose: str) -> dict[str, Any]:
        counted.append((model, precision))
        hidden = {"tables": 2 * (precision == "fp32"), "slices": 0, "conversions": 1, "winograd": 0}
        return {"tasks": 5, **hidden, "greedy": {"waits": 4, "joins": 1, "edges": 8}}

    cudnn = SimpleNamespace(backend_version_string=lambda: "9.28.1", backend_version=lambda: 92801)
    monkeypatch.setattr(nodes, "load_cudnn", lambda: cudnn)
    monkeypatch.setattr(nodes, "network_of", lambda name: name)
    monkeypatch.setattr(nodes, "_row", row)
    file = tmp_path / "nodes.json"

    def run(commit: str, networks: Sequence[str], *, again: bool = False) -> list[tuple[str, str]]:
        counted.clear()
        monkeypatch.setattr(nodes, "iosched_commit", lambda: commit)
        about = {"state": "now", "choose": "default", "gpus": ["h100"], "command": []}
        nodes._count(Namespace(**about, networks=networks, precisions=["fp32", "fp16"], again=again, output=file))
        return counted.copy()

    first = [("vgg16", "fp32"), ("vgg16", "fp16")]
    assert run("a", ["vgg16"]) == first
    assert run("a", ["vgg16"]) == []
    assert run("a", ["vgg16"], again=True) == first
    assert run("b", ["vgg16", "squeezenet"]) == [*first, ("squeezenet", "fp32"), ("squeezenet", "fp16")]
    rows = json.loads(file.read_text())["rows"]
    assert {(each["commit"], each["cudnn"]) for each in rows} == {("b", "9.28.1")}
    headers, lines = nodes.table(rows)
    assert headers[3:] == ["h100 fp16", "h100 fp32"]
    assert lines == [[name, "now", "default", "5+1c", "5+2t+1c"] for name in ("squeezenet", "vgg16")]
    assert nodes.edge_table(rows)[1] == [[name, "now", "4", "1", "8"] for name in ("squeezenet", "vgg16")]
