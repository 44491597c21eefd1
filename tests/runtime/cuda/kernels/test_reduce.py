"""Reductions and softmax: onnxruntime's numbers over any axes, and the source that a GPU runs."""

from __future__ import annotations

import numpy as np
import pytest
from host_cuda import blank, check, needs_compiler, put
from node_kernels import FP16, lowered, normal
from onnx import helper

from iosched.runtime.cuda.kernels.reduce import Reduce
from iosched.runtime.cuda.kernels.softmax import Softmax

KINDS = ["Mean", "Sum", "Max", "Min", "Prod", "SumSquare", "L1", "L2"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("axes", [[1], [2, 3], [-1], [0, 2], [0, 1, 2, 3], []])
def test_results_equal_onnxruntimes(kind: str, axes: list[int]) -> None:
    given = {"axes": np.array(axes, np.int64)}
    for keeps in (0, 1):
        node = helper.make_node(f"Reduce{kind}", ["x", "axes"], ["y"], keepdims=keeps)
        lowered(node, {"x": normal(2, 3, 4, 5)}, given, opset=18).compare(tolerance=1e-4)


def test_axes_of_old_models_are_an_attribute() -> None:
    node = helper.make_node("ReduceMean", ["x"], ["y"], axes=[-1, 1])
    lowered(node, {"x": normal(3, 2, 4)}, opset=13).compare()
    lowered(helper.make_node("ReduceMax", ["x"], ["y"]), {"x": normal(3, 2, 4)}, opset=13).compare()


def test_no_axes_may_mean_no_reduction() -> None:
    node = helper.make_node("ReduceSum", ["x"], ["y"], noop_with_empty_axes=1)
    assert not lowered(node, {"x": normal(3, 2)}, opset=18).calls


@needs_compiler
@pytest.mark.parametrize("kind", ["GlobalAveragePool", "GlobalMaxPool"])
def test_global_pooling(kind: str) -> None:
    node = helper.make_node(kind, ["x"], ["y"])
    lowered(node, {"x": normal(3, 40, 7, 9)}).compare(on_host=True, before=3)
    lowered(node, {"x": normal(2, 5, 6)}).compare()
    lowered(node, {"x": normal(2, 40, 4, 4)}, precision=FP16).compare(on_host=True)


@needs_compiler
@pytest.mark.parametrize(
    ("shape", "axes"),
    [((2, 3, 5, 7), (1,)), ((2, 40, 5, 7), (2, 3)), ((3, 500), (1,)), ((500, 3), (0,)), ((4, 5, 6), (0, 2)),
     ((7,), (0,)), ((2, 1, 3, 1), (1,))],
)  # fmt: skip
def test_source_for_any_axes(shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    kept = tuple(1 if axis in axes else extent for axis, extent in enumerate(shape))
    left = tuple(extent for axis, extent in enumerate(shape) if axis not in axes)
    x = put(normal(*shape), before=2, after=1)
    check(Reduce("Mean", axes), [x], [blank(kept)])
    check(Reduce("Mean", axes), [x], [blank(left, before=len(left))])
    check(Softmax(axes), [x], [blank(shape, before=1)])


@needs_compiler
@pytest.mark.parametrize("kind", KINDS)
def test_source_of_every_kind(kind: str) -> None:
    check(Reduce(kind, (1,)), [put(normal(3, 70) * 0.5 + 1)], [blank((3,))], 1e-4)


@needs_compiler
@pytest.mark.parametrize("kind", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize("axis", [1, -1, None])
def test_softmax_over_one_axis(kind: str, axis: int | None) -> None:
    node = helper.make_node(kind, ["x"], ["y"], **({} if axis is None else {"axis": axis}))
    lowered(node, {"x": normal(2, 6, 4, 5) * 30}, opset=13).compare(on_host=axis == 1)


@pytest.mark.parametrize("kind", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize("axis", [0, 2, None])
def test_softmax_of_old_models_takes_all_axes_from_one_on(kind: str, axis: int | None) -> None:
    node = helper.make_node(kind, ["x"], ["y"], **({} if axis is None else {"axis": axis}))
    lowered(node, {"x": normal(2, 6, 4, 5)}, opset=11).compare()


@needs_compiler
def test_softmax_in_half_precision() -> None:
    node = helper.make_node("Softmax", ["x"], ["y"])
    lowered(node, {"x": normal(3, 1000) * 10}, opset=13, precision=FP16).compare(on_host=True)
