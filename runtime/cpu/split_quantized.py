"""Division of integer operators among cores; all parts compute the same bits as the whole.

onnxruntime keeps integer images channels-last, so at batch 1 rows are contiguous, not channels: operators are
divided by rows of their result, and windows also read rows of their neighbours. DynamicQuantizeLinear and operators
that contain it have no rule: they need the minimum and maximum of all numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

import onnx

from iosched.models.node_attributes import integer, integers, padding, with_attributes
from iosched.runtime.cpu.kernel_graph import KernelGraph
from iosched.runtime.cpu.slicing import RowWindow, Share, broadcast_share, even_ranges, shape_of, share_of

Rule = Callable[[KernelGraph, onnx.NodeProto, int], tuple[Share, ...]]

_CONTRIB = "com.microsoft"
_PACKED_CHANNELS = 16  # computed together by kernels
_PRODUCTS = {"QLinearMatMul": (3, (1, 2, 6, 7)), "MatMulInteger": (1, (2,)), "MatMulIntegerToFloat": (1, (2, 4))}
"""For products, the positions of the matrix, and of scales and zero points of everything else."""


def _split_convolution(kernels: KernelGraph, node: onnx.NodeProto, shares: int) -> tuple[Share, ...]:
    """By rows of images; single pixels and channels-first images by output channels."""
    weight = kernels.weights.get(node.input[3 if node.op_type == "QLinearConv" else 1])
    computed = [name for name in node.input[1:] if name in kernels.tensors]
    if weight is None or not all(_is_scalar(kernels, name) for name in computed):
        return ()
    is_last = bool(integer(node, "channels_last"))
    if is_last and prod(shape_of(kernels, node.input[0])[1:-1]) > 1:
        return _split_rows(kernels, node, weight.shape[2:], shares)
    if integer(node, "group", 1) > 1:
        return ()
    result = shape_of(kernels, node.output[0])
    axis, found = len(result) - 1 if is_last else 1, []
    for begin, end in even_ranges(len(weight), shares, _PACKED_CHANNELS):
        names = [name for name in node.input[1:] if name and shape_of(kernels, name)[:1] == (len(weight),) != (1,)]
        places = {**dict.fromkeys(names, (0, begin, end)), node.output[0]: (axis, begin, end)}
        found.append(share_of(kernels, node, places))
    return tuple(found) if len(found) > 1 else ()


def _split_pool(kernels: KernelGraph, node: onnx.NodeProto, shares: int) -> tuple[Share, ...]:
    if integer(node, "ceil_mode") or not (node.op_type == "NhwcMaxPool" or integer(node, "channels_last")):
        return ()
    return _split_rows(kernels, node, integers(node, "kernel_shape"), shares)


def _split_rows(kernels: KernelGraph, node: onnx.NodeProto, kernel: Sequence[int], shares: int) -> tuple[Share, ...]:
    """A channels-last node with windows of `kernel`: each part reads the rows it needs and pads less."""
    source, result = shape_of(kernels, node.input[0]), shape_of(kernels, node.output[0])
    pads, axes, ones = padding(node, source[1:-1], kernel), len(kernel), (1,) * len(kernel)
    extent = (kernel[0] - 1) * integers(node, "dilations", ones)[0] + 1
    window = RowWindow(extent, integers(node, "strides", ones)[0], pads[0])
    found = []
    for begin, end in even_ranges(result[1], shares):
        first, last = window.rows((begin, end))
        low, high = max(first, 0), min(last, source[1])
        if low >= high:
            return ()
        own = [*pads]
        own[0], own[axes] = low - first, last - high
        places = {node.input[0]: (1, low, high), node.output[0]: (1, begin, end)}
        found.append(share_of(kernels, with_attributes(node, pads=own, auto_pad=None), places))
    return tuple(found) if len(found) > 1 and min(pads) >= 0 else ()


def _split_elementwise(kernels: KernelGraph, node: onnx.NodeProto, shares: int) -> tuple[Share, ...]:
    shape = shape_of(kernels, node.output[0])
    axis = _first_axis(shape)
    operands = (0, 3) if node.op_type in ("QLinearAdd", "QLinearMul") else (0,)
    parameters = [name for position, name in enumerate(node.input) if name and position not in operands]
    if axis is None or not all(_is_scalar(kernels, name) for name in parameters):
        return ()
    ranges = even_ranges(shape[axis], shares)
    return tuple(broadcast_share(kernels, node, len(shape) - axis, begin, end) for begin, end in ranges)


def _split_concat(kernels: KernelGraph, node: onnx.NodeProto, shares: int) -> tuple[Share, ...]:
    shape = shape_of(kernels, node.output[0])
    axis, names = _first_axis(shape), (*node.input[2::3], node.output[0])
    if axis is None or axis == integer(node, "axis") % len(shape):
        return ()
    ranges = even_ranges(shape[axis], shares)
    return tuple(share_of(kernels, node, dict.fromkeys(names, (axis, *each))) for each in ranges)


def _split_product(kernels: KernelGraph, node: onnx.NodeProto, shares: int) -> tuple[Share, ...]:
    """By rows of the left operand, with a constant matrix and one scale and zero point for all rows."""
    source, result = shape_of(kernels, node.input[0]), shape_of(kernels, node.output[0])
    matrix, parameters = _PRODUCTS[node.op_type]
    weight, axis = kernels.weights.get(node.input[matrix]), _first_axis(result)
    if weight is None or weight.ndim != 2 or axis is None or axis == len(result) - 1 or len(source) != len(result):
        return ()
    if not all(_is_scalar(kernels, node.input[at]) for at in parameters if at < len(node.input)):
        return ()
    names, step = (node.input[0], node.output[0]), 4 if axis == len(result) - 2 else 1
    ranges = even_ranges(result[axis], shares, step)
    return tuple(share_of(kernels, node, dict.fromkeys(names, (axis, *each))) for each in ranges)


def _split_row(kernels: KernelGraph, node: onnx.NodeProto, shares: int) -> tuple[Share, ...]:
    """One row times a transposed matrix: a slice of results is a slice of the matrix's rows."""
    matrix, result = kernels.weights.get(node.input[3]), shape_of(kernels, node.output[0])
    if matrix is None or not integer(node, "transB") or integer(node, "transA"):
        return ()
    if result[0] > 1 or any(name in kernels.tensors for name in node.input[1:]):
        return ()
    names = [name for name in node.input[1:] if name and shape_of(kernels, name)[:1] == (result[1],) != (1,)]
    bias = [name for name in node.input[6:7] if name and shape_of(kernels, name) == (1, result[1])]
    return tuple(
        share_of(kernels, node, {**dict.fromkeys(names, (0, *at)), **dict.fromkeys((node.output[0], *bias), (1, *at))})
        for at in even_ranges(result[1], shares, _PACKED_CHANNELS)
    )


