"""The GPU kernels of an operator in the analytic model: matrix products, and kernels that move bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal

from iosched.models.graph import ComputationGraph, Operator, TensorSpec


@dataclass(frozen=True)
class ConvolutionGeometry:
    """The geometry of a convolution.

    Attributes:
        height, width: of the result; 1 for missing dimensions, further ones are part of the width.
        taps: number of positions of the kernel.
        winograd: whether Winograd's algorithms apply: 3 x 3, stride and dilation 1, a single group.
    """

    images: int
    height: int
    width: int
    taps: int
    winograd: bool


@dataclass(frozen=True)
class Product:
    """A convolution or a matrix product: `count` products of a (rows, inner) with an (inner, columns) matrix.

    Attributes:
        activation_nbytes: of the left matrices and the results.
        weight_nbytes: of the right matrices.
        transposed: whether the right matrices are stored along the inner dimension, as those of linear layers.
    """

    rows: int
    columns: int
    inner: int
    count: int
    activation_nbytes: int
    weight_nbytes: int
    window: ConvolutionGeometry | None = None
    transposed: bool = False
    item_nbytes: int = 4

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to compute, as for an empty batch."""
        return 0 in (self.rows, self.columns, self.inner, self.count)


@dataclass(frozen=True)
class Stream:
    """Any other kernel: it reads and writes every value once; a depthwise convolution computes `window_flops`."""

    activation_nbytes: int
    weight_nbytes: int = 0
    window_flops: int = 0


Kernel = Product | Stream
KernelKind = Literal["convolution", "product", "elementwise", "depthwise"]

_NO_PRODUCTS = ("Arg", "AveragePool", "CumSum", "Global", "LpPool", "MaxPool", "Reduce")
_LEAST_INNER = 4  # multiply-adds for each result, from which on an unknown operator counts as a product
_NO_KERNEL = frozenset({"Flatten", "Identity", "Reshape", "Shape", "Size", "Squeeze", "Unsqueeze", "Dropout"})


def kind_of(kernel: Kernel) -> KernelKind:
    """The kind of kernel, which shares errors of the model."""
    if isinstance(kernel, Product):
        return "product" if kernel.window is None else "convolution"
    return "depthwise" if kernel.window_flops else "elementwise"


def kernels_of(graph: ComputationGraph, operator: Operator) -> tuple[Kernel, ...]:
    """The kernels of `operator`, in order; none if it changes only names or shapes.

    As in the published measurements: cuDNN's kernels, with only bias and activation fused into convolutions.
    """
    if operator.integer("out_channels"):
        convolution = tuple(_convolution(graph, operator)) or (_by_size(graph, operator),)
        return (*_sums(graph, operator), *convolution)
    if operator.type == "Concat":
        # The published runtime copied the operands of a Concat, unless there was only one.
        copy = () if len(operator.integers("terms")) == 1 else (Stream(2 * _nbytes(graph, operator.name)),)
        return (*_sums(graph, operator), *copy)
    if operator.type in _NO_KERNEL:
        return ()
    return (_by_size(graph, operator),)


def merged_kernels(graph: ComputationGraph, operators: Sequence[Operator]) -> tuple[Kernel, ...]:
    """The kernels of one convolution or matrix product that computes all of `operators`.

    It has all output channels and the largest kernel. A ReLU before the convolutions runs once. The parts of the output
    are views.
    """
    first = operators[0]
    source, result = _shape(graph, first.inputs[0]), _shape(graph, first.name)
    if not source or not result:
        return tuple(_by_size(graph, one) for one in operators)
    item = _item_nbytes(graph.tensor[first.name])
    if first.integer("out_features"):
        columns, rows = sum(one.integer("out_features") for one in operators), prod(result[:-1])
        inner = first.integer("in_features")
        window = None
    else:
        kernel = tuple(max(sizes) for sizes in zip(*(one.integers("kernel_shape") for one in operators), strict=True))
        columns, rows = sum(one.integer("out_channels") for one in operators), result[0] * prod(result[2:])
        inner = first.integer("in_channels") * prod(kernel)
        window = _window(first, result, kernel)
    moved = item * (prod(source) + rows * columns)
    product = Product(rows, columns, inner, 1, moved, item * inner * columns, window, item_nbytes=item)
    return (*_before(first, item * prod(source)), product)


