"""Quantized networks compute bit by bit the same as plain onnxruntime, under any schedule."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest
from lowering import baselines, check_schedules, drawn
from onnx import helper
from quantized import quantized, quantized_in_the_run
from small_models import loaded, proto_of

from iosched.models.model import Model
from iosched.models.zoo.light import light_model
from iosched.runtime.cpu.backend import CpuBackend
from iosched.runtime.cpu.split import split
from iosched.runtime.inputs import random_inputs
from iosched.runtime.reference import Reference
from iosched.scheduler.baselines import sequential

pytest.importorskip("onnxruntime", reason="needs pip install '.[cpu]'")


@cache
def network(name: str, activations: str = "uint8", weights: str = "int8", with_pairs: bool = True) -> Model:
    made = quantized(light_model(name), activations=activations, weights=weights, with_pairs=with_pairs)
    return loaded(made, batch_size=1)


def check_bits(model: Model, backend: CpuBackend, seeds: Sequence[int] = (0, 1)) -> None:
    """Every output of every schedule has the bits of onnxruntime's."""
    given = random_inputs(model.graph.inputs, 0)
    with Reference(model) as reference:
        wanted = reference.run(given)
    for name, schedule in (*baselines(backend.graph), *drawn(backend.graph, seeds)):
        compiled = backend.compile(schedule)
        try:
            found = compiled.run(given)
            assert all(np.array_equal(found[output], wanted[output]) for output in wanted), (name, backend.lanes)
        finally:
            compiled.close()


@pytest.mark.slow
@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("with_pairs", [True, False])
def test_squeezenet(with_pairs: bool, native: bool) -> None:
    """Its 26 convolutions are packed by onnxruntime in a way that sessions cannot share."""
    model = network("squeezenet", with_pairs=with_pairs)
    with CpuBackend(model, lanes=2, native=native) as backend:
        check_bits(model, backend)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "batch", "lanes"), [("squeezenet", 1, 4), ("shufflenet", 1, 3), ("squeezenet", 2, 3)])
def test_networks_on_several_lanes(name: str, batch: int, lanes: int) -> None:
    model = network(name) if batch == 1 else loaded(quantized(light_model(name)), batch_size=batch)
    with CpuBackend(model, lanes=lanes) as backend:
        check_bits(model, backend, seeds=(lanes,))


@pytest.mark.slow
def test_both_cores_have_work_under_the_sequential_schedule() -> None:
    """Each of the 26 convolutions and 8 Concats is cut between rows."""
    with CpuBackend(network("squeezenet"), lanes=2) as backend:
        lanes = [len(lane) for lane in backend.lower(sequential(backend.graph)).plan.lanes]
    assert min(lanes) >= 26 + 8


@pytest.mark.parametrize("lanes", [1, 3])
def test_convolutions_that_onnxruntime_runs_in_float_are_split(lanes: int) -> None:
    """int8 by int8 on x86: their weights are dequantized once, so that they can be split."""
    model = network("squeezenet", activations="int8")
    with CpuBackend(model, lanes=lanes) as backend:
        kernels = backend.kernels
        assert all(any(name in kernels.tensors for name in each.input) for each in kernels.nodes)
        cut = [split(kernels, index, 2) for index, each in enumerate(kernels.nodes) if each.op_type.endswith("Conv")]
        assert len(cut) == 26
        assert all(cut)
        check_bits(model, backend, seeds=(0,))


def test_dequantized_weights_may_be_outputs() -> None:
    nodes = [helper.make_node("DequantizeLinear", ["w", "s"], ["y"]), helper.make_node("Mul", ["x", "y"], ["z"])]
    weights = {"w": np.arange(6, dtype=np.int8), "s": np.float32(0.5)}
    model = loaded(proto_of(nodes, {"x": (6,)}, ["y", "z"], weights))
    with CpuBackend(model, lanes=2) as backend:
        check_bits(model, backend, seeds=())


@pytest.mark.slow
def test_dynamically_quantized_networks() -> None:
    """Convolutions are split; the search for the range of a tensor is not."""
    model = loaded(quantized_in_the_run(light_model("squeezenet")), batch_size=1)
    with CpuBackend(model, lanes=2) as backend:
        check_schedules(model, backend, iter([*baselines(backend.graph), *drawn(backend.graph, (0,))]))
