"""Normalizations by local statistics: onnxruntime's numbers, and the source that a GPU runs."""

from __future__ import annotations

import pytest
from host_cuda import needs_compiler
from node_kernels import FP16, lowered, normal
from onnx import helper

from iosched.runtime.cuda.layout import Layout


@needs_compiler
@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("shape", [(2, 6, 5, 4), (3, 40, 9), (1, 33, 6, 6)])
def test_instance_normalization(shape: tuple[int, ...], layout: Layout) -> None:
    node = helper.make_node("InstanceNormalization", ["x", "s", "b"], ["y"], epsilon=1e-3)
    constants = {"s": normal(shape[1]), "b": normal(shape[1], seed=1)}
    lowered(node, {"x": normal(*shape) + 3}, constants).compare(on_host=True, before=1, layout=layout)


@needs_compiler
@pytest.mark.parametrize("axis", [-1, 1])
def test_layer_normalization(axis: int) -> None:
    shape = (3, 7, 24)
    node = helper.make_node("LayerNormalization", ["x", "s", "b"], ["y"], axis=axis)
    constants = {"s": normal(*shape[axis:]), "b": normal(*shape[axis:], seed=1)}
    lowered(node, {"x": normal(*shape) - 2}, constants).compare(on_host=True)
    lowered(node, {"x": normal(*shape)}, constants, precision=FP16).compare(on_host=True)


def test_layer_normalization_without_a_shift() -> None:
    node = helper.make_node("LayerNormalization", ["x", "s"], ["y"])
    lowered(node, {"x": normal(4, 6)}, {"s": normal(6)}).compare()


def test_means_are_left_to_onnxruntime() -> None:
    node = helper.make_node("LayerNormalization", ["x", "s"], ["y", "m"])
    assert not lowered(node, {"x": normal(4, 6)}, {"s": normal(6)}, output_dtypes=("float32", "float32")).calls


@needs_compiler
@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("size", [1, 3, 5])
def test_local_response_normalization(size: int, layout: Layout) -> None:
    node = helper.make_node("LRN", ["x"], ["y"], size=size, alpha=0.5, beta=0.6, bias=1.5)
    lowered(node, {"x": normal(2, 9, 3, 4)}).compare(on_host=size == 5, before=3, layout=layout)
    lowered(node, {"x": normal(2, 9, 3, 4)}, precision=FP16).compare()
