"""Splits one optimized node over several cores: contiguous slices of its inputs, weights and outputs.

At batch 1 a node is split by channels (a slice of channels is contiguous, and in the NCHWc layout so is a slice of
blocks of channels); at larger batches by images. A node without a rule here runs whole. To teach it an operator, add a
rule to `_CHANNEL_RULES` or its type to `_BATCH_PARALLEL`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import prod

import numpy as np
import onnx

from iosched.models.node_attributes import assign, integer
from iosched.runtime.cpu.kernel_graph import KernelGraph

_NCHWC = "com.microsoft.nchwc"
_ELEMENTWISE = frozenset({
    "Relu", "LeakyRelu", "Clip", "Sigmoid", "Tanh", "HardSwish", "HardSigmoid", "Elu", "Selu", "Gelu", "QuickGelu",
    "Erf", "Exp", "Neg", "Abs", "Sqrt", "Identity", "Cast", "Add", "Sub", "Mul", "Div", "Max", "Min", "Sum", "Pow",
    "PRelu",
})  # fmt: skip
_BATCH_PARALLEL = _ELEMENTWISE | {
    "Conv", "FusedConv", "MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "ReorderInput",
    "ReorderOutput", "BatchNormalization", "LRN", "Concat", "Gemm", "FusedGemm", "MatMul", "FusedMatMul", "Softmax",
    "Flatten",
}  # fmt: skip
_POOLS = frozenset({"MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"})


@dataclass(frozen=True)
class Slice:
    """A contiguous part of a tensor: `start` counts elements from its beginning, `shape` is the part's shape."""

    start: int
    shape: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Share:
    """One node's share of the work.

    Attributes:
        node: the node to run, with attributes adjusted to the slices.
        slices: for each computed tensor that it reads or writes in part, which part; others are used whole.
        weights: for each constant that it reads in part, the part.
    """

    node: onnx.NodeProto
    slices: Mapping[str, Slice]
    weights: Mapping[str, np.ndarray] = field(default_factory=dict)


def split(kernels: KernelGraph, index: int, shares: int) -> tuple[Share, ...]:
    """Splits node `index` into at most `shares` shares of nearly equal size; the empty tuple where it cannot be."""
    node = kernels.nodes[index]
    if shares < 2 or len(node.output) != 1 or not _is_static(kernels, index):
        return ()
    shape = _shape(kernels, node.output[0])
    if not shape or 0 in shape:
        return ()
    if not node.domain and node.op_type in ("Pad", "Slice"):
        return _split_beside_windows(kernels, node, shares)
    if shape[0] > 1:
        return _split_batch(kernels, node, shares)
    rule = _CHANNEL_RULES.get((node.domain, node.op_type))
    return rule(kernels, node, shares) if rule else ()


def split_sum(kernels: KernelGraph, index: int, shares: int) -> tuple[tuple[Share, ...], ...]:
    """Node `index` as parts that are summed: for each step, a share for each of `shares` cores; () where it has none.

    The shares of a step may read what all shares of the step before wrote.
    """
    node = kernels.nodes[index]
    parts = kernels.parts.get(node.output[0]) if (node.domain, node.op_type) == (_NCHWC, "Conv") else None
    if parts is None or len(parts.nodes) != shares:
        return ()
    shape = _shape(kernels, node.input[0])
    first = tuple(
        Share(part, {node.input[0]: _along(shape, 1, begin, end)})
        for part, (begin, end) in zip(parts.nodes, pairwise(parts.edges), strict=True)
    )
    return (first, *(_split_elementwise(kernels, each, shares) for each in parts.then))


def _is_static(kernels: KernelGraph, index: int) -> bool:
    names = (*kernels.reads[index], *kernels.nodes[index].output)
    return all(kernels.tensors[name].is_static for name in names)


def _shape(kernels: KernelGraph, name: str) -> tuple[int, ...]:
    return kernels.tensors[name].shape or ()


