"""Parts of tensors, single indices, and padding: onnxruntime's numbers, and the source that a GPU runs."""

from __future__ import annotations

import numpy as np
import pytest
from host_cuda import blank, check, needs_compiler, put
from node_kernels import FP16, lowered, normal
from onnx import helper

from iosched.runtime.cuda.kernels.slicing import Pad, Slice


def integers(**values: list[int]) -> dict[str, np.ndarray]:
    return {name: np.array(value, np.int64) for name, value in values.items()}


@needs_compiler
@pytest.mark.parametrize(
    ("starts", "ends", "axes", "steps"),
    [([1], [3], [1], [1]), ([-2, 0], [100, -1], [2, 3], [1, 2]), ([-1], [-100], [1], [-1]),
     ([4, 1], [0, 3], [3, 0], [-2, 1])],
)  # fmt: skip
def test_slices(starts: list[int], ends: list[int], axes: list[int], steps: list[int]) -> None:
    node = helper.make_node("Slice", ["x", "s", "e", "a", "t"], ["y"])
    given = integers(s=starts, e=ends, a=axes, t=steps)
    lowered(node, {"x": normal(3, 6, 4, 5)}, given).compare(on_host=True, before=2)


def test_slices_of_old_models_and_of_leading_axes() -> None:
    old = helper.make_node("Slice", ["x"], ["y"], starts=[1, -2], ends=[5, 9], axes=[1, 2])
    lowered(old, {"x": normal(2, 6, 4)}, opset=9).compare()
    leading = helper.make_node("Slice", ["x", "s", "e"], ["y"])
    lowered(leading, {"x": normal(3, 6, 4)}, integers(s=[1, 2], e=[3, 4])).compare()


def test_computed_bounds_are_left_to_onnxruntime() -> None:
    node = helper.make_node("Gather", ["x", "i"], ["y"])
    assert not lowered(node, {"x": normal(3, 4), "i": np.asarray(1)}).calls


@needs_compiler
@pytest.mark.parametrize("index", [2, -1, [1]])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_one_index_of_an_axis(index: int | list[int], axis: int) -> None:
    node = helper.make_node("Gather", ["x", "i"], ["y"], axis=axis)
    lowered(node, {"x": normal(3, 6, 4, 5)}, {"i": np.array(index, np.int64)}).compare(on_host=axis == 1)


def test_several_indices_are_left_to_onnxruntime() -> None:
    node = helper.make_node("Gather", ["x", "i"], ["y"])
    assert not lowered(node, {"x": normal(3, 6)}, integers(i=[0, 2])).calls


@needs_compiler
def test_source_of_slices_of_other_types() -> None:
    x = put(np.arange(60).reshape(3, 20))
    check(Slice((0, 4), (1, 4)), [x], [blank((3, 4), "int64", before=1)])
    check(Slice((1, 4), (1, 1), dropped=(0,)), [x], [blank((16,), "int64")])


@needs_compiler
@pytest.mark.parametrize("mode", ["constant", "edge", "reflect"])
@pytest.mark.parametrize("pads", [[0, 0, 1, 2, 0, 0, 2, 1], [1, 2, 0, 0, 0, 1, 3, 0], [0, 0, -1, 1, 0, 0, 1, -2]])
def test_padding(mode: str, pads: list[int]) -> None:
    node = helper.make_node("Pad", ["x", "p", *(["v"] if mode == "constant" else [])], ["y"], mode=mode)
    if mode != "constant" and min(pads) < 0:
        pytest.skip("onnxruntime has its own order of cutting and repeating")
    given = integers(p=pads) | ({"v": np.asarray(np.float32(-2.5))} if mode == "constant" else {})
    lowered(node, {"x": normal(2, 3, 5, 4)}, given).compare(on_host=True, before=1)
    lowered(node, {"x": normal(2, 3, 5, 4)}, given, precision=FP16).compare()


def test_padding_of_old_models_and_without_a_value() -> None:
    old = helper.make_node("Pad", ["x"], ["y"], pads=[1, 0, 0, 2], value=1.5)
    lowered(old, {"x": normal(3, 4)}, opset=9).compare()
    lowered(helper.make_node("Pad", ["x", "p"], ["y"]), {"x": normal(3, 4)}, integers(p=[1, 0, 0, 2])).compare()


@needs_compiler
def test_source_of_padding_in_one_dimension() -> None:
    check(Pad((3,), value=7.0), [put(normal(10))], [blank((15,))])
