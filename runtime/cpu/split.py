"""Divides one optimized node among several cores: contiguous slices of its inputs, weights and outputs.

At batch 1 a node is divided by channels (a slice of channels is contiguous, and so is a slice of channel blocks in the
NCHWc layout); at larger batches by images. Nodes without channels are divided along their leading axes
(`split_leading`). Nodes without a rule here or in `split_quantized` run whole. To add an operator, add a rule to
`_CHANNEL_RULES` or its type to `_BATCH_PARALLEL`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import numpy as np
import onnx

from iosched.models.node_attributes import integer, integers, with_attributes
from iosched.runtime.cpu import split_quantized
from iosched.runtime.cpu.kernel_graph import KernelGraph
from iosched.runtime.cpu.slicing import (
    Share,
    along,
    broadcast_share,
    even_ranges,
    neighbours,
    shape_of,
    share_of,
)  # fmt: skip

_NCHWC = "com.microsoft.nchwc"
_ELEMENTWISE = frozenset({
    "Relu", "LeakyRelu", "Clip", "Sigmoid", "Tanh", "HardSwish", "HardSigmoid", "Elu", "Selu", "Gelu", "QuickGelu",
    "FastGelu", "BiasGelu", "Softplus", "Softsign", "Mish", "Celu", "Erf", "Exp", "Log", "Neg", "Abs", "Sqrt",
    "Reciprocal", "Floor", "Ceil", "Round", "Sign", "Sin", "Cos", "Identity", "Cast", "Add", "Sub", "Mul", "Div", "Max",
    "Min", "Sum", "Pow", "PRelu", "Where", "Not", "And", "Or", "Equal", "Less", "LessOrEqual", "Greater",
    "GreaterOrEqual",
})  # fmt: skip
_BATCH_PARALLEL = frozenset({
    "Conv", "FusedConv", "MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "ReorderInput",
    "ReorderOutput", "BatchNormalization", "LRN", "Concat", "Gemm", "FusedGemm", "Transpose",
    *(kind for _, kind in split_quantized.AT_BATCH_ONE),
})  # fmt: skip
_OPERANDS_WITH_IMAGES = {"Conv": (0, 3), "FusedConv": (0, 3), "Gemm": (0, 2), "FusedGemm": (0, 2)}
_POOLS = frozenset({"MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"})


def split(kernels: KernelGraph, index: int, shares: int) -> tuple[Share, ...]:
    """Divide node `index` into at most `shares` shares of nearly equal size; empty if impossible."""
    node = kernels.nodes[index]
    if shares < 2 or len(node.output) != 1 or not _is_static(kernels, index):
        return ()
    shape = shape_of(kernels, node.output[0])
    if not shape or 0 in shape:
        return ()
    if not node.domain and node.op_type in ("Pad", "Slice"):
        return _split_pad_or_slice(kernels, node, shares)
    if leading := split_leading(kernels, node, shares):
        return leading
    rule = _CHANNEL_RULES.get((node.domain, node.op_type))
    if (
        shape[0] > 1
        and rule is not _split_elementwise
        and (node.domain, node.op_type) not in split_quantized.AT_ANY_BATCH
    ):
        return _split_batch(kernels, node, shares)
    return rule(kernels, node, shares) if rule else ()


def split_sum(kernels: KernelGraph, index: int, shares: int) -> tuple[tuple[Share, ...], ...]:
    """Node `index` as parts that are summed: for each step, a share for each of `shares` cores; empty if it has none.

    The shares of a step may read everything that the previous step wrote.
    """
    node = kernels.nodes[index]
    parts = kernels.parts.get(node.output[0]) if (node.domain, node.op_type) == (_NCHWC, "Conv") else None
    if parts is None or len(parts.nodes) != shares:
        return ()
    shape = shape_of(kernels, node.input[0])
    first = tuple(
        Share(part, {node.input[0]: along(shape, 1, begin, end)})
        for part, (begin, end) in zip(parts.nodes, pairwise(parts.edges), strict=True)
    )
    return (first, *(_split_elementwise(kernels, each, shares) for each in parts.then))


def _is_static(kernels: KernelGraph, index: int) -> bool:
    names = (*kernels.reads[index], *kernels.nodes[index].output)
    return all(kernels.tensors[name].is_static for name in names)


def _split_batch(kernels: KernelGraph, node: onnx.NodeProto, shares: int) -> tuple[Share, ...]:
    if node.op_type not in _BATCH_PARALLEL or not _keeps_images_separate(kernels, node):
        return ()
    result = shape_of(kernels, node.output[0])
    positions = _operands_with_images(node)
    operands = [node.input[at] for at in positions if at < len(node.input) and node.input[at]]
    shapes = {name: shape_of(kernels, name) for name in operands}
    batched = [name for name, shape in shapes.items() if len(shape) == len(result) and shape[0] == result[0]]
    if not set(batched).isdisjoint(name for at, name in enumerate(node.input) if at not in positions):
        return ()  # read both in part and whole, but a share has one slice of a tensor
    return tuple(
        share_of(kernels, node, dict.fromkeys((*batched, node.output[0]), (0, begin, end)))
        for begin, end in even_ranges(result[0], shares)
    )


def _operands_with_images(node: onnx.NodeProto) -> Sequence[int]:
    """Positions of operands whose first axis is the batch, if they have the rank of the result.

    Sizes alone are ambiguous: the numbers of filters and images may be equal.
    """
    return range(len(node.input)) if node.op_type == "Concat" else _OPERANDS_WITH_IMAGES.get(node.op_type, (0,))


def _keeps_images_separate(kernels: KernelGraph, node: onnx.NodeProto) -> bool:
    if node.op_type in ("Gemm", "FusedGemm"):
        return not integer(node, "transA")
    if node.op_type == "Transpose":
        return integers(node, "perm")[:1] == (0,)
    return node.op_type != "Concat" or integer(node, "axis") % len(shape_of(kernels, node.output[0])) != 0


def _split_convolution(kernels: KernelGraph, node: onnx.NodeProto, shares: int) -> tuple[Share, ...]:
    """By output channels; grouped convolutions by groups, with their input and output channels."""
    results = shape_of(kernels, node.output[0])[1]
    groups = integer(node, "group", 1)
    step = kernels.channel_block if node.domain == _NCHWC else 4
    if groups > 1:
        return _split_groups(kernels, node, even_ranges(groups, shares, step if groups == results else 1))
    if node.input[0] in _summed(node):
        return ()  # summand in part and image whole, but a share has one slice of a tensor
    found = [
        share_of(kernels, node, _places_of_results(node, begin, end))
        for begin, end in even_ranges(results, shares, step)
    ]
    return tuple(found) if len(found) > 1 else ()


def _places_of_results(node: onnx.NodeProto, begin: int, end: int) -> dict[str, tuple[int, int, int]]:
    return {
        **dict.fromkeys((node.output[0], *_summed(node)), (1, begin, end)),
        **dict.fromkeys(filter(None, node.input[1:3]), (0, begin, end)),
    }


def _split_groups(kernels: KernelGraph, node: onnx.NodeProto, ranges: Sequence[tuple[int, int]]) -> tuple[Share, ...]:
    groups = integer(node, "group", 1)
    results, taken = (shape_of(kernels, name)[1] // groups for name in (node.output[0], node.input[0]))
    block = kernels.channel_block if node.domain == _NCHWC else 1
    cuts = [begin * each for begin, _ in ranges for each in (results, taken)]
    if len(ranges) < 2 or any(cut % block for cut in cuts):
        return ()
    found = []
    for begin, end in ranges:
        places = _places_of_results(node, begin * results, end * results)
        places[node.input[0]] = (1, begin * taken, end * taken)
        found.append(share_of(kernels, with_attributes(node, group=end - begin), places))
    return tuple(found)


def _summed(node: onnx.NodeProto) -> tuple[str, ...]:
    return tuple(name for name in node.input[3:4] if name)


def _split_channels(kernels: KernelGraph, node: onnx.NodeProto, shares: int) -> tuple[Share, ...]:
    """Pooling, and batch normalization with constants: each channel is independent."""
    source, result = node.input[0], node.output[0]
    channels = shape_of(kernels, result)[1]
    step = kernels.channel_block if node.domain == _NCHWC else 1
    ranges = even_ranges(channels, shares, step)
    if len(ranges) < 2 or shape_of(kernels, source)[1] != channels:
        return ()
    parameters = dict.fromkeys(node.input[1:], 0)
    axes = {**parameters, source: 1, result: 1}
    return tuple(share_of(kernels, node, {name: (axis, *each) for name, axis in axes.items()}) for each in ranges)


def _split_reorder(kernels: KernelGraph, node: onnx.NodeProto, shares: int) -> tuple[Share, ...]:
    """Layout conversion by blocks of channels; the plain side may end in an incomplete block."""
    if integer(node, "channels_last"):
        return ()
    source, result = shape_of(kernels, node.input[0]), shape_of(kernels, node.output[0])
    plain = min(source[1], result[1])
    ranges = even_ranges(plain, shares, kernels.channel_block)
    if len(ranges) < 2:
        return ()
    found = []
    for begin, end in ranges:
        padded_end = -(-end // kernels.channel_block) * kernels.channel_block
        ends = [min(shape[1], padded_end) if shape[1] != plain else end for shape in (source, result)]
        places = {node.input[0]: (1, begin, ends[0]), node.output[0]: (1, begin, ends[1])}
        changed = with_attributes(node, channels=end - begin) if node.op_type == "ReorderOutput" else node
        found.append(share_of(kernels, changed, places))
    return tuple(found)


def _split_elementwise(kernels: KernelGraph, node: onnx.NodeProto, shares: int) -> tuple[Share, ...]:
    """On the first axis that is not 1; operands that are broadcast along it are used whole."""
    shape = shape_of(kernels, node.output[0])
    axis = next((i for i, size in enumerate(shape) if size > 1), None)
    if axis is None:
        return ()
    ranges = even_ranges(shape[axis], shares, _elementwise_step(kernels, node, axis, shares))
    return tuple(broadcast_share(kernels, node, len(shape) - axis, begin, end) for begin, end in ranges)


def _elementwise_step(kernels: KernelGraph, node: onnx.NodeProto, axis: int, shares: int) -> int:
    """Cut between blocks of channels like neighbouring operators, so that no core waits for another."""
    shape, block = shape_of(kernels, node.output[0]), kernels.channel_block
    is_image = len(shape) == 4 and axis == 1 and shape[1] % block == 0 and shape[1] >= shares * block
    nearby = neighbours(kernels, node)
    return block if is_image and (not nearby or any(each.domain == _NCHWC for each in nearby)) else 1


def _split_pad_or_slice(kernels: KernelGraph, node: onnx.NodeProto, shares: int) -> tuple[Share, ...]:
    """Pad and Slice, on the first axis that is not 1, if they leave it unchanged."""
    source, result = shape_of(kernels, node.input[0]), shape_of(kernels, node.output[0])
    axis = next((i for i, size in enumerate(result) if size > 1), None)
    if axis is None or source[: axis + 1] != result[: axis + 1]:
        return ()
    changed = _changed_axes(kernels, node, len(result))
    if changed is None or not changed.isdisjoint(range(axis + 1)):
        return ()
    return tuple(
        share_of(kernels, node, dict.fromkeys((node.input[0], node.output[0]), (axis, begin, end)))
        for begin, end in even_ranges(result[axis], shares, _elementwise_step(kernels, node, axis, shares))
    )


def _changed_axes(kernels: KernelGraph, node: onnx.NodeProto, rank: int) -> set[int] | None:
    constants = [kernels.weights.get(name) for name in node.input[1:] if name]
    if not constants or any(array is None for array in constants):
        return None
    if node.op_type == "Slice":
        axes = kernels.weights[node.input[3]] if any(node.input[3:4]) else np.arange(rank)
        return {int(axis) % rank for axis in axes.reshape(-1)}
    pads = kernels.weights[node.input[1]]
    return {i for i in range(rank) if any(pads[i::rank])} if pads.size == 2 * rank and not any(node.input[3:]) else None


def _split_gemm(kernels: KernelGraph, node: onnx.NodeProto, shares: int) -> tuple[Share, ...]:
    """One row times a transposed weight: a slice of outputs is a slice of the weight's rows."""
    weight = kernels.weights.get(node.input[1])
    shape = shape_of(kernels, node.output[0])
    if weight is None or not integer(node, "transB") or integer(node, "transA"):
        return ()
    if len(node.input) > 2 and node.input[2] not in kernels.weights:
        return ()
    names = [name for name in node.input[1:] if name]
    sliced = {name: kernels.weights[name].reshape(-1) if name != node.input[1] else weight for name in names}
    if any(len(array) not in (1, shape[1]) for array in sliced.values()):
        return ()
    return tuple(
        Share(
            node,
            {node.output[0]: along(shape, 1, begin, end)},
            {name: array[begin:end] for name, array in sliced.items() if len(array) == shape[1]},
        )
        for begin, end in even_ranges(shape[1], shares, 16)
    )