def _with_attribute(node: onnx.NodeProto, key: str, value: int) -> onnx.NodeProto:
    changed = onnx.NodeProto()
    changed.CopyFrom(node)
    assign(changed, **{key: value})
    return changed


def _ranges(total: int, shares: int, step: int = 1) -> list[tuple[int, int]]:
    """`shares` ranges over `total` at multiples of `step`, as equal as can be; fewer where there are too few steps."""
    steps = -(-total // step)
    shares = min(shares, steps)
    edges = [min(total, (steps * i // shares) * step) for i in range(shares + 1)]
    return list(pairwise(edges))


def _along(shape: tuple[int, ...], axis: int, begin: int, end: int) -> Slice:
    """The slice [begin, end) on `axis`; contiguous because every axis before it has size 1."""
    return Slice(begin * prod(shape[axis + 1 :]), (*shape[:axis], end - begin, *shape[axis + 1 :]))


def _split_batch(kernels: KernelGraph, node: onnx.NodeProto, shares: int) -> tuple[Share, ...]:
    if node.op_type not in _BATCH_PARALLEL or not _keeps_images_apart(kernels, node):
        return ()
    out = _shape(kernels, node.output[0])
    batched = [
        name for name in (*node.input, *node.output)
        if name in kernels.tensors and len(_shape(kernels, name)) == len(out) and _shape(kernels, name)[0] == out[0]
    ]  # fmt: skip
    computed = [name for name in node.input if name in kernels.tensors]
    if node.op_type not in _ELEMENTWISE and any(name not in batched for name in computed):
        return ()
    return tuple(
        Share(node, {name: _along(_shape(kernels, name), 0, begin, end) for name in batched})
        for begin, end in _ranges(out[0], shares)
    )


def _keeps_images_apart(kernels: KernelGraph, node: onnx.NodeProto) -> bool:
    """Whether row i of the output depends on row i of the inputs alone, with constants used whole."""
    rank = len(_shape(kernels, node.output[0]))
    constants = [name for name in node.input if name in kernels.weights]
    if node.op_type in ("Gemm", "FusedGemm"):
        bias = kernels.weights.get(node.input[2]) if len(node.input) > 2 else None
        in_weights = all(name in kernels.weights for name in node.input[1:])
        return in_weights and not integer(node, "transA") and (bias is None or bias.ndim < 2 or len(bias) == 1)
    if node.op_type in ("MatMul", "FusedMatMul"):
        plain = not any(integer(node, key) for key in ("transA", "transBatchA", "transBatchB"))
        constant = kernels.weights.get(node.input[1])
        return plain and rank > 1 and constant is not None and constant.ndim == 2  # a vector is one row
    if node.op_type in ("Concat", "Softmax"):
        default = -1 if node.op_type == "Softmax" else 0
        return not constants and integer(node, "axis", default) % rank != 0
    if node.op_type == "Flatten":
        return integer(node, "axis", 1) == 1
    if node.op_type in _ELEMENTWISE:
        return all(kernels.weights[n].ndim < rank or kernels.weights[n].shape[0] == 1 for n in constants)
    return True


def _split_convolution(kernels: KernelGraph, node: onnx.NodeProto, shares: int) -> tuple[Share, ...]:
    """Splits by output channels; convolutions in groups by groups, with their channels of input and output alike."""
    results = _shape(kernels, node.output[0])[1]
    groups = integer(node, "group", 1)
    step = kernels.channel_block if node.domain == _NCHWC else 4
    if groups > 1:
        return _split_groups(kernels, node, _ranges(groups, shares, step if groups == results else 1))
    if any(name in kernels.tensors for name in node.input[1:3]):
        return ()
    found = []
    for begin, end in _ranges(results, shares, step):
        constants = {name: kernels.weights[name][begin:end] for name in node.input[1:3] if name in kernels.weights}
        slices = {name: _along(_shape(kernels, name), 1, begin, end) for name in (node.output[0], *_summed(node))}
        found.append(Share(node, slices, constants))
    return tuple(found) if len(found) > 1 else ()


def _split_groups(kernels: KernelGraph, node: onnx.NodeProto, ranges: Sequence[tuple[int, int]]) -> tuple[Share, ...]:
    """Parts that compute these ranges of its groups; none where a block of channels would be cut."""
    groups = integer(node, "group", 1)
    results, taken = (_shape(kernels, name)[1] // groups for name in (node.output[0], node.input[0]))
    block = kernels.channel_block if node.domain == _NCHWC else 1
    cuts = [begin * each for begin, _ in ranges for each in (results, taken)]
    if len(ranges) < 2 or any(cut % block for cut in cuts):
        return ()
    found = []
    for begin, end in ranges:
        constants = {
            name: kernels.weights[name][begin * results : end * results]
            for name in node.input[1:3] if name in kernels.weights
        }  # fmt: skip
        slices = {
            name: _along(_shape(kernels, name), 1, begin * results, end * results)
            for name in (node.output[0], *_summed(node))
        }
        slices[node.input[0]] = _along(_shape(kernels, node.input[0]), 1, begin * taken, end * taken)
        for name in node.input[1:3]:
            if name in kernels.tensors:
                slices[name] = _along(_shape(kernels, name), 0, begin * results, end * results)
        found.append(Share(_with_attribute(node, "group", end - begin), slices, constants))
    return tuple(found)


def _summed(node: onnx.NodeProto) -> tuple[str, ...]:
    """The tensor that a fused convolution adds to its result, where there is one."""
    return tuple(name for name in node.input[3:4] if name)


def _split_channels(kernels: KernelGraph, node: onnx.NodeProto, shares: int) -> tuple[Share, ...]:
    """Pooling, and batch normalization with a constant for each channel: every channel on its own."""
    source, result = node.input[0], node.output[0]
    constants = [name for name in node.input[1:] if name in kernels.weights]
    channels = _shape(kernels, result)[1]
    step = kernels.channel_block if node.domain == _NCHWC else 1
    ranges = _ranges(channels, shares, step)
    if len(ranges) < 2 or _shape(kernels, source)[1] != channels or len(constants) < len(node.input) - 1:
        return ()
    return tuple(
        Share(
            node,
            {name: _along(_shape(kernels, name), 1, begin, end) for name in (source, result)},
            {name: kernels.weights[name][begin:end] for name in constants},
        )
        for begin, end in ranges
    )


def _split_reorder(kernels: KernelGraph, node: onnx.NodeProto, shares: int) -> tuple[Share, ...]:
    """Layout conversion by blocks of channels; the plain side may end in an incomplete block."""
    if integer(node, "channels_last"):
        return ()
    source, result = _shape(kernels, node.input[0]), _shape(kernels, node.output[0])
    plain = min(source[1], result[1])
    ranges = _ranges(plain, shares, kernels.channel_block)
    if len(ranges) < 2:
        return ()
    found = []
    for begin, end in ranges:
        padded_end = -(-end // kernels.channel_block) * kernels.channel_block
        ends = [min(shape[1], padded_end) if shape[1] != plain else end for shape in (source, result)]
        slices = {
            node.input[0]: _along(source, 1, begin, ends[0]),
            node.output[0]: _along(result, 1, begin, ends[1]),
        }
        changed = _with_attribute(node, "channels", end - begin) if node.op_type == "ReorderOutput" else node
        found.append(Share(changed, slices))
    return tuple(found)


def _split_elementwise(kernels: KernelGraph, node: onnx.NodeProto, shares: int) -> tuple[Share, ...]:
    """Splits on the first axis that is not 1; an operand that is repeated along it is used whole."""
    shape = _shape(kernels, node.output[0])
    axis = next((i for i, size in enumerate(shape) if size > 1), None)
    if axis is None:
        return ()
    ranges = _ranges(shape[axis], shares, _elementwise_step(kernels, node, axis, shares))
    return tuple(_broadcast_share(kernels, node, len(shape) - axis, begin, end) for begin, end in ranges)


def _elementwise_step(kernels: KernelGraph, node: onnx.NodeProto, axis: int, shares: int) -> int:
    """Beside operators that are cut between blocks of channels, cuts are there too: then no core waits for another."""
    shape, block = _shape(kernels, node.output[0]), kernels.channel_block
    is_image = len(shape) == 4 and axis == 1 and shape[1] % block == 0 and shape[1] >= shares * block
    beside = _neighbours(kernels, node)
    return block if is_image and (not beside or any(each.domain == _NCHWC for each in beside)) else 1


def _neighbours(kernels: KernelGraph, node: onnx.NodeProto) -> list[onnx.NodeProto]:
    """The nodes that compute the operands, and those that read the results; none between parts of a node."""
    indices = [kernels.producer[name] for name in node.input if name in kernels.producer]
    indices += [index for name in node.output if name for index in kernels.readers[name]]
    return [kernels.nodes[index] for index in indices]


def _broadcast_share(kernels: KernelGraph, node: onnx.NodeProto, from_end: int, begin: int, end: int) -> Share:
    """The part [begin, end) of the axis at `from_end` of every operand that is not repeated along it."""
    slices, weights = {}, {}
    for name in dict.fromkeys((*node.input, node.output[0])):
        constant = kernels.weights.get(name)
        shape = () if not name else _shape(kernels, name) if constant is None else constant.shape
        axis = len(shape) - from_end
        if axis < 0 or shape[axis] == 1:
            continue
        if constant is None:
            slices[name] = _along(shape, axis, begin, end)
        else:
            weights[name] = constant[(slice(None),) * axis + (slice(begin, end),)]
    return Share(node, slices, weights)


def _split_beside_windows(kernels: KernelGraph, node: onnx.NodeProto, shares: int) -> tuple[Share, ...]:
    """Pad and Slice, on the first axis that is not 1, where they leave it as it is."""
    source, result = _shape(kernels, node.input[0]), _shape(kernels, node.output[0])
    axis = next((i for i, size in enumerate(result) if size > 1), None)
    if axis is None or source[: axis + 1] != result[: axis + 1]:
        return ()
    changed = _changed_axes(kernels, node, len(result))
    if changed is None or not changed.isdisjoint(range(axis + 1)):
        return ()
    return tuple(
        Share(node, {name: _along(_shape(kernels, name), axis, begin, end) for name in (node.input[0], node.output[0])})
        for begin, end in _ranges(result[axis], shares, _elementwise_step(kernels, node, axis, shares))
    )


def _changed_axes(kernels: KernelGraph, node: onnx.NodeProto, rank: int) -> set[int] | None:
    """The axes along which a Pad or a Slice changes its operand; None where only the run knows."""
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
    shape = _shape(kernels, node.output[0])
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
            {node.output[0]: _along(shape, 1, begin, end)},
            {name: array[begin:end] for name, array in sliced.items() if len(array) == shape[1]},
        )
        for begin, end in _ranges(shape[1], shares, 16)
    )


def _split_rows(kernels: KernelGraph, node: onnx.NodeProto, shares: int) -> tuple[Share, ...]:
    """MatMul by a constant matrix: by rows of the left operand."""
    source, result = _shape(kernels, node.input[0]), _shape(kernels, node.output[0])
    axis = next((i for i, size in enumerate(result) if size > 1), None)
    if axis is None or axis == len(result) - 1 or not _keeps_images_apart(kernels, node):
        return ()
    if len(source) != len(result) or any(name in kernels.tensors for name in node.input[1:]):
        return ()
    return tuple(
        Share(
            node,
            {
                node.input[0]: _along(source, axis, begin, end),
                node.output[0]: _along(result, axis, begin, end),
            },
        )
        for begin, end in _ranges(result[axis], shares, 4)
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
    ("", "MatMul"): _split_rows,
    ("", "BatchNormalization"): _split_channels,
    **{(domain, pool): _split_channels for domain in ("", _NCHWC) for pool in _POOLS},
    **{(domain, name): _split_elementwise for domain in ("", "com.microsoft") for name in _ELEMENTWISE},
}
