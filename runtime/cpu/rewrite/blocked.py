"""Keeps tensors in the blocked layout where onnxruntime would convert to the plain one and back.

onnxruntime carries the layout through convolutions, pooling and sums, and converts around everything else. Most such
operators compute the same in either layout: elementwise ones directly, a product with one number for each channel as a
depthwise convolution, Pad and Slice on another view of the same bytes. Unused channels of the last block may hold any
finite numbers, as after onnxruntime's own Sigmoid: readers of blocks have zero weights for them, conversions omit them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np
from onnx import NodeProto
from onnx.helper import make_node

from iosched.models.editable_graph import EditableGraph, node_name
from iosched.models.fusion.affine import affine_of
from iosched.models.node_attributes import assign, integer, text, with_attributes
from iosched.models.wiring import is_standard, writes
from iosched.runtime.cpu.rewrite.images import is_image, padded_edges, sliced_ranges

NCHWC = "com.microsoft.nchwc"
_VIEWS = ("Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity")
# Finite at zero, element by element.
_UNARY = frozenset({
    "Relu", "LeakyRelu", "Elu", "Selu", "Celu", "ThresholdedRelu", "Tanh", "Erf", "Gelu", "QuickGelu", "HardSwish",
    "HardSigmoid", "Sigmoid", "Mish", "Softsign", "Softplus", "Abs", "Neg", "Sqrt", "Exp", "Clip", "Swish",
})  # fmt: skip
_BINARY = frozenset({"Add", "Sub", "Mul", "Sum", "Max", "Min"})
_POOLS = frozenset({"MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool"})


def keep_blocked(graph: EditableGraph, block: int) -> None:
    """Remove the layout conversions from an optimized graph that the rules of this file make unnecessary.

    Results are equal up to the order of summation. O(nodes + edges), repeated for sequences of operators that gain
    nothing from the blocked layout.

    Args:
        block: channels in a block.
    """
    is_typed = all(spec.dtype for spec in graph.tensors.values())
    if not is_typed or not any(_is_conversion(node, "ReorderOutput") for node in graph.nodes):
        return
    draft = _BlockedGraph(graph, block)
    for node in graph.nodes:
        draft.take(node, _RULES.get((node.domain, node.op_type), ()))
    while draft.undo_idle():
        pass
    graph.drop_unread()


def _is_conversion(node: NodeProto, kind: str) -> bool:
    return node.domain == NCHWC and node.op_type == kind and not integer(node, "channels_last")


@dataclass(eq=False)
class _BlockedGraph:
    """A graph that is rewritten node by node, in place.

    Attributes:
        block: channels in a block.
        blocked: by tensor in the plain layout, its counterpart in the blocked one.
        changed: for each rewritten tensor, its original node and the nodes that replace it.
        written: the nodes that replace the current one.
    """

    graph: EditableGraph
    block: int
    blocked: dict[str, str] = field(default_factory=dict)
    changed: dict[str, tuple[NodeProto, list[NodeProto]]] = field(default_factory=dict)
    written: list[NodeProto] = field(default_factory=list)

    def take(self, node: NodeProto, rules: Sequence[_Rule]) -> None:
        """Rewrite a node in the blocked layout if a rule applies; conversions still compute plain tensors."""
        if _is_conversion(node, "ReorderOutput"):
            self.blocked[node.output[0]] = node.input[0]
        elif _is_conversion(node, "ReorderInput"):
            self._pass_by(node, [self.blocked[name] for name in node.input if name in self.blocked])
        elif self._is_view(node):
            self._pass_by(node, [*self._seen(node)])
        elif len(writes(node)) == 1 and is_image(self.graph, node.output[0]):
            self._change(node, rules)

    def _change(self, node: NodeProto, rules: Sequence[_Rule]) -> None:
        made, self.written = with_attributes(node), []
        if any(rule(self, made) for rule in rules):
            self.graph.replace(node_name(node), *self.written)
            self.changed[node.output[0]] = node, self.written

    def _seen(self, node: NodeProto | None) -> Iterator[str]:
        while node is not None and self._is_view(node):
            yield node.input[0]
            node = self.graph.producer(node.input[0])

    def _is_view(self, node: NodeProto) -> bool:
        if not is_standard(node, *_VIEWS) or node.output[0] in self.graph.outputs:
            return False
        specs = [self.graph.tensors.get(name) for name in (node.input[0], node.output[0])]
        return all(spec is not None and spec.is_static for spec in specs)

    def _pass_by(self, node: NodeProto, earlier: Sequence[str]) -> None:
        """Replace a node's result by the last of these tensors that has the same bytes and shape."""
        same = [name for name in earlier if self.shape(name) == self.shape(node.output[0])]
        if same:
            self.graph.replace_all_uses(node.output[0], same[-1])
            self._drop(node)

    def _drop(self, node: NodeProto) -> None:
        if self.graph.uses(node.output[0]):
            return
        self.graph.remove(node_name(node))
        before = self.graph.producer(node.input[0])
        if before is not None and self._is_view(before):
            self._drop(before)

    # --- interface of the rules ---------------------------------------------------------------------------------

    def shape(self, name: str) -> tuple[int, ...]:
        return self.graph.shape(name)

    def emit(self, node: NodeProto, result: str, width: int) -> None:
        """Add a node that computes `result` in blocks, of `width` channels, and the conversion to the plain layout."""
        batch, _, *size = self.shape(result)
        node.output[0] = node.name = self.graph.add_tensor(f"{result}/blocked", result, (batch, width, *size))
        self.written.append(node)
        self._hold(result, node.name)

    def _hold(self, result: str, in_blocks: str) -> None:
        self.blocked[result] = in_blocks
        channels, label = self.shape(result)[1], f"{result}/plain"
        self.written.append(make_node("ReorderOutput", [in_blocks], [result], label, domain=NCHWC, channels=channels))

    def view(self, source: str, shape: Sequence[int], label: str) -> str:
        target = self.graph.add_integers(f"{label}/shape", shape)
        result = self.graph.add_tensor(f"{label}/view", source, shape)
        self.written.append(make_node("Reshape", [source, target], [result], name=result))
        return result

    def convolve(self, image: str, parameters: Sequence[str], result: str) -> None:
        source = self.blocked[image]
        width = self.shape(source)[1]
        made = make_node("Conv", [source, *parameters], [result], domain=NCHWC, group=width, kernel_shape=[1, 1])
        self.emit(made, result, width)

    def convolve_as_one(self, images: str, filters: str, result: str) -> None:
        """Add a depthwise convolution of all images as one."""
        source = self.blocked[images]
        batch, width, *size = self.shape(source)
        whole = self.view(source, (1, batch * width, *size), f"{result}/whole")
        inner = self.graph.add_tensor(f"{result}/inner", result, (1, batch * width, *size))
        group = batch * width
        self.written.append(
            make_node("Conv", [whole, filters], [inner], inner, domain=NCHWC, group=group, kernel_shape=[1, 1])
        )
        shape = self.graph.add_integers(f"{result}/shape", (batch, width, *size))
        self.emit(make_node("Reshape", [inner, shape], [result]), result, width)

    def activate(self, node: NodeProto) -> bool:
        """Fuse the activation `node` into a convolution of this rewrite that has no activation and no other reader."""
        source = node.input[0]
        made = self.graph.producer(self.blocked.get(source, ""))
        if made is None or source not in self.changed or made.op_type != "Conv" or text(made, "activation"):
            return False
        if max(self.graph.uses(source), self.graph.uses(made.output[0])) > 1:
            return False
        assign(made, activation=node.op_type)
        self._hold(node.output[0], made.output[0])
        return True

    # --- rewrites without gain ---------------------------------------------------------------------------------

    def undo_idle(self) -> bool:
        """Restore nodes whose rewrite gains nothing; returns whether there were any.

        No node reads their results in blocks, and all their operands are converted anyway.
        """
        idle: set[str] = set()
        for name in self.changed:
            if self._readers(name) == [name]:
                idle |= self._idle_from(name)
        for name in idle:
            before, written = self.changed.pop(name)
            self.graph.replace([node_name(node) for node in written], before)
            del self.blocked[name]
        return bool(idle)

    def _readers(self, name: str) -> list[str]:
        readers = [node_name(reader) for reader in self.graph.consumers(self.blocked[name])]
        return [reader for reader in readers if self.graph.uses(reader)]

    def _idle_from(self, name: str) -> set[str]:
        """The rewritten nodes that compute `name` from plain tensors that exist anyway; empty if one does not."""
        before, _ = self.changed[name]
        images = [image for image in before.input if image in self.blocked and prod(self.shape(image)[2:]) > 1]
        # Converting one number for each channel is free.
        found = {name} if images else set()
        for image in images:
            if self.graph.uses(image):
                continue
            earlier = self._idle_from(image) if image in self.changed and len(self._readers(image)) == 1 else set()
            if not earlier:
                return set()
            found |= earlier
        return found


