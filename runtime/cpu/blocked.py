"""Keeps tensors in the blocked layout where onnxruntime would go back to the plain one in between.

onnxruntime carries the layout through convolutions, pooling and sums; at everything else it converts, and converts back
behind it. Most such operators compute the same in either layout, or can be written so that they do: elementwise ones as
they are, a product with a number for each channel as a depthwise convolution, Pad and Slice on another view of the same
bytes. Where channels end inside a block, the rest of the block may then hold any finite numbers, as it does after
onnxruntime's own Sigmoid: whatever reads blocks meets it with zero weights, and conversions leave it out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np
import onnx
from onnx.helper import make_node

from iosched.models.affine import affine_of
from iosched.models.node_attributes import integer, text
from iosched.runtime.cpu.kernel_graph import KernelGraph
from iosched.runtime.cpu.layout_draft import NCHWC, LayoutDraft, Rule, is_conversion
from iosched.runtime.cpu.windows import padded_edges, sliced_ranges

# Finite at zero, element by element.
_UNARY = frozenset({
    "Relu", "LeakyRelu", "Elu", "Selu", "Celu", "ThresholdedRelu", "Tanh", "Erf", "Gelu", "QuickGelu", "HardSwish",
    "HardSigmoid", "Sigmoid", "Mish", "Softsign", "Softplus", "Abs", "Neg", "Sqrt", "Exp", "Clip", "Swish",
})  # fmt: skip
_BINARY = frozenset({"Add", "Sub", "Mul", "Sum", "Max", "Min"})
_POOLS = frozenset({"MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool"})


def keep_blocked(kernels: KernelGraph) -> KernelGraph:
    """The graph with as few conversions between layouts as the rules of this file leave.

    Complexity: O(nodes + edges) for each round; another round is made without the operators that turned out to be
    better left in the plain layout.

    Args:
        kernels: what onnxruntime made of a model; not changed. Results are the same up to the order of summation.
    """
    if not kernels.is_typed or not any(is_conversion(node, "ReorderOutput") for node in kernels.nodes):
        return kernels
    left: set[int] = set()
    while True:
        draft = LayoutDraft(kernels)
        for index, node in enumerate(kernels.nodes):
            draft.take(index, None if index in left else _RULES.get((node.domain, node.op_type)))
        result = draft.graph()
        idle = draft.idle(result)
        if not idle:
            return result
        left |= idle


def _elementwise(draft: LayoutDraft, node: onnx.NodeProto) -> bool:
    """Every operand of one shape, or a single number: the same for any order of the elements."""
    result, computed = node.output[0], draft.computed(node)
    constants = [name for name in node.input if name in draft.weights]
    in_blocks = draft.in_blocks(computed)
    if in_blocks is None or any(draft.weights[name].size != 1 for name in constants):
        return False
    if {draft.shape(name) for name in computed} != {draft.shape(result)}:
        return False
    if len({draft.shape(name) for name in in_blocks}) != 1:
        return False
    names = dict(zip(computed, in_blocks, strict=True))
    node.input[:] = [names.get(name, name) for name in node.input]
    draft.emit(node, result, draft.shape(in_blocks[0])[1])
    return True


def _quotient(draft: LayoutDraft, node: onnx.NodeProto) -> bool:
    """Elementwise, of channels that fill their blocks: zero through zero is no number."""
    channels = draft.shape(node.output[0])[1]
    return channels % draft.kernels.channel_block == 0 and _elementwise(draft, node)


def _activation(draft: LayoutDraft, node: onnx.NodeProto) -> bool:
    return draft.activate(node.input[0], node.op_type, node.output[0]) or _elementwise(draft, node)


def _product(draft: LayoutDraft, node: onnx.NodeProto) -> bool:
    """A product with a number for each channel is a depthwise convolution by it."""
    return _elementwise(draft, node) or _affine(draft, node) or _by_computed_factors(draft, node)


def _sum(draft: LayoutDraft, node: onnx.NodeProto) -> bool:
    return _elementwise(draft, node) or _affine(draft, node)


def _affine(draft: LayoutDraft, node: onnx.NodeProto) -> bool:
    """What scales and shifts every channel by constants is a depthwise convolution with a bias."""
    result = node.output[0]
    image = next((name for name in node.input if name in draft.blocked), None)
    if image is None or draft.shape(image) != draft.shape(result):
        return False
    channels, width = draft.shape(image)[1], draft.shape(draft.blocked[image])[1]
    found = affine_of(node, image, draft.weights, channels, 4)
    if found is None:
        return False
    filters, bias = (np.zeros(width, np.float32) for _ in range(2))
    filters[:channels], bias[:channels] = found.scale, found.shift
    names = [draft.add_weight(f"{result}/filters", filters.reshape(-1, 1, 1, 1))]
    if bias.any():
        names.append(draft.add_weight(f"{result}/bias", bias))
    draft.convolve(image, names, result)
    return True


def _by_computed_factors(draft: LayoutDraft, node: onnx.NodeProto) -> bool:
    """A product of an image with a computed (1, C, 1, 1)."""
    result, (left, right) = node.output[0], node.input
    for image, factor in ((left, right), (right, left)):
        if image not in draft.blocked or draft.shape(image) != draft.shape(result):
            continue
        batch, channels, *size = draft.shape(image)
        width = draft.shape(draft.blocked[image])[1]
        source = draft.blocked.get(factor, factor if channels == width else None)
        if batch != 1 or prod(size) == 1 or draft.shape(factor) != (1, channels, 1, 1):
            continue
        if source is not None and draft.shape(source)[1] == width:
            draft.convolve(image, [draft.view(source, (width, 1, 1, 1), result)], result)
            return True
    return False


def _concat(draft: LayoutDraft, node: onnx.NodeProto) -> bool:
    """Along channels, of tensors that fill their blocks."""
    in_blocks = draft.in_blocks(list(node.input))
    if integer(node, "axis", 1) not in (1, -3) or in_blocks is None:
        return False
    if any(draft.shape(name) != draft.shape(inner) for name, inner in zip(node.input, in_blocks, strict=True)):
        return False
    node.input[:] = in_blocks
    draft.emit(node, node.output[0], draft.shape(node.output[0])[1])
    return True


def _pool(draft: LayoutDraft, node: onnx.NodeProto) -> bool:
    source = draft.blocked.get(node.input[0])
    if source is None or integer(node, "storage_order"):
        return False
    node.input[0], node.domain = source, NCHWC
    draft.emit(node, node.output[0], draft.shape(source)[1])
    return True


def _pad(draft: LayoutDraft, node: onnx.NodeProto) -> bool:
    """Of rows and columns: a Pad of the view (blocks, H, W, channels of a block)."""
    edges = padded_edges(node, draft.weights)
    if edges is None or text(node, "mode", "constant") != "constant" or not _is_finite(draft, node.input[2:3]):
        return False
    top, left, bottom, right = edges
    return _in_view(draft, node, {1: [0, top, left, 0, 0, bottom, right, 0]})


def _is_finite(draft: LayoutDraft, fill: Sequence[str]) -> bool:
    """Whether the number that a Pad fills with is known and finite, as a block's unused channels must be."""
    return all(name in draft.weights and bool(np.isfinite(draft.weights[name]).all()) for name in fill if name)