_Rule = Callable[[KernelGraph, onnx.NodeProto, int], tuple[Share, ...]]
_CHANNEL_RULES: Mapping[tuple[str, str], _Rule] = {
    (_NCHWC, "Conv"): _split_convolution,
    ("", "Conv"): _split_convolution,
    ("com.microsoft", "FusedConv"): _split_convolution,
    (_NCHWC, "ReorderInput"): _split_reorder,
    (_NCHWC, "ReorderOutput"): _split_reorder,
    ("", "Gemm"): _split_gemm,
    ("com.microsoft", "FusedGemm"): _split_gemm,
    ("", "BatchNormalization"): _split_channels,
    **split_quantized.AT_BATCH_ONE,
    **split_quantized.AT_ANY_BATCH,
    **{(domain, pool): _split_channels for domain in ("", _NCHWC) for pool in _POOLS},
    **{(domain, name): _split_elementwise for domain in ("", "com.microsoft") for name in _ELEMENTWISE},
}


_SOFTMAX_BY_AXIS_OPSET = 13  # before, all axes from `axis` on are normalized together
_ROWS_AT_ONCE = 4  # product kernels compute sets of rows, so parts are multiples of them


def split_leading(kernels: KernelGraph, node: onnx.NodeProto, shares: int) -> tuple[Share, ...]:
    """At most `shares` shares of nearly equal size along the first axis that is not 1; empty without a rule.

    Args:
        node: its only result and its operands have known sizes.
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
    """A matrix product: each share reads some rows of the left matrix and all of the right one."""
    left, right = (shape_of(kernels, name) for name in node.input)
    result = shape_of(kernels, node.output[0])
    is_separable = len(left) == len(result) == axis + 2 and len(right) > 1 and node.input[0] != node.input[1]
    if not is_separable or integer(node, "transA"):
        return ()
    step = _ROWS_AT_ONCE if result[axis] >= _ROWS_AT_ONCE * shares else 1
    return tuple(
        broadcast_share(kernels, node, 2, begin, end, whole=node.input[1])
        for begin, end in even_ranges(result[axis], shares, step)
    )


def _product(kernels: KernelGraph, node: onnx.NodeProto) -> int:
    """The two matrix axes; all axes if an operand is a vector, or its batch axis follows its rows."""
    rank = len(shape_of(kernels, node.output[0]))
    is_plain = not any(integer(node, key) for key in ("transBatchA", "transBatchB"))
    return 2 if is_plain and min(len(shape_of(kernels, name)) for name in node.input) > 1 else rank


def _softmax(kernels: KernelGraph, node: onnx.NodeProto) -> int:
    default = -1 if kernels.opsets.get("", 0) >= _SOFTMAX_BY_AXIS_OPSET else 1
    return _axes_from(kernels, node, default)


def _normalization(kernels: KernelGraph, node: onnx.NodeProto) -> int:
    return _axes_from(kernels, node, -1)


def _axes_from(kernels: KernelGraph, node: onnx.NodeProto, default: int) -> int:
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
"""For each kind of node, a rule for the number of last axes of its result that cannot be divided."""