_Rule = Callable[[_BlockedGraph, NodeProto], bool]
"""Rewrites a copied node in the blocked layout; returns False, without writing, if impossible."""


# --- the rules ----------------------------------------------------------------------------------------------------


def _elementwise(draft: _BlockedGraph, node: NodeProto) -> bool:
    """All operands have one shape or are scalars: the order of the elements does not matter."""
    result, weights = node.output[0], draft.graph.weights
    computed = [name for name in node.input if name in draft.graph.tensors]
    in_blocks = {name: draft.blocked[name] for name in computed if name in draft.blocked}
    if len(in_blocks) < len({*computed}) or any(weights[name].size != 1 for name in node.input if name in weights):
        return False
    shapes = {draft.shape(name) for name in in_blocks.values()}
    if {draft.shape(name) for name in computed} != {draft.shape(result)} or len(shapes) != 1:
        return False
    node.input[:] = [in_blocks.get(name, name) for name in node.input]
    draft.emit(node, result, shapes.pop()[1])
    return True


def _quotient(draft: _BlockedGraph, node: NodeProto) -> bool:
    """Elementwise on complete blocks: zero divided by zero is NaN."""
    return draft.shape(node.output[0])[1] % draft.block == 0 and _elementwise(draft, node)


def _affine(draft: _BlockedGraph, node: NodeProto) -> bool:
    """Scaling and shifting every channel by constants is a depthwise convolution with a bias."""
    result = node.output[0]
    image = next((name for name in node.input if name in draft.blocked), None)
    if image is None or draft.shape(image) != draft.shape(result):
        return False
    channels, width = draft.shape(image)[1], draft.shape(draft.blocked[image])[1]
    found = affine_of(node, image, draft.graph.weights, channels, 4)
    if found is None:
        return False
    filters, bias = (np.zeros(width, np.float32) for _ in range(2))
    filters[:channels], bias[:channels] = found.scale, found.shift
    names = [draft.graph.add_fresh_weight(f"{result}/filters", filters.reshape(-1, 1, 1, 1))]
    if bias.any():
        names.append(draft.graph.add_fresh_weight(f"{result}/bias", bias))
    draft.convolve(image, names, result)
    return True