def _slice(draft: LayoutDraft, node: onnx.NodeProto) -> bool:
    """Of rows and columns: a Slice of the view (blocks, H, W, channels of a block)."""
    ranges = sliced_ranges(node, draft.weights, draft.shape(node.input[0]))
    if ranges is None:
        return False
    starts, ends, steps = zip(ranges.rows, ranges.columns, strict=True)
    return _in_view(draft, node, {1: starts, 2: ends, 3: (1, 2), 4: steps})


def _in_view(draft: LayoutDraft, node: onnx.NodeProto, changed: Mapping[int, Sequence[int]]) -> bool:
    """The node on the view (blocks, H, W, channels of a block) of its operand, with some parameters changed."""
    source, result, block = draft.blocked.get(node.input[0]), node.output[0], draft.kernels.channel_block
    if source is None:
        return False
    batch, width, *size = draft.shape(source)
    plain = draft.shape(result)
    node.input[0] = draft.view(source, (batch * width // block, *size, block), result)
    parameters = {place: np.array(values, np.int64) for place, values in changed.items()}
    names = {place: draft.add_weight(f"{result}/parameter", array) for place, array in parameters.items()}
    kept = node.input[1 + len(names) :] if 2 not in names else []
    node.input[:] = [node.input[0], *(names[place] for place in sorted(names)), *kept]
    inner = draft.add_tensor(f"{result}/inner", (batch * width // block, *plain[2:], block))
    node.output[0], node.name = inner, inner
    draft.nodes.append(node)
    target = draft.add_weight(f"{result}/shape", np.array((batch, width, *plain[2:]), np.int64))
    draft.emit(make_node("Reshape", [inner, target], [result]), result, width)
    return True


_RULES: Mapping[tuple[str, str], Rule] = {
    **{(domain, name): _elementwise for domain in ("", "com.microsoft") for name in (*_UNARY, *_BINARY)},
    **{("", name): _pool for name in _POOLS},
    ("", "Div"): _quotient,
    ("", "Relu"): _activation,
    ("", "BatchNormalization"): _affine,
    ("", "Add"): _sum,
    ("", "Sum"): _sum,
    ("", "Mul"): _product,
    ("", "Concat"): _concat,
    ("", "Pad"): _pad,
    ("", "Slice"): _slice,
}