def leading_types(operator: Operator) -> tuple[str, ...]:
    """Types of the operator's nodes before its convolution, such as a ReLU, without folded sums."""
    position = operator.node_types.index("Conv") if "Conv" in operator.node_types else 0
    return tuple(kind for kind in operator.node_types[:position] if kind not in ("Add", "Sum"))


def _convolution(graph: ComputationGraph, operator: Operator) -> Iterator[Kernel]:
    source = _shape(graph, operator.inputs[0]) if operator.inputs else ()
    result = _shape(graph, operator.name)
    in_channels, out_channels = operator.integer("in_channels"), operator.integer("out_channels")
    if len(source) < 3 or len(result) < 3 or not in_channels or not out_channels:
        return
    item = _item_nbytes(graph.tensor[operator.name])
    yield from _before(operator, item * prod(source))
    kernel, group = prod(operator.integers("kernel_shape")), max(operator.integer("group"), 1)
    window = _window(operator, result, operator.integers("kernel_shape"))
    if operator.node_types.count("Conv") > 1:
        yield from _separable(item, source, result, kernel)
        return
    moved = item * (prod(source) * len(operator.inputs) + prod(result))
    weights = item * out_channels * in_channels * kernel // group
    if group == in_channels and group > 1:
        yield Stream(moved, weights, 2 * prod(result) * kernel)
        return
    rows = result[0] * prod(result[2:])
    inner = in_channels // group * kernel
    yield Product(rows, out_channels // group, inner, group, moved, weights, window, item_nbytes=item)


def _before(operator: Operator, source_nbytes: int) -> tuple[Kernel, ...]:
    return (Stream(2 * source_nbytes),) * len(leading_types(operator))


def _separable(item: int, source: tuple[int, ...], result: tuple[int, ...], kernel: int) -> Iterator[Kernel]:
    rows, in_channels, out_channels = result[0] * prod(result[2:]), source[1], result[1]
    between = rows * in_channels
    yield Stream(item * (prod(source) + between), item * in_channels * kernel, 2 * between * kernel)
    moved = item * (between + prod(result))
    weights = item * in_channels * out_channels
    window = ConvolutionGeometry(result[0], *_plane(result), 1, winograd=False)
    yield Product(rows, out_channels, in_channels, 1, moved, weights, window, item_nbytes=item)


def _window(operator: Operator, result: tuple[int, ...], kernel: tuple[int, ...]) -> ConvolutionGeometry:
    plain = {*operator.integers("strides"), *operator.integers("dilations"), max(operator.integer("group"), 1)} <= {1}
    return ConvolutionGeometry(result[0], *_plane(result), prod(kernel), winograd=plain and kernel == (3, 3))


def _plane(result: tuple[int, ...]) -> tuple[int, int]:
    return (result[2], prod(result[3:])) if len(result) > 3 else (1, result[2])


def _sums(graph: ComputationGraph, operator: Operator) -> Iterator[Kernel]:
    part = max((_nbytes(graph, name) for name in operator.inputs), default=0)
    yield from (Stream(part * (count + 1)) for count in operator.integers("terms") if count > 1)


def _by_size(graph: ComputationGraph, operator: Operator) -> Kernel:
    """The kernel of an operator known by bytes and FLOPs: a product if every result takes many operations, else a
    stream.
    """
    weights = sum(spec.nbytes for spec in operator.weights)
    moved = operator.nbytes - weights
    result = _shape(graph, operator.name)
    inner = operator.flops // (2 * max(prod(result), 1))
    if not result or inner < _LEAST_INNER or operator.type.startswith(_NO_PRODUCTS):
        return Stream(moved, weights)
    item = _item_nbytes(graph.tensor[operator.name])
    return Product(prod(result[:-1]), result[-1], inner, 1, moved, weights, item_nbytes=item)


def _shape(graph: ComputationGraph, tensor: str) -> tuple[int, ...]:
    spec = graph.tensor.get(tensor)
    return spec.shape if spec is not None and spec.shape is not None else ()


def _nbytes(graph: ComputationGraph, tensor: str) -> int:
    spec = graph.tensor.get(tensor)
    return 0 if spec is None else spec.nbytes


def _item_nbytes(spec: TensorSpec) -> int:
    return max(spec.nbytes // max(prod(spec.shape or ()), 1), 1)
