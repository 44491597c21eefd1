"""How operators in whole numbers are split over cores. All parts compute the very bits of the whole.

onnxruntime keeps images of whole numbers with channels last, so at batch 1 rows are contiguous, not channels: operators
are split by rows of their result, and one that looks around a pixel reads rows of its neighbour as well. Where scales
or zero points are many, one for each channel, they are cut with the channels.

DynamicQuantizeLinear and what contains it have no rule: they look for the least and the largest number of all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import onnx

from iosched.models.node_attributes import integer, integers, padding
from iosched.runtime.cpu.kernel_graph import KernelGraph
from iosched.runtime.cpu.shares import Share, broadcast_share, even_ranges, shape_of, share_of, with_attributes

Rule = Callable[[KernelGraph, onnx.NodeProto, int], tuple[Share, ...]]

_CONTRIB = "com.microsoft"
_PACKED_CHANNELS = 16  # that kernels compute together
_LEFT = {"QLinearMatMul": (1, 2, 6, 7), "MatMulInteger": (2,), "MatMulIntegerToFloat": (2, 4)}
"""For products, the positions of scales and zero points that rows of the result need: those of all but the matrix."""
_OPERANDS_WITH_IMAGES = {
    "QLinearAdd": (0, 3), "QLinearMul": (0, 3), "QGemm": (0, 6),
    "QuantizeLinear": (0, 1, 2), "DequantizeLinear": (0, 1, 2),
}  # fmt: skip
_MATRIX = {"QLinearMatMul": 3, "MatMulInteger": 1, "MatMulIntegerToFloat": 1, "QGemm": 3}


def keeps_images_apart(kernels: KernelGraph, node: onnx.NodeProto) -> bool:
    """Whether image i of the result depends on image i of its operands with images alone."""
    rank = len(shape_of(kernels, node.output[0]))
    if node.op_type == "QLinearConcat":
        return integer(node, "axis") % rank != 0
    if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
        return _is_one_number(kernels, node.input[1]) or integer(node, "axis", 1) % rank != 0
    if node.op_type == "QGemm":
        return not integer(node, "transA")
    return node.op_type not in _MATRIX or _has_free_rows(kernels, node)


def operands_with_images(node: onnx.NodeProto) -> Sequence[int]:
    """As in `split`, of one of `TYPES`; scales and zero points have images where there is one for each block."""
    if node.op_type == "QLinearConcat":
        return range(2, len(node.input), 3)
    return _OPERANDS_WITH_IMAGES.get(node.op_type, (0,))


def _is_one_number(kernels: KernelGraph, name: str) -> bool:
    return not name or prod(shape_of(kernels, name)) == 1


def _has_free_rows(kernels: KernelGraph, node: onnx.NodeProto) -> bool:
    """Whether a product is with a constant matrix, and all rows of the left operand have one scale and zero point."""
    matrix = kernels.weights.get(node.input[_MATRIX[node.op_type]])
    beside = [node.input[position] for position in _LEFT[node.op_type] if position < len(node.input)]
    is_row_wise = matrix is not None and matrix.ndim == 2 and len(shape_of(kernels, node.output[0])) > 1
    return is_row_wise and all(_is_one_number(kernels, name) for name in beside)


def _split_convolution(kernels: KernelGraph, node: onnx.NodeProto, shares: int) -> tuple[Share, ...]:
    weight = kernels.weights.get(node.input[3 if node.op_type == "QLinearConv" else 1])
    computed = [name for name in node.input[1:] if name in kernels.tensors]
    if weight is None or not all(_is_one_number(kernels, name) for name in computed):
        return ()
    if not integer(node, "channels_last"):
        return _split_channels(kernels, node, weight, shares)
    window = _Window.of(kernels, node, weight.shape[2:])
    if window.source[1:-1] == window.result[1:-1] == (1,) * len(window.kernel):
        return _split_channels(kernels, node, weight, shares) if integer(node, "group", 1) == 1 else ()
    return _split_rows(kernels, node, window, shares)


def _split_channels(kernels: KernelGraph, node: onnx.NodeProto, weight: np.ndarray, shares: int) -> tuple[Share, ...]:
    """Splits a convolution by output channels; one in groups by groups, with the channels of its input."""
    groups, results = integer(node, "group", 1), len(weight)
    axis = -1 % len(shape_of(kernels, node.output[0])) if integer(node, "channels_last") else 1
    of_group = results // groups if groups > 1 else 1
    found = []
    ranges = even_ranges(groups, shares) if groups > 1 else even_ranges(results, shares, _PACKED_CHANNELS)
    for first, last in ranges:
        begin, end = first * of_group, last * of_group
        places = {**_parameters(kernels, node, results, begin, end), node.output[0]: (axis, begin, end)}
        if groups > 1:
            taken = weight.shape[1]
            places[node.input[0]] = (axis, first * taken, last * taken)
        part = with_attributes(node, group=last - first) if groups > 1 else node
        found.append(share_of(kernels, part, places))
    return tuple(found) if len(found) > 1 else ()


def _parameters(
    kernels: KernelGraph, node: onnx.NodeProto, size: int, begin: int, end: int
) -> dict[str, tuple[int, int, int]]:
    """Where [begin, end) is in every operand but the first that has `size` rows or numbers; others are used whole."""
    names = [name for name in node.input[1:] if name]
    return {name: (0, begin, end) for name in names if shape_of(kernels, name)[:1] == (size,) != (1,)}


@dataclass(frozen=True)
class _Window:
    """What looks around a pixel, with channels last: shapes (1, *sizes, channels), and one number for each size."""

    source: tuple[int, ...]
    result: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]

    @classmethod
    def of(cls, kernels: KernelGraph, node: onnx.NodeProto, kernel: Sequence[int]) -> _Window:
        source, result = shape_of(kernels, node.input[0]), shape_of(kernels, node.output[0])
        ones = (1,) * len(kernel)
        pads = padding(node, source[1:-1], kernel)
        return cls(
            source,
            result,
            tuple(kernel),
            integers(node, "strides", ones),
            integers(node, "dilations", ones),
            pads,
        )

    def beyond(self) -> tuple[int, ...]:
        """How far the last windows reach beyond the end of the source along each axis; negative where they do not."""
        count = len(self.kernel)
        return tuple(
            (self.result[1 + i] - 1) * self.strides[i] - self.pads[i] + self.reach(i) - self.source[1 + i]
            for i in range(count)
        )

    def reach(self, axis: int) -> int:
        """How many pixels a window spans along an axis."""
        return self.dilations[axis] * (self.kernel[axis] - 1) + 1

    def rows(self, begin: int, end: int) -> tuple[int, int]:
        """The rows of the source that rows [begin, end) of the result look at; some may be padding."""
        first = begin * self.strides[0] - self.pads[0]
        return first, first + (end - begin - 1) * self.strides[0] + self.reach(0)


def _split_pool(kernels: KernelGraph, node: onnx.NodeProto, shares: int) -> tuple[Share, ...]:
    """Pools with channels last. Those of one channel after the other are split by channels."""
    kernel, is_max = integers(node, "kernel_shape"), node.op_type == "NhwcMaxPool"
    if not is_max and not integer(node, "channels_last"):
        return _split_each_channel(kernels, node, shares)
    window = _Window.of(kernels, node, kernel)
    if min(window.pads) < 0:
        return ()
    ends = tuple(max(pair) for pair in zip(window.beyond(), window.pads[len(kernel) :], strict=True))
    if ends != window.pads[len(kernel) :] and (not is_max or any(map(int.__ge__, ends, kernel))):
        return ()  # ceil_mode: a mean does not count such pixels as padding
    widened = _Window(
        window.source, window.result, window.kernel, window.strides, window.dilations,
        (*window.pads[: len(kernel)], *ends),
    )  # fmt: skip
    return _split_rows(kernels, with_attributes(node, ceil_mode=0), widened, shares)


def _split_rows(kernels: KernelGraph, node: onnx.NodeProto, window: _Window, shares: int) -> tuple[Share, ...]:
    found = []
    axes, height = len(window.kernel), window.source[1]
    for begin, end in even_ranges(window.result[1], shares):
        first, last = window.rows(begin, end)
        low, high = max(first, 0), min(last, height)
        if low >= high:
            return ()
        pads = [*window.pads]
        pads[0], pads[axes] = low - first, last - high
        places = {node.input[0]: (1, low, high), node.output[0]: (1, begin, end)}
        found.append(share_of(kernels, with_attributes(node, pads=pads, auto_pad=None), places))
    return tuple(found) if len(found) > 1 else ()


def _split_each_channel(kernels: KernelGraph, node: onnx.NodeProto, shares: int) -> tuple[Share, ...]:
    """What computes every channel from the same one of its operand, channels first."""
    if integer(node, "channels_last"):
        return ()
    names = (node.input[0], node.output[0])
    ranges = even_ranges(shape_of(kernels, node.output[0])[1], shares)
    parts = (share_of(kernels, node, dict.fromkeys(names, (1, *each))) for each in ranges)
    return tuple(parts) if len(ranges) > 1 else ()


def _split_elementwise(kernels: KernelGraph, node: onnx.NodeProto, shares: int) -> tuple[Share, ...]:
    """Splits on the first axis that is not 1, where all scales and zero points are one number."""
    shape = shape_of(kernels, node.output[0])
    axis = _first_axis(shape)
    operands = (0, 3) if node.op_type in ("QLinearAdd", "QLinearMul") else (0,)
    parameters = [name for position, name in enumerate(node.input) if name and position not in operands]
    if axis is None or not all(_is_one_number(kernels, name) for name in parameters):
        return ()
    ranges = even_ranges(shape[axis], shares)
    return tuple(broadcast_share(kernels, node, len(shape) - axis, begin, end) for begin, end in ranges)


def _first_axis(shape: Sequence[int]) -> int | None:
    return next((i for i, size in enumerate(shape) if size > 1), None)


def _split_conversion(kernels: KernelGraph, node: onnx.NodeProto, shares: int) -> tuple[Share, ...]:
    """QuantizeLinear and its reverse, also with a scale for each channel; not with blocks of scales."""
    if _is_one_number(kernels, node.input[1]):
        return _split_elementwise(kernels, node, shares)
    shape = shape_of(kernels, node.output[0])
    axis, own = _first_axis(shape), integer(node, "axis", 1) % len(shape)
    if axis is None or integer(node, "block_size"):
        return ()
    names, size = (node.input[0], node.output[0]), shape[axis]
    return tuple(
        share_of(
            kernels,
            node,
            {
                **(_parameters(kernels, node, size, begin, end) if axis == own else {}),
                **dict.fromkeys(names, (axis, begin, end)),
            },
        )
        for begin, end in even_ranges(size, shares)
    )


def _split_concat(kernels: KernelGraph, node: onnx.NodeProto, shares: int) -> tuple[Share, ...]:
    """Splits on the first axis that is not 1, unless that is the one along which tensors are joined."""
    shape = shape_of(kernels, node.output[0])
    axis, names = _first_axis(shape), (*node.input[2::3], node.output[0])
    if axis is None or axis == integer(node, "axis") % len(shape):
        return ()
    return tuple(
        share_of(kernels, node, dict.fromkeys(names, (axis, begin, end)))
        for begin, end in even_ranges(shape[axis], shares)
    )


def _split_product(kernels: KernelGraph, node: onnx.NodeProto, shares: int) -> tuple[Share, ...]:
    """A product with a constant matrix: by rows of the left operand."""
    source, result = shape_of(kernels, node.input[0]), shape_of(kernels, node.output[0])
    axis = _first_axis(result)
    if axis is None or axis == len(result) - 1 or len(source) != len(result) or not _has_free_rows(kernels, node):
        return ()
    return tuple(
        share_of(kernels, node, dict.fromkeys((node.input[0], node.output[0]), (axis, begin, end)))
        for begin, end in even_ranges(result[axis], shares, 4)
    )


def _split_gemm(kernels: KernelGraph, node: onnx.NodeProto, shares: int) -> tuple[Share, ...]:
    """One row times a transposed matrix: a slice of results is a slice of the matrix' rows."""
    matrix, result = kernels.weights.get(node.input[3]), shape_of(kernels, node.output[0])
    if matrix is None or not integer(node, "transB") or integer(node, "transA"):
        return ()
    if any(name in kernels.tensors for name in node.input[1:]) or len(matrix) != result[1]:
        return ()
    bias = [name for name in node.input[6:7] if name and shape_of(kernels, name) == (1, result[1])]  # one row
    return tuple(
        share_of(
            kernels,
            node,
            {
                **_parameters(kernels, node, result[1], begin, end),
                **dict.fromkeys((node.output[0], *bias), (1, begin, end)),
            },
        )
        for begin, end in even_ranges(result[1], shares, _PACKED_CHANNELS)
    )


