"""Products of matrices: references of the kernels, and the lowering of Gemm and MatMul to them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from host_cuda import blank, check, needs_compiler, put
from node_kernels import FP16, FP32, Lowered, lowered, normal
from onnx import helper
from small_models import loaded, proto_of

from iosched.runtime.cuda.builder import Builder
from iosched.runtime.cuda.kernel import Precision
from iosched.runtime.cuda.kernels.add import AddN
from iosched.runtime.cuda.kernels.batched_matmul import BatchedMatMul
from iosched.runtime.cuda.kernels.copy import Copy
from iosched.runtime.cuda.kernels.dense_row import DenseRow
from iosched.runtime.cuda.kernels.product import Dense, MatMul, lower_product
from iosched.runtime.cuda.source.activation import IDENTITY, RELU, Activation

TF32 = Precision("tf32")


def types(case: Lowered) -> list[type]:
    return [type(call.kernel) for call in case.calls]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("lead", [(), (1,), (3,), (2, 5)])
@pytest.mark.parametrize("activation", [IDENTITY, RELU])
def test_dense_layers_on_slices_of_rows(dtype: str, lead: tuple[int, ...], activation: Activation) -> None:
    x, weight, bias = (normal(*shape).astype(dtype) for shape in ((*lead, 7), (4, 7), (4,)))
    y = blank((*lead, 4), dtype, before=2, after=3)
    kernel = Dense(activation=activation, precision=FP16 if dtype == "float16" else FP32)
    kernel.interpret([put(x, before=1).array, weight, bias], [y.array])
    wanted = activation(x.astype(np.float64) @ weight.T.astype(np.float64) + bias)
    np.testing.assert_allclose(y.array, wanted, rtol=4e-3 if dtype == "float16" else 1e-5, atol=4e-3)
    assert y.is_clean_outside()


@needs_compiler
@pytest.mark.parametrize("activation", [IDENTITY, RELU, Activation("Sigmoid")], ids=lambda each: each.type)
@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize(
    ("lead", "n", "k"), [((1,), 5, 7), ((), 1, 1), ((1, 1), 33, 64), ((1,), 3, 130), ((1,), 2, 2052)]
)
def test_source_of_dense_layers_of_one_row(
    lead: tuple[int, ...], n: int, k: int, has_bias: bool, activation: Activation
) -> None:
    x, weight, bias = normal(*lead, k), normal(n, k, seed=1) / np.float32(k) ** 0.5, normal(n, seed=2)
    for before in (0, 1, 4):
        reads = [put(x, before=before), put(weight, before=before), *([put(bias)] if has_bias else [])]
        check(DenseRow(has_bias, activation), reads, [blank((*lead, n), before=before, after=3)], 2e-5)


@pytest.mark.parametrize("activation", ["Relu", "Sigmoid"])
def test_one_row_in_strict_float32_is_fused_with_any_activation(activation: str) -> None:
    nodes = [helper.make_node("Gemm", ["a", "b"], ["p"]), helper.make_node(activation, ["p"], ["y"])]
    for rows in (1, 2):
        model = loaded(proto_of(nodes, {"a": (rows, 7)}, ["y"], {"b": normal(7, 5)}))
        builder = Builder.of(model, FP32)
        assert lower_product(builder, list(model.proto.graph.node))
        fused = [Dense] if activation == "Relu" else [Dense, AddN]
        assert [type(call.kernel) for call in builder.calls] == ([DenseRow] if rows == 1 else fused)


@pytest.mark.parametrize("precision", [FP32, TF32, FP16])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("transposed", [0, 1])
@pytest.mark.parametrize("c_shape", [None, (5,), (1, 5), (1,), ()])
def test_gemm_with_constant_weights_is_one_kernel(
    precision: Precision, batch: int, transposed: int, c_shape: tuple[int, ...] | None
) -> None:
    weights = {"b": normal(*((5, 7) if transposed else (7, 5)))}
    if c_shape is not None:
        weights["c"] = normal(*c_shape)
    node = helper.make_node("Gemm", ["a", *weights], ["y"], alpha=0.5, beta=0.25, transB=transposed)
    case = lowered(node, {"a": normal(batch, 7)}, weights, precision=precision)
    assert types(case) == [DenseRow if batch == 1 and precision == FP32 else Dense]
    case.compare(before=1)


def test_gemm_with_a_transposed_left_factor() -> None:
    node = helper.make_node("Gemm", ["a", "b"], ["y"], transA=1)
    case = lowered(node, {"a": normal(7, 3)}, {"b": normal(7, 5)})
    assert types(case) == [Copy, Dense]
    case.compare(before=2)


@pytest.mark.parametrize("transposed", [0, 1])
def test_gemm_with_computed_factors(transposed: int) -> None:
    node = helper.make_node("Gemm", ["a", "b", "c"], ["y"], transB=transposed)
    inputs = {"a": normal(3, 7), "b": normal(*((5, 7) if transposed else (7, 5))), "c": normal(3, 5)}
    case = lowered(node, inputs)
    assert types(case) == ([Dense, AddN] if transposed else [Copy, Dense, AddN])
    case.compare(before=1)


@pytest.mark.parametrize(
    ("attributes", "c_shape"), [({"alpha": 2.0}, (5,)), ({}, (3, 1)), ({"beta": 2.0}, None)],
)  # fmt: skip
def test_scaled_computed_factors_and_biases_by_row_are_left_to_onnxruntime(
    attributes: dict[str, float], c_shape: tuple[int, ...] | None
) -> None:
    node = helper.make_node("Gemm", ["a", "b", "c"], ["y"], **attributes)
    inputs, constant = {"a": normal(3, 7), "b": normal(7, 5)}, {}
    (constant if c_shape else inputs)["c"] = normal(*(c_shape or (3, 5)))
    assert not lowered(node, inputs, constant).calls


@pytest.mark.parametrize("precision", [FP32, FP16])
@pytest.mark.parametrize("a_shape", [(7,), (3, 7), (2, 3, 7), (2, 3, 4, 7), (1, 2, 3, 4, 7)])
def test_matmul_by_constant_weights(precision: Precision, a_shape: tuple[int, ...]) -> None:
    node = helper.make_node("MatMul", ["a", "b"], ["y"])
    case = lowered(node, {"a": normal(*a_shape)}, {"b": normal(7, 5)}, precision=precision)
    dense = DenseRow if len(a_shape) == 1 and precision == FP32 else Dense
    assert types(case) == ([dense] if len(a_shape) <= 3 else [Copy, dense, Copy])
    case.compare(before=1)


def test_matmul_of_constants_by_computed_matrices() -> None:
    node = helper.make_node("MatMul", ["a", "b"], ["y"])
    case = lowered(node, {"b": normal(7, 5)}, {"a": normal(3, 7)})
    assert types(case) == [Copy, Dense]
    case.compare()


BATCHES = [
    ((4, 3, 7), (4, 7, 5)), ((4, 3, 7), (1, 7, 5)), ((1, 3, 7), (4, 7, 5)), ((3, 7), (4, 7, 5)),
    ((2, 2, 3, 7), (2, 2, 7, 5)), ((2, 2, 3, 7), (1, 7, 5)),
]  # fmt: skip


@pytest.mark.parametrize("precision", [TF32, FP16])
@pytest.mark.parametrize("shapes", BATCHES)
def test_matmul_in_batches(precision: Precision, shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    node = helper.make_node("MatMul", ["a", "b"], ["y"])
    case = lowered(node, {"a": normal(*shapes[0]), "b": normal(*shapes[1])}, precision=precision)
    assert MatMul in types(case)
    case.compare(before=1)


@pytest.mark.parametrize("b_shape", [(7,), (2, 7, 5), (1, 7, 5)])
def test_constants_of_other_ranks_are_multiplied_in_batches(b_shape: tuple[int, ...]) -> None:
    node = helper.make_node("MatMul", ["a", "b"], ["y"])
    case = lowered(node, {"a": normal(3, 7)}, {"b": normal(*b_shape)})
    assert types(case) == [BatchedMatMul]
    case.compare()


def test_weights_of_other_types_are_left_to_onnxruntime() -> None:
    node = helper.make_node("MatMul", ["a", "b"], ["y"])
    weights = {"b": np.ones((2, 7, 5))}
    case = lowered(node, {"a": np.ones((3, 7))}, weights, output_dtypes=("float64",))
    assert not case.calls


def test_integers_are_left_to_onnxruntime() -> None:
    node = helper.make_node("MatMul", ["a", "b"], ["y"])
    inputs = {"a": np.ones((3, 7), np.int32), "b": np.ones((7, 5), np.int32)}
    assert not lowered(node, inputs, output_dtypes=("int32",)).calls


# Units of a product, a sum and an activation.


def unit(nodes: Sequence[onnx.NodeProto], weights: dict[str, np.ndarray], a: np.ndarray) -> Builder:
    model = loaded(proto_of(nodes, {"a": a.shape}, [nodes[-1].output[0]], weights))
    builder = Builder.of(model, FP32)
    assert lower_product(builder, nodes) == bool(builder.calls)
    return builder


@pytest.mark.parametrize("activation", ["Relu", "Sigmoid"])
@pytest.mark.parametrize("swapped", [False, True])
def test_a_product_with_its_bias_and_its_activation(activation: str, swapped: bool) -> None:
    a, weights = normal(3, 7), {"b": normal(7, 5), "c": normal(5)}
    nodes = [
        helper.make_node("MatMul", ["a", "b"], ["product"]),
        helper.make_node("Add", ["c", "product"] if swapped else ["product", "c"], ["sum"]),
        helper.make_node(activation, ["sum"], ["y"]),
    ]
    builder = unit(nodes, weights, a)
    known = {"a": a, **builder.weights}
    for call in builder.calls:
        known[call.writes[0]] = np.empty(builder.shape(call.writes[0]), np.float32)
        call.kernel.interpret([known[name] for name in call.reads], [known[call.writes[0]]])
    wanted = Activation(activation)(a @ weights["b"] + weights["c"])
    np.testing.assert_allclose(known["y"], wanted, rtol=1e-5, atol=1e-5)
    first = builder.calls[0].kernel
    assert isinstance(first, Dense)
    assert first.activation == (RELU if activation == "Relu" else IDENTITY)
    assert len(builder.calls) == (1 if activation == "Relu" else 2)


def test_a_sum_that_changes_the_shape_is_not_fused_as_a_bias() -> None:
    nodes = [helper.make_node("MatMul", ["a", "b"], ["product"]), helper.make_node("Add", ["product", "c"], ["y"])]
    assert not unit(nodes, {"b": normal(7, 5), "c": normal(2, 1, 5)}, normal(1, 7)).calls
    assert not unit(nodes, {"b": normal(7, 5), "c": normal(3, 1)}, normal(3, 7)).calls
