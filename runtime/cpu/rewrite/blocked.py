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
from iosched.models.editable_graph import EditableGraph, node_name
from iosched.models.node_attributes import integer, text
from iosched.runtime.cpu.rewrite.images import padded_edges, sliced_ranges
from iosched.runtime.cpu.rewrite.layouts import NCHWC, Layouts, Rule, is_conversion

# Finite at zero, element by element.
_UNARY = frozenset({
    "Relu", "LeakyRelu", "Elu", "Selu", "Celu", "ThresholdedRelu", "Tanh", "Erf", "Gelu", "QuickGelu", "HardSwish",
    "HardSigmoid", "Sigmoid", "Mish", "Softsign", "Softplus", "Abs", "Neg", "Sqrt", "Exp", "Clip", "Swish",
})  # fmt: skip
_BINARY = frozenset({"Add", "Sub", "Mul", "Sum", "Max", "Min"})
_POOLS = frozenset({"MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool"})


def keep_blocked(graph: EditableGraph, block: int) -> None:
    """Leave as few conversions between layouts as the rules of this file allow, in an optimized graph.

    Results are the same up to the order of summation.

    Args:
        graph: what onnxruntime made of a model.
        block: channels in a block.

    Complexity: O(nodes + edges) for each round; another round is made without the operators that turned out to be
    better left in the plain layout.
    """
    is_typed = all(spec.dtype for spec in graph.tensors.values())
    if not is_typed or not any(is_conversion(node, "ReorderOutput") for node in graph.nodes):
        return
    left: set[str] = set()
    while True:
        layouts = Layouts(graph, block)
        for node in graph.nodes:
            layouts.take(node, None if node_name(node) in left else _RULES.get((node.domain, node.op_type)))
        layouts.finish()
        idle = layouts.idle()
        if not idle:
            graph.become(layouts.graph)
            return
        left |= idle


def _elementwise(layouts: Layouts, node: onnx.NodeProto) -> bool:
    """Every operand of one shape, or a single number: the same for any order of the elements."""
    result, computed = node.output[0], layouts.computed(node)
    constants = [name for name in node.input if name in layouts.graph.weights]
    in_blocks = layouts.in_blocks(computed)
    if in_blocks is None or any(layouts.graph.weights[name].size != 1 for name in constants):
        return False
    if {layouts.shape(name) for name in computed} != {layouts.shape(result)}:
        return False
    if len({layouts.shape(name) for name in in_blocks}) != 1:
        return False
    names = dict(zip(computed, in_blocks, strict=True))
    node.input[:] = [names.get(name, name) for name in node.input]
    layouts.emit(node, result, layouts.shape(in_blocks[0])[1])
    return True


def _quotient(layouts: Layouts, node: onnx.NodeProto) -> bool:
    """Elementwise, of channels that fill their blocks: zero through zero is no number."""
    channels = layouts.shape(node.output[0])[1]
    return channels % layouts.block == 0 and _elementwise(layouts, node)


def _activation(layouts: Layouts, node: onnx.NodeProto) -> bool:
    return layouts.activate(node.input[0], node.op_type, node.output[0]) or _elementwise(layouts, node)


def _product(layouts: Layouts, node: onnx.NodeProto) -> bool:
    """A product with a number for each channel is a depthwise convolution by it."""
    return _elementwise(layouts, node) or _affine(layouts, node) or _by_computed_factors(layouts, node)


def _sum(layouts: Layouts, node: onnx.NodeProto) -> bool:
    return _elementwise(layouts, node) or _affine(layouts, node)


def _affine(layouts: Layouts, node: onnx.NodeProto) -> bool:
    """What scales and shifts every channel by constants is a depthwise convolution with a bias."""
    result = node.output[0]
    image = next((name for name in node.input if name in layouts.blocked), None)
    if image is None or layouts.shape(image) != layouts.shape(result):
        return False
    channels, width = layouts.shape(image)[1], layouts.shape(layouts.blocked[image])[1]
    found = affine_of(node, image, layouts.graph.weights, channels, 4)
    if found is None:
        return False
    filters, bias = (np.zeros(width, np.float32) for _ in range(2))
    filters[:channels], bias[:channels] = found.scale, found.shift
    names = [layouts.add_weight(f"{result}/filters", filters.reshape(-1, 1, 1, 1))]
    if bias.any():
        names.append(layouts.add_weight(f"{result}/bias", bias))
    layouts.convolve(image, names, result)
    return True