def _is_scalar(kernels: KernelGraph, name: str) -> bool:
    return not name or prod(shape_of(kernels, name)) == 1


def _first_axis(shape: Sequence[int]) -> int | None:
    return next((axis for axis, size in enumerate(shape) if size > 1), None)


AT_ANY_BATCH: Mapping[tuple[str, str], Rule] = {
    **{(_CONTRIB, f"QLinear{name}"): _split_elementwise for name in ("Add", "Mul", "Sigmoid", "LeakyRelu")},
    **{
        (domain, name): _split_elementwise
        for domain in ("", _CONTRIB)
        for name in ("QuantizeLinear", "DequantizeLinear")
    },
    (_CONTRIB, "QLinearConcat"): _split_concat,
    ("", "QLinearMatMul"): _split_product,
    ("", "MatMulInteger"): _split_product,
    (_CONTRIB, "MatMulIntegerToFloat"): _split_product,
    (_CONTRIB, "QGemm"): _split_row,
}
"""Rules by domain and type."""
AT_BATCH_ONE: Mapping[tuple[str, str], Rule] = {
    ("", "QLinearConv"): _split_convolution,
    (_CONTRIB, "QLinearConv"): _split_convolution,
    ("", "ConvInteger"): _split_convolution,
    (_CONTRIB, "NhwcMaxPool"): _split_pool,
    (_CONTRIB, "QLinearAveragePool"): _split_pool,
}
"""Rules at batch 1; larger batches are divided by images."""
