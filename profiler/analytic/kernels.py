"""The GPU kernels that an operator runs as, without onnx: matrix products, and the rest by what it moves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from iosched.models.graph import ComputationGraph, Operator, TensorSpec


@dataclass(frozen=True)
class Product:
    """A convolution or a matrix product: `count` products of (rows, inner) with (inner, columns)."""

    rows: int
    columns: int
    inner: int
    count: int
    activation_nbytes: int
    weight_nbytes: int


@dataclass(frozen=True)
class Stream:
    """Anything else: every value read and written once, with `window_flops` of arithmetic in sliding windows."""

    activation_nbytes: int
    weight_nbytes: int = 0
    window_flops: int = 0


Kernel = Product | Stream

_WINDOWS = frozenset({"AveragePool", "LpPool", "MaxPool"})
_NO_KERNEL = frozenset({"Flatten", "Identity", "Reshape", "Shape", "Size", "Squeeze", "Unsqueeze", "Dropout"})


def kernels_of(graph: ComputationGraph, operator: Operator) -> tuple[Kernel, ...]:
    """What runs for `operator`, in order, as the runtimes of the published measurements did it: cuDNN, and no fusion
    but of bias and activation into convolutions. Values that change only in name or shape run nothing.
    """
    if operator.type in ("Conv", "ReluConv", "ReluSepConv"):
        return tuple(_convolution(graph, operator)) or (_opaque(operator),)
    if operator.type in ("MatMul", "Gemm"):
        return (_matrix_product(graph, operator),)
    if operator.type == "Concat":
        return tuple(_concat(graph, operator))
    if operator.type in _NO_KERNEL:
        return ()
    return (_opaque(operator),)


def merged_kernels(graph: ComputationGraph, operators: Sequence[Operator]) -> tuple[Kernel, ...]:
    """One convolution that computes all of `operators`: as many channels as they have together, the largest kernel.

    Each part of its output is a view, so there is nothing after it.
    """
    kernel = [max(sizes) for sizes in zip(*(integers(one, "kernel_shape") for one in operators), strict=True)]
    first = operators[0]
    source, result = _shape(graph, first.inputs[0]), _shape(graph, first.name)
    if len(source) < 3 or len(result) < 3:
        return (_opaque(*operators),)
    columns = sum(_integer(one, "out_channels") for one in operators)
    inner = _integer(first, "in_channels") * prod(kernel)
    item = _item_nbytes(graph.tensor[first.name])
    rows = result[0] * prod(result[2:])
    return (Product(rows, columns, inner, 1, item * (prod(source) + rows * columns), item * inner * columns),)


def integers(operator: Operator, key: str) -> tuple[int, ...]:
    """The attribute `key` as a tuple of whole numbers; () where it is none."""
    value = operator.attribute(key, ())
    return tuple(item for item in value if isinstance(item, int)) if isinstance(value, tuple) else ()


def _convolution(graph: ComputationGraph, operator: Operator) -> Iterator[Kernel]:
    source, result = _shape(graph, operator.inputs[0]), _shape(graph, operator.name)
    if len(source) < 3 or len(result) < 3 or not operator.weights:
        return
    item = _item_nbytes(graph.tensor[operator.name])
    if (terms := len(operator.inputs)) > 1 and operator.type == "ReluSepConv":
        yield Stream(item * prod(source) * (terms + 1))
    if operator.type != "Conv":
        yield Stream(item * prod(source) * 2)
    kernel, group = prod(integers(operator, "kernel_shape")), max(_integer(operator, "group"), 1)
    in_channels, out_channels = _integer(operator, "in_channels"), _integer(operator, "out_channels")
    rows = result[0] * prod(result[2:])
    if operator.type == "ReluSepConv":
        between = rows * in_channels
        yield Stream(item * (prod(source) + between), item * in_channels * kernel, 2 * between * kernel)
        yield Product(
            rows, out_channels, in_channels, 1, item * (between + prod(result)), item * in_channels * out_channels
        )
        return
    moved, weights = (
        item * (prod(source) * len(operator.inputs) + prod(result)),
        item * out_channels * in_channels * kernel,
    )
    if group == in_channels and group > 1:
        yield Stream(moved, weights // group, 2 * prod(result) * kernel)
        return
    yield Product(rows, out_channels // group, in_channels // group * kernel, group, moved, weights // group)


def _matrix_product(graph: ComputationGraph, operator: Operator) -> Kernel:
    result = _shape(graph, operator.name)
    if not result or not operator.flops:
        return _opaque(operator)
    rows, columns = prod(result[:-1]), result[-1]
    weights = sum(spec.nbytes for spec in operator.weights)
    return Product(rows, columns, max(operator.flops // (2 * rows * columns), 1), 1, operator.nbytes - weights, weights)


def _concat(graph: ComputationGraph, operator: Operator) -> Iterator[Kernel]:
    """A kernel for each sum, then one copy of everything: the published runtime copied what it concatenates."""
    terms = integers(operator, "terms")
    nbytes = graph.tensor[operator.name].nbytes
    part = graph.tensor[operator.inputs[0]].nbytes
    yield from (Stream(part * (count + 1)) for count in terms if count > 1)
    if len(terms) != 1:
        yield Stream(2 * nbytes)


def _opaque(*operators: Operator) -> Kernel:
    weights = sum(spec.nbytes for one in operators for spec in one.weights)
    moved = sum(one.nbytes for one in operators) - weights
    return Stream(moved, weights, sum(one.flops for one in operators) if operators[0].type in _WINDOWS else 0)


def _shape(graph: ComputationGraph, tensor: str) -> tuple[int, ...]:
    spec = graph.tensor.get(tensor)
    return spec.shape if spec is not None and spec.shape is not None else ()


def _item_nbytes(spec: TensorSpec) -> int:
    return spec.nbytes // max(prod(spec.shape or ()), 1)


def _integer(operator: Operator, key: str) -> int:
    value = operator.attribute(key, 0)
    return value if isinstance(value, int) else 0