def _by_computed_factors(layouts: Layouts, node: onnx.NodeProto) -> bool:
    """A product of an image with a computed (1, C, 1, 1)."""
    result, (left, right) = node.output[0], node.input
    for image, factor in ((left, right), (right, left)):
        if image not in layouts.blocked or layouts.shape(image) != layouts.shape(result):
            continue
        batch, channels, *size = layouts.shape(image)
        width = layouts.shape(layouts.blocked[image])[1]
        source = layouts.blocked.get(factor, factor if channels == width else None)
        if batch != 1 or prod(size) == 1 or layouts.shape(factor) != (1, channels, 1, 1):
            continue
        if source is not None and layouts.shape(source)[1] == width:
            layouts.convolve(image, [layouts.view(source, (width, 1, 1, 1), result)], result)
            return True
    return False


def _concat(layouts: Layouts, node: onnx.NodeProto) -> bool:
    """Along channels, of tensors that fill their blocks."""
    in_blocks = layouts.in_blocks(list(node.input))
    if integer(node, "axis", 1) not in (1, -3) or in_blocks is None:
        return False
    if any(layouts.shape(name) != layouts.shape(inner) for name, inner in zip(node.input, in_blocks, strict=True)):
        return False
    node.input[:] = in_blocks
    layouts.emit(node, node.output[0], layouts.shape(node.output[0])[1])
    return True


def _pool(layouts: Layouts, node: onnx.NodeProto) -> bool:
    source = layouts.blocked.get(node.input[0])
    if source is None or integer(node, "storage_order"):
        return False
    node.input[0], node.domain = source, NCHWC
    layouts.emit(node, node.output[0], layouts.shape(source)[1])
    return True


def _pad(layouts: Layouts, node: onnx.NodeProto) -> bool:
    """Of rows and columns: a Pad of the view (blocks, H, W, channels of a block)."""
    edges = padded_edges(node, layouts.graph.weights)
    if edges is None or text(node, "mode", "constant") != "constant" or not _is_finite(layouts, node.input[2:3]):
        return False
    top, left, bottom, right = edges
    return _in_view(layouts, node, {1: [0, top, left, 0, 0, bottom, right, 0]})


def _is_finite(layouts: Layouts, fill: Sequence[str]) -> bool:
    """Whether the number that a Pad fills with is known and finite, as a block's unused channels must be."""
    return all(
        name in layouts.graph.weights and bool(np.isfinite(layouts.graph.weights[name]).all()) for name in fill if name
    )


def _slice(layouts: Layouts, node: onnx.NodeProto) -> bool:
    """Of rows and columns: a Slice of the view (blocks, H, W, channels of a block)."""
    ranges = sliced_ranges(node, layouts.graph.weights, layouts.shape(node.input[0]))
    if ranges is None:
        return False
    starts, ends, steps = zip(ranges.rows, ranges.columns, strict=True)
    return _in_view(layouts, node, {1: starts, 2: ends, 3: (1, 2), 4: steps})


def _in_view(layouts: Layouts, node: onnx.NodeProto, changed: Mapping[int, Sequence[int]]) -> bool:
    """The node on the view (blocks, H, W, channels of a block) of its operand, with some parameters changed."""
    source, result, block = layouts.blocked.get(node.input[0]), node.output[0], layouts.block
    if source is None:
        return False
    batch, width, *size = layouts.shape(source)
    plain = layouts.shape(result)
    node.input[0] = layouts.view(source, (batch * width // block, *size, block), result)
    parameters = {place: np.array(values, np.int64) for place, values in changed.items()}
    names = {place: layouts.add_weight(f"{result}/parameter", array) for place, array in parameters.items()}
    kept = node.input[1 + len(names) :] if 2 not in names else []
    node.input[:] = [node.input[0], *(names[place] for place in sorted(names)), *kept]
    inner = layouts.add_tensor(f"{result}/inner", (batch * width // block, *plain[2:], block))
    node.output[0], node.name = inner, inner
    layouts.written.append(node)
    target = layouts.add_weight(f"{result}/shape", np.array((batch, width, *plain[2:]), np.int64))
    layouts.emit(make_node("Reshape", [inner, target], [result]), result, width)
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