def _by_computed_factors(draft: _BlockedGraph, node: NodeProto) -> bool:
    """The product of images and a computed (N, C, 1, 1) is a depthwise convolution, of one image with N * C channels.

    Blocks of several images lie one after another, as those of one image do.
    """
    result = node.output[0]
    batch, channels, *size = draft.shape(result)
    for image, factor in (node.input, reversed(node.input)):
        if image not in draft.blocked or draft.shape(image) != draft.shape(result):
            continue
        width = draft.shape(draft.blocked[image])[1]
        source = draft.blocked.get(factor, factor)
        is_number = draft.shape(factor) == (batch, channels, 1, 1) and draft.shape(source)[1] == width
        if is_number and prod(size) > 1:
            filters = draft.view(source, (batch * width, 1, 1, 1), result)
            if batch == 1:
                draft.convolve(image, [filters], result)
            else:
                draft.convolve_as_one(image, filters, result)
            return True
    return False


def _concat(draft: _BlockedGraph, node: NodeProto) -> bool:
    in_blocks = [draft.blocked[name] for name in node.input if name in draft.blocked]
    are_filled = [draft.shape(name) for name in in_blocks] == [draft.shape(name) for name in node.input]
    if integer(node, "axis", 1) not in (1, -3) or not are_filled:
        return False
    node.input[:] = in_blocks
    draft.emit(node, node.output[0], draft.shape(node.output[0])[1])
    return True


