"""Convolutions with few results are summed in parts, one for each core, with equal results."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lowering import baselines, check_everything, check_schedules, drawn
from onnx import helper
from small_models import loaded, proto_of, weight

from iosched.models.model import Model
from iosched.runtime.cpu.backend import CpuBackend
from iosched.runtime.cpu.optimized import _channel_block
from iosched.runtime.cpu.split import split, split_sum

pytest.importorskip("onnxruntime", reason="needs pip install '.[cpu]'")

node = helper.make_node
BLOCK = _channel_block()  # 16 with AVX-512, 8 with AVX2
WIDER = 16 // BLOCK


def model_of(
    channels: int,
    results: int,
    kernel: int = 3,
    *,
    batch: int = 1,
    size: int = 24,
    bias: bool = True,
    after: str = "",
    summed: bool = False,
) -> Model:
    """A convolution of a computed image, an activation after it, and perhaps a sum that onnxruntime fuses into it."""
    weights = {"f": weight(channels, 3, 1, 1), "w": weight(results, channels, kernel, kernel), "b": weight(results)}
    nodes = [
        node("Conv", ["x", "f"], ["i"]),
        node("Conv", ["i", "w", *(["b"] if bias else [])], ["c"], pads=[kernel // 2] * 4),
    ]
    if summed:
        weights["v"] = weight(results, channels, 1, 1, seed=1)
        nodes += [node("Conv", ["i", "v"], ["d"]), node("Add", ["c", "d"], ["s"])]
    if after:
        nodes.append(node(after, [nodes[-1].output[0]], ["a"]))
    weights["l"] = weight(24, results, 1, 1)
    nodes.append(node("Conv", [nodes[-1].output[0], "l"], ["y"]))
    used = {name for made in nodes for name in made.input}
    named = {name: value for name, value in weights.items() if name in used}
    return loaded(proto_of(nodes, {"x": (batch, 3, size, size)}, ["y"], named))


def steps_of(model: Model, lanes: int) -> int:
    """The largest number of steps of a node."""
    with CpuBackend(model, lanes=lanes) as backend:
        check_schedules(model, backend, iter([*baselines(backend.graph), *drawn(backend.graph, [0])]))
        return max(len(split_sum(backend.kernels, index, lanes)) for index in range(len(backend.kernels.nodes)))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("after", "steps"), [("", 2), ("Relu", 3), ("Sigmoid", 0)])
def test_each_core_sums_over_some_of_the_channels(after: str, steps: int, bias: bool) -> None:
    assert steps_of(model_of(128 * WIDER, 2 * BLOCK, bias=bias, after=after), lanes=2) == steps


def test_a_single_block_of_results_is_summed_in_parts() -> None:
    model = model_of(64 * WIDER, BLOCK)
    assert steps_of(model, lanes=2) == 2
    with CpuBackend(model, lanes=2) as backend:
        parts = [index for index in range(len(backend.kernels.nodes)) if split_sum(backend.kernels, index, 2)]
        assert [split(backend.kernels, index, 2) for index in parts] == [()]


@pytest.mark.parametrize("after", ["", "Relu"])
def test_a_convolution_with_a_fused_sum_is_summed_in_parts(after: str) -> None:
    assert steps_of(model_of(128 * WIDER, 2 * BLOCK, after=after, summed=True), lanes=2) > 1


@pytest.mark.parametrize(
    "model",
    [
        model_of(128, 256),
        model_of(128, 32, size=8),
        model_of(128, 32, kernel=1),
        model_of(16, 32, kernel=7),
        model_of(128, 32, batch=2),
    ],
    ids=["results enough for all cores", "little work", "short sums", "one block read", "batches"],
)
def test_other_convolutions_are_not_summed_in_parts(model: Model) -> None:
    assert steps_of(model, lanes=2) == 0


def test_a_group_with_fewer_cores_than_lanes_does_not_sum_in_parts() -> None:
    with CpuBackend(model_of(128, 32), lanes=3) as backend:
        parts = [index for index in range(len(backend.kernels.nodes)) if split_sum(backend.kernels, index, 3)]
        assert [len(split_sum(backend.kernels, index, 2)) for index in parts] == [0]


def test_every_schedule() -> None:
    check_everything(model_of(128, 32, after="Relu", summed=True), lanes=(1, 2, 3))


@pytest.mark.slow
@settings(max_examples=15)
@given(
    blocks=st.integers(2, 9), results=st.integers(1, 40), lanes=st.integers(2, 4), kernel=st.sampled_from([3, 5]),
    bias=st.booleans(), relu=st.booleans(), summed=st.booleans(),
)  # fmt: skip
def test_any_convolution(
    blocks: int, results: int, lanes: int, kernel: int, bias: bool, relu: bool, summed: bool
) -> None:
    after = "Relu" if relu else ""
    steps_of(model_of(16 * blocks, results, kernel, size=40, bias=bias, after=after, summed=summed), lanes)
