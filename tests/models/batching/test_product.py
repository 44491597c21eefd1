"""Products of several models become one: of a larger batch, of a stack of matrices, or of matrices side by side."""

from __future__ import annotations

import numpy as np
import pytest
from batches import batch, variants
from onnx import helper
from small_models import weight

node = helper.make_node


@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize(
    ("attributes", "bias"),
    [({}, (5,)), ({"transB": 1, "alpha": 0.5, "beta": 2.0}, (1, 5)), ({"alpha": 2.0}, ()), ({"beta": 0.5}, (1,))],
)
def test_gemms_of_different_weights(attributes: dict[str, float], bias: tuple[int, ...], batch_size: int) -> None:
    shape = (5, 4) if "transB" in attributes else (4, 5)
    nodes = [node("Gemm", ["x", "w", "b"], ["y"], **attributes)]
    found = batch(
        variants(
            nodes, {"x": [2, 4]}, ["y"],
            lambda seed: {"w": weight(*shape, seed=seed), "b": np.asarray(weight(*bias, seed=seed + 9), np.float32)},
        ),
        batch_size=batch_size,
    )  # fmt: skip
    assert found.types == {"Concat": 1, "Reshape": 2, "MatMul": 1, "Add": 1, "Split": 1}


@pytest.mark.parametrize("shape", [[2, 4], [2, 3, 4], [1, 2, 3, 4]])
def test_matrix_products_of_different_weights(shape: list[int]) -> None:
    nodes = [node("MatMul", ["x", "w"], ["p"]), node("Add", ["p", "b"], ["s"]), node("Relu", ["s"], ["y"])]
    found = batch(
        variants(nodes, {"x": shape}, ["y"], lambda seed: {"w": weight(4, 5, seed=seed), "b": weight(5, seed=seed)})
    )
    assert found.types["MatMul"] == found.types["Relu"] == found.types["Concat"] == 1


@pytest.mark.parametrize("op_type", ["Gemm", "MatMul"])
def test_equal_weights_take_a_larger_batch(op_type: str) -> None:
    found = batch(variants([node(op_type, ["x", "w"], ["y"])], {"x": [2, 4]}, ["y"], lambda _: {"w": weight(4, 5)}))
    assert found.types == {"Concat": 1, op_type: 1, "Split": 1}


def test_equal_weights_with_different_biases() -> None:
    nodes = [node("Gemm", ["x", "w", "b"], ["y"])]
    found = batch(variants(nodes, {"x": [2, 4]}, ["y"], lambda seed: {"w": weight(4, 5), "b": weight(5, seed=seed)}))
    assert found.types["MatMul"] == found.types["Concat"] == 1


@pytest.mark.parametrize("transposed", [0, 1])
def test_gemms_of_one_tensor_become_one_wide_gemm(transposed: int) -> None:
    nodes = [node("Gemm", ["x", "w", "b"], ["h"], transB=transposed), node("Relu", ["h"], ["y"])]
    shape = (5, 4) if transposed else (4, 5)
    found = batch(
        variants(nodes, {"x": [2, 4]}, ["y"], lambda seed: {"w": weight(*shape, seed=seed), "b": weight(5, seed=seed)}),
        ["x"],
    )
    assert found.types == {"Gemm": 1, "Relu": 1, "Split": 1}


def test_products_of_one_sequence_become_one_wide_product() -> None:
    nodes = [node("MatMul", ["x", "w"], ["h"]), node("Relu", ["h"], ["y"])]
    found = batch(variants(nodes, {"x": [2, 3, 4]}, ["y"], lambda seed: {"w": weight(4, 5, seed=seed)}), ["x"])
    assert found.types == {"MatMul": 1, "Relu": 1, "Split": 1}


def test_layers_after_concatenated_heads() -> None:
    nodes = [node("Gemm", ["x", "w"], ["h"]), node("Relu", ["h"], ["r"]), node("Gemm", ["r", "v"], ["y"])]
    found = batch(
        variants(
            nodes, {"x": [2, 4]}, ["y"], lambda seed: {"w": weight(4, 5, seed=seed), "v": weight(5, 3, seed=seed)}
        ),
        ["x"],
    )
    assert (found.types["Gemm"], found.types["MatMul"], found.types["Concat"]) == (1, 1, 0)


def test_attention_of_several_models() -> None:
    """Products of computed matrices are joined along the batch."""
    nodes = [
        node("MatMul", ["x", "q"], ["a"]),
        node("MatMul", ["x", "k"], ["b"]),
        node("Transpose", ["b"], ["t"], perm=[0, 2, 1]),
        node("MatMul", ["a", "t"], ["c"]),
        node("Softmax", ["c"], ["s"], axis=-1),
        node("MatMul", ["s", "x"], ["y"]),
    ]
    found = batch(
        variants(
            nodes,
            {"x": [2, 3, 4]},
            ["y"],
            lambda seed: {"q": weight(4, 4, seed=seed), "k": weight(4, 4, seed=seed + 9)},
        )
    )
    assert (found.types["MatMul"], found.types["Softmax"], found.types["Transpose"]) == (4, 1, 1)
    assert found.types["Concat"] == found.types["Split"] == 1


def test_gemms_of_a_transposed_input_are_not_batched() -> None:
    nodes = [node("Gemm", ["x", "w"], ["y"], transA=1)]
    found = batch(variants(nodes, {"x": [4, 2]}, ["y"], lambda seed: {"w": weight(4, 5, seed=seed)}))
    assert found.types == {"Gemm": 3}