def _pool(draft: _BlockedGraph, node: NodeProto) -> bool:
    source = draft.blocked.get(node.input[0])
    if source is None or integer(node, "storage_order"):
        return False
    node.input[0], node.domain = source, NCHWC
    draft.emit(node, node.output[0], draft.shape(source)[1])
    return True


def _pad(draft: _BlockedGraph, node: NodeProto) -> bool:
    """Pad of rows and columns, on the view (blocks, H, W, channels of a block)."""
    edges = padded_edges(node, draft.graph.weights)
    fill = [draft.graph.weights.get(name, np.array(np.nan)) for name in node.input[2:3] if name]
    # A block's unused channels must be finite.
    are_finite = all(np.isfinite(array).all() for array in fill)
    if edges is None or text(node, "mode", "constant") != "constant" or not are_finite:
        return False
    top, left, bottom, right = edges
    return _in_view(draft, node, [[0, top, left, 0, 0, bottom, right, 0]], node.input[2:])


def _slice(draft: _BlockedGraph, node: NodeProto) -> bool:
    """Slice of rows and columns, on the view (blocks, H, W, channels of a block)."""
    ranges = sliced_ranges(node, draft.graph.weights, draft.shape(node.input[0]))
    if ranges is None:
        return False
    starts, ends, steps = zip(*ranges, strict=True)
    return _in_view(draft, node, [starts, ends, (1, 2), steps])


def _in_view(
    draft: _BlockedGraph, node: NodeProto, parameters: Sequence[Sequence[int]], kept: Sequence[str] = ()
) -> bool:
    """The node on the view (blocks, H, W, channels of a block) of its operand, with other parameters."""
    source, result, block = draft.blocked.get(node.input[0]), node.output[0], draft.block
    if source is None:
        return False
    batch, width, *size = draft.shape(source)
    blocks, pixels = batch * width // block, draft.shape(result)[2:]
    view = draft.view(source, (blocks, *size, block), result)
    names = [draft.graph.add_integers(f"{result}/parameter", each) for each in parameters]
    node.name = draft.graph.add_tensor(f"{result}/inner", result, (blocks, *pixels, block))
    node.input[:], node.output[:] = [view, *names, *kept], [node.name]
    draft.written.append(node)
    shape = draft.graph.add_integers(f"{result}/shape", (batch, width, *pixels))
    draft.emit(make_node("Reshape", [node.name, shape], [result]), result, width)
    return True


_RULES: Mapping[tuple[str, str], tuple[_Rule, ...]] = {
    **{(domain, name): (_elementwise,) for domain in ("", "com.microsoft") for name in (*_UNARY, *_BINARY)},
    **{("", name): (_pool,) for name in _POOLS},
    ("", "Div"): (_quotient,),
    ("", "Relu"): (_BlockedGraph.activate, _elementwise),
    ("", "BatchNormalization"): (_affine,),
    ("", "Add"): (_elementwise, _affine),
    ("", "Sum"): (_elementwise, _affine),
    ("", "Mul"): (_elementwise, _affine, _by_computed_factors),
    ("", "Concat"): (_concat,),
    ("", "Pad"): (_pad,),
    ("", "Slice"): (_slice,),
}
"""By domain and type, the rules for a node; the first that applies is used."""