RULES: Mapping[tuple[str, str], Rule] = {
    ("", "QLinearConv"): _split_convolution,
    (_CONTRIB, "QLinearConv"): _split_convolution,
    ("", "ConvInteger"): _split_convolution,
    (_CONTRIB, "NhwcMaxPool"): _split_pool,
    (_CONTRIB, "QLinearAveragePool"): _split_pool,
    (_CONTRIB, "QLinearGlobalAveragePool"): _split_each_channel,
    (_CONTRIB, "QLinearConcat"): _split_concat,
    (_CONTRIB, "QGemm"): _split_gemm,
    **{("", name): _split_product for name in ("QLinearMatMul", "MatMulInteger")},
    (_CONTRIB, "MatMulIntegerToFloat"): _split_product,
    **{
        (_CONTRIB, name): _split_elementwise
        for name in ("QLinearAdd", "QLinearMul", "QLinearSigmoid", "QLinearLeakyRelu")
    },
    **{
        (domain, name): _split_conversion
        for domain in ("", _CONTRIB)
        for name in ("QuantizeLinear", "DequantizeLinear")
    },
}
"""At batch 1, by domain and type."""
TYPES = frozenset(kind for _, kind in RULES)
"""Types that are split by images where there are several and `keeps_images_apart` allows it."""
