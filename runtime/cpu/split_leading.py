"""Splits a node between the leading axes of its result, where it computes what lies behind them apart.

So are the heads of an attention, the rows that are normalized, and the images of a batch, for one operator as for
another: a rule tells only how many of the last axes belong together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import onnx

from iosched.models.node_attributes import integer
from iosched.runtime.cpu.kernel_graph import KernelGraph
from iosched.runtime.cpu.shares import Share, broadcast_share, even_ranges, shape_of

_SOFTMAX_BY_AXIS_OPSET = 13  # before it, all axes from the given one on are normalized together
_ROWS_AT_ONCE = 4  # kernels for products take rows several at once: a part ends with such a set where it can


def split_leading(kernels: KernelGraph, node: onnx.NodeProto, shares: int) -> tuple[Share, ...]:
    """At most `shares` shares of nearly equal size along the first axis that is not 1; () where nothing is known of it.

    Args:
        kernels: the graph of the node.
        node: has one result, of known size, as all that it reads.
        shares: how many are wanted.
    """
    rule = _TOGETHER.get((node.domain, node.op_type))
    shape = shape_of(kernels, node.output[0])
    axis = next((i for i, size in enumerate(shape) if size > 1), len(shape))
    if rule is None or axis >= len(shape) - rule(kernels, node):
        return _split_rows(kernels, node, axis, shares) if rule is _product else ()
    return tuple(
        broadcast_share(kernels, node, len(shape) - axis, begin, end) for begin, end in even_ranges(shape[axis], shares)
    )


def _split_rows(kernels: KernelGraph, node: onnx.NodeProto, axis: int, shares: int) -> tuple[Share, ...]:
    """A product of one matrix by another: some rows of the left one each, and all of the right one."""
    left, right = (shape_of(kernels, name) for name in node.input)
    result = shape_of(kernels, node.output[0])
    is_apart = len(left) == len(result) == axis + 2 and len(right) > 1 and node.input[0] != node.input[1]
    if not is_apart or integer(node, "transA"):
        return ()
    step = _ROWS_AT_ONCE if result[axis] >= _ROWS_AT_ONCE * shares else 1
    return tuple(
        broadcast_share(kernels, node, 2, begin, end, whole=node.input[1])
        for begin, end in even_ranges(result[axis], shares, step)
    )


def _product(kernels: KernelGraph, node: onnx.NodeProto) -> int:
    """Two axes, those of matrices; all where an operand is a vector, or has its stack behind its rows."""
    rank = len(shape_of(kernels, node.output[0]))
    is_plain = not any(integer(node, key) for key in ("transBatchA", "transBatchB"))
    return 2 if is_plain and min(len(shape_of(kernels, name)) for name in node.input) > 1 else rank


def _softmax(kernels: KernelGraph, node: onnx.NodeProto) -> int:
    default = -1 if kernels.opsets.get("", 0) >= _SOFTMAX_BY_AXIS_OPSET else 1
    return _behind(kernels, node, default)


def _normalization(kernels: KernelGraph, node: onnx.NodeProto) -> int:
    return _behind(kernels, node, -1)


def _behind(kernels: KernelGraph, node: onnx.NodeProto, default: int) -> int:
    """How many axes there are from the one that the attribute names, or else from `default`."""
    rank = len(shape_of(kernels, node.output[0]))
    return rank - integer(node, "axis", default) % rank


_TOGETHER: Mapping[tuple[str, str], Callable[[KernelGraph, onnx.NodeProto], int]] = {
    ("", "MatMul"): _product,
    ("com.microsoft", "FusedMatMul"): _product,
    ("", "Softmax"): _softmax,
    ("", "LogSoftmax"): _softmax,
    ("", "LayerNormalization"): _normalization,
    ("", "SimplifiedLayerNormalization"): _normalization,
    ("", "RMSNormalization"): _normalization,
}
"""For each kind of node a rule that tells how many of the last axes of its result belong together."""
