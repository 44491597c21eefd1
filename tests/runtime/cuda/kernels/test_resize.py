"""Resizing: onnxruntime's numbers in every mode, and the source that a GPU runs."""

from __future__ import annotations

import numpy as np
import pytest
from host_cuda import needs_compiler
from node_kernels import FP16, lowered, normal
from onnx import helper

from iosched.runtime.cuda.layout import Layout

COORDINATES = ["half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners"]
ROUNDINGS = ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]
SCALES = [(2.0, 2.0), (1.5, 0.6), (0.5, 3.0)]


@pytest.mark.parametrize("coordinates", COORDINATES)
@pytest.mark.parametrize("mode", [*ROUNDINGS, "linear", "cubic"])
@pytest.mark.parametrize("scales", SCALES)
def test_results_equal_onnxruntimes(coordinates: str, mode: str, scales: tuple[float, float]) -> None:
    modes = {"mode": "nearest", "nearest_mode": mode} if mode in ROUNDINGS else {"mode": mode}
    node = helper.make_node("Resize", ["x", "", "s"], ["y"], coordinate_transformation_mode=coordinates, **modes)
    given = {"s": np.array([1, 1, *scales], np.float32)}
    lowered(node, {"x": normal(2, 3, 6, 5)}, given, opset=13).compare(tolerance=1e-4)


def test_sizes() -> None:
    node = helper.make_node("Resize", ["x", "", "", "s"], ["y"], mode="linear")
    lowered(node, {"x": normal(2, 3, 6, 5)}, {"s": np.array([2, 3, 9, 4])}, opset=13).compare(tolerance=1e-4)


def test_old_models() -> None:
    upsample = helper.make_node("Upsample", ["x", "s"], ["y"])
    lowered(upsample, {"x": normal(2, 3, 4, 5)}, {"s": np.array([1, 1, 2, 3], np.float32)}, opset=9).compare()
    resize = helper.make_node("Resize", ["x", "s"], ["y"], mode="nearest")
    lowered(resize, {"x": normal(2, 3, 4, 5)}, {"s": np.array([1, 1, 2, 2], np.float32)}, opset=10).compare()


@needs_compiler
@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_source(mode: str, layout: Layout) -> None:
    node = helper.make_node("Resize", ["x", "", "s"], ["y"], mode=mode)
    given = {"s": np.array([1, 1, 2, 1.5], np.float32)}
    lowered(node, {"x": normal(2, 16, 4, 6)}, given).compare(on_host=True, before=4, layout=layout, tolerance=1e-4)
    lowered(node, {"x": normal(1, 16, 4, 6)}, given, precision=FP16).compare(on_host=True, before=1, layout=layout)


def test_other_axes_are_left_to_onnxruntime() -> None:
    node = helper.make_node("Resize", ["x", "", "s"], ["y"], mode="nearest")
    assert not lowered(node, {"x": normal(1, 2, 4, 4)}, {"s": np.array([1, 2, 2, 2], np.float32)}).calls
    assert not lowered(node, {"x": normal(1, 2, 4)}, {"s": np.array([1, 1, 2], np.float32)}).calls
