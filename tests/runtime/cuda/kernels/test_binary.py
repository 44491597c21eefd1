"""Functions of several tensors: numpy's broadcasting, sums of many terms, batch normalization, choices."""

from __future__ import annotations

import numpy as np
import pytest
from host_cuda import blank, check, needs_compiler, put, weight
from node_kernels import FP16, lowered, normal
from onnx import helper

from iosched.runtime.cuda.kernels.add import AddN
from iosched.runtime.cuda.kernels.batch_norm import ScaleShift
from iosched.runtime.cuda.kernels.binary import Binary
from iosched.runtime.cuda.source.activation import RELU

ARITHMETIC = ["Add", "Sub", "Mul", "Div", "Max", "Min", "PRelu"]
COMPARISONS = ["Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"]
SHAPES = [
    ((2, 6, 3, 5), (2, 6, 3, 5)), ((2, 6, 3, 5), ()), ((2, 6, 3, 5), (6, 1, 1)), ((2, 6, 3, 5), (1, 1, 3, 5)),
    ((2, 6, 3, 5), (2, 6, 1, 1)), ((2, 6, 3, 5), (5,)), ((4, 7), (1, 7)), ((2, 1, 2, 1, 2, 3), (2, 2, 1, 1)),
]  # fmt: skip


@pytest.mark.parametrize("kind", ARITHMETIC)
@pytest.mark.parametrize("shapes", SHAPES)
def test_results_equal_onnxruntimes(kind: str, shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    if kind == "PRelu" and np.broadcast_shapes(*shapes) != shapes[0]:
        pytest.skip("a slope has the shape of x at most")
    given = {"a": normal(*shapes[0]), "b": np.asarray(normal(*shapes[1], seed=1))}
    node = helper.make_node(kind, ["a", "b"], ["y"])
    lowered(node, given).compare()
    lowered(node, {"a": given["a"]}, {"b": given["b"]}).compare()


@needs_compiler
@pytest.mark.parametrize("shapes", SHAPES)
@pytest.mark.parametrize("before", [0, 2])
def test_source_broadcasts(shapes: tuple[tuple[int, ...], tuple[int, ...]], before: int) -> None:
    a, b = (put(np.asarray(normal(*shape)), before=before) for shape in shapes)
    y = np.broadcast_shapes(*shapes)
    check(Binary("Sub"), [a, b], [blank(y, before=before, after=1)])
    check(Binary("Sub"), [b, a], [blank(y)])


@needs_compiler
@pytest.mark.parametrize("kind", [*ARITHMETIC, "Pow", *COMPARISONS])
def test_source_of_every_kind(kind: str) -> None:
    a, b = put(np.round(np.abs(normal(2, 8, 3, 3)), 1)), put(np.round(np.abs(normal(2, 8, 3, 3, seed=1)), 1) + 1)
    check(Binary(kind), [a, b], [blank((2, 8, 3, 3), "bool" if kind in COMPARISONS else "float32")])


@pytest.mark.parametrize("kind", COMPARISONS)
def test_comparisons(kind: str) -> None:
    node = helper.make_node(kind, ["a", "b"], ["y"])
    given = {"a": np.round(normal(3, 4)), "b": np.round(normal(4, seed=1))}
    lowered(node, given, output_dtypes=("bool",)).compare()


@needs_compiler
@pytest.mark.parametrize("kind", ["Add", "Mul", "Max"])
def test_integers(kind: str) -> None:
    node = helper.make_node(kind, ["a", "b"], ["y"])
    given = {"a": np.arange(12).reshape(3, 4), "b": np.arange(4) - 2}
    lowered(node, given, output_dtypes=("int64",)).compare(on_host=True)


def test_division_of_integers_is_left_to_onnxruntime() -> None:
    node = helper.make_node("Div", ["a", "b"], ["y"])
    assert not lowered(node, {"a": np.arange(4), "b": np.arange(4) + 1}, output_dtypes=("int64",)).calls


def test_powers_with_exponents_of_another_type_are_left_to_onnxruntime() -> None:
    node = helper.make_node("Pow", ["a", "b"], ["y"])
    lowered(node, {"a": np.abs(normal(5))}, {"b": np.asarray(np.float32(1.5))}).compare()
    assert not lowered(node, {"a": np.abs(normal(5))}, {"b": np.asarray(2)}).calls


@needs_compiler
@pytest.mark.parametrize("kind", ["And", "Or", "Xor"])
def test_logic(kind: str) -> None:
    node = helper.make_node(kind, ["a", "b"], ["y"])
    given = {"a": np.array([[True], [False]]), "b": np.array([True, False])}
    lowered(node, given, output_dtypes=("bool",)).compare(on_host=True)


@needs_compiler
def test_small_constants_keep_their_precision() -> None:
    found = lowered(
        helper.make_node("Add", ["a", "b"], ["y"]),
        {"a": normal(3, 4)},
        {"b": np.asarray(np.float32(1e-9))},
        precision=FP16,
    )
    assert [array.dtype for array in found.builder.weights.values()] == [np.float32]
    found.compare(on_host=True)


@needs_compiler
def test_choices() -> None:
    node = helper.make_node("Where", ["c", "a", "b"], ["y"])
    given = {"c": normal(2, 6, 1, 5) > 0, "a": normal(2, 6, 3, 5), "b": np.asarray(normal(1, seed=2))}
    lowered(node, given).compare(on_host=True)
    lowered(node, given, precision=FP16).compare(on_host=True)
    integers = {"c": normal(3, 4) > 0, "a": np.arange(12).reshape(3, 4)}
    lowered(node, integers, {"b": np.asarray(-1)}, output_dtypes=("int64",)).compare(on_host=True)


@needs_compiler
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("terms", [1, 2, 16])
def test_sums_of_slices(terms: int, dtype: str) -> None:
    kernel = AddN(RELU)
    for batch, before in ((1, 0), (3, 8), (3, 3)):
        reads = [put(normal(batch, 24, 3, 5, seed=k).astype(dtype), before=before * (k % 2)) for k in range(terms)]
        check(kernel, reads, [blank((batch, 24, 3, 5), dtype, before=8, after=before)])


@pytest.mark.parametrize("kind", ["Sum", "Max", "Min"])
def test_many_operands(kind: str) -> None:
    given = {"a": normal(2, 3, 4, 4), "b": normal(2, 3, 4, 4, seed=1), "c": normal(2, 3, 4, 4, seed=2)}
    lowered(helper.make_node(kind, ["a", "b", "c"], ["y"]), given).compare()
    given["b"], given["c"] = normal(3, 1, 1), normal(1, 3, 4, 1)
    lowered(helper.make_node(kind, ["a", "b", "c"], ["y"]), given).compare()


@needs_compiler
@pytest.mark.parametrize("shape", [(2, 8, 3, 5), (3, 5), (2, 7, 4)])
def test_batch_normalization(shape: tuple[int, ...]) -> None:
    node = helper.make_node("BatchNormalization", ["x", "g", "b", "m", "v"], ["y"], epsilon=1e-3)
    vectors = {name: normal(shape[1], seed=k) for k, name in enumerate("gbm")} | {"v": np.abs(normal(shape[1])) + 0.1}
    lowered(node, {"x": normal(*shape)}, vectors).compare(on_host=True)
    lowered(node, {"x": normal(*shape)}, vectors, precision=FP16).compare(on_host=True, before=1)


@needs_compiler
def test_scale_and_shift_with_an_activation_on_slices() -> None:
    vectors = [weight(normal(16)), weight(normal(16, seed=1))]
    for dtype, before in (("float32", 4), ("float16", 8), ("float16", 1)):
        x = put(normal(3, 16, 5, 3).astype(dtype), before=before)
        check(ScaleShift(RELU), [x, *vectors], [blank((3, 16, 5, 3), dtype, after=before)])


def test_batch_normalization_with_computed_parameters_is_left_to_onnxruntime() -> None:
    node = helper.make_node("BatchNormalization", ["x", "g", "b", "m", "v"], ["y"])
    given = {"x": normal(2, 3, 4), "v": np.abs(normal(3))}
    assert not lowered(node, given, {name: normal(3) for name in "gbm"}).calls
