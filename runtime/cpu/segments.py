"""Replaces the nodes of several units by others at the end of the kernel graph.

Session: one node over all cores. Tensors inside it have no place in the plan's buffers, and a Concat or Reshape
inside is an ordinary call.

Merge: one convolution or product for several that read the same tensor. Kernels are zero-padded around their centres
and stacked along the results, which is exact by the rule of `models.merge_rule` (checked by the caller). A Split
separates the parts; at batch 1 and along channels it is free. Nodes that follow all convolutions alike run once,
before the Split.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from onnx import NodeProto
from onnx.helper import make_node

from iosched.models.editable_graph import EditableGraph
from iosched.models.fusion.queries import ACTIVATIONS
from iosched.models.node_attributes import assign, integer, integers, padding, plain_values, with_attributes
from iosched.models.wiring import reads, writes
from iosched.runtime.cpu.kernel_graph import KernelGraph
from iosched.runtime.cpu.rewrite.blocked import NCHWC

_CONVOLUTIONS = ("Conv", "FusedConv")
_ANCHORS = (*_CONVOLUTIONS, "FusedGemm", "Gemm", "MatMul")
_SIZED = ("auto_pad", "kernel_shape", "pads")
_ELEMENTWISE = ACTIVATIONS | {"Mul", "QuickGelu"}
_SPLIT_BY_OPERAND = 13
"""Operator set in which the sizes of Split became an operand."""


AsOne = tuple[KernelGraph, tuple[int, ...]]
"""The changed graph, and the numbers of all nodes that replace the units."""


def session_nodes(kernels: KernelGraph, present: KernelGraph, units: Sequence[Sequence[int]]) -> AsOne | None:
    """One session node for the nodes of `units` (`KernelGraph.inside`); None if nothing reads their results.

    Args:
        kernels: the graph of the units.
        present: the graph to change, in which other units may already be replaced.
        units: the nodes of each unit of one stage.
    """
    own = {index for unit in units for index in unit}
    members = _members(kernels, sorted(own))
    computed = dict.fromkeys(name for node in members for name in writes(node))
    kept = {name for name in computed if not own.issuperset(kernels.readers.get(name, ()))}
    outputs = [name for name in computed if name in kept or name in kernels.outputs]
    if not outputs:
        return None
    inputs = dict.fromkeys(name for node in members for name in reads(node) if name not in computed)
    name = f"session:{outputs[-1]}"
    stand_in = NodeProto(name=name, op_type="Session", domain="iosched", input=inputs, output=outputs)
    nodes = [*present.nodes, stand_in]
    for index in own:
        nodes[index] = NodeProto()
    return replace(present, nodes=tuple(nodes), inside={**present.inside, name: members}), (len(present.nodes),)


def _members(kernels: KernelGraph, own: Sequence[int]) -> tuple[NodeProto, ...]:
    """The nodes of a session; a run divided by rows is restored if all of it is inside."""
    nodes = [kernels.nodes[index] for index in own]
    others = [node for node in nodes if node.output[0] not in kernels.rows.made]
    has_all_rows = len(nodes) - len(others) == len(kernels.rows.made)
    return (*kernels.rows.whole, *others) if has_all_rows else tuple(nodes)


# --- merge --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Unit:
    """The nodes of one operator: those that prepare its input, the convolution or product, and those after it."""

    before: tuple[int, ...]
    anchor: int
    after: tuple[int, ...]


def merge_nodes(kernels: KernelGraph, present: KernelGraph, units: Sequence[Sequence[int]]) -> AsOne | None:
    """One convolution (or product) and a Split for the nodes of the `units` of a merge stage.

    Arguments are as in `session_nodes`. None if the optimized nodes do not allow it: onnxruntime fused one with another
    node, or a weight's layout is unknown.
    """
    found = [_unit(kernels, nodes) for nodes in units]
    parts = [unit for unit in found if unit is not None]
    if len(parts) < len(units) or not _are_alike(kernels, parts):
        return None
    draft = _MergedNodes(kernels, parts, present.graph.copy())
    if not draft.stack():
        return None
    lifted = draft.lift()
    draft.split(lifted)
    count = len(present.nodes)
    rest = [index for part in parts for index in part.after[lifted:]]
    own = (*parts[0].before, *range(count, count + len(draft.nodes)), *rest)
    return replace(present, graph=draft.graph, nodes=(*present.nodes, *draft.nodes)), own


def _unit(kernels: KernelGraph, nodes: Sequence[int]) -> _Unit | None:
    """The nodes of an operator by role; None unless a chain leads to one anchor and the rest follows from it."""
    places = [place for place, index in enumerate(nodes) if kernels.nodes[index].op_type in _ANCHORS]
    if len(places) != 1 or len(kernels.reads[nodes[0]]) != 1:
        return None
    (place,) = places
    (*before, anchor), after = nodes[: place + 1], nodes[place + 1 :]
    made = {name for index in (anchor, *after) for name in kernels.nodes[index].output}
    is_chain = all(_is_only_reader(kernels, index, of) for of, index in pairwise((*before, anchor)))
    is_cone = all(made.issuperset(kernels.reads[index]) for index in after)
    return _Unit(tuple(before), anchor, tuple(after)) if is_chain and is_cone else None


def _is_only_reader(kernels: KernelGraph, index: int, of: int) -> bool:
    results = writes(kernels.nodes[of])
    return kernels.reads[index] == results and [kernels.readers[name] for name in results] == [(index,)]


def _are_alike(kernels: KernelGraph, parts: Sequence[_Unit]) -> bool:
    """Whether the nodes differ only in weights, kernel size and padding."""
    first = _identity(kernels, parts[0])
    return all(_identity(kernels, part) == first and _is_plain(kernels, kernels.nodes[part.anchor]) for part in parts)


def _identity(kernels: KernelGraph, part: _Unit) -> object:
    """Inputs and settings of an operator, without the names of its own tensors and without its weights."""
    (source,) = kernels.reads[(*part.before, part.anchor)[0]]
    constants = [kernels.weights[name] for index in part.before for name in kernels.constants[index]]
    return (
        source,
        [_settings(kernels.nodes[index]) for index in part.before],
        [(array.dtype.name, array.shape, array.tobytes()) for array in constants],
        _settings(kernels.nodes[part.anchor], _SIZED),
    )


def _settings(node: NodeProto, free: Sequence[str] = ()) -> object:
    attributes = {name: value for name, value in plain_values(node).items() if name not in free}
    return node.domain, node.op_type, attributes


def _is_plain(kernels: KernelGraph, node: NodeProto) -> bool:
    """Whether the anchor has constant weights, no summand, and a result of known size."""
    constants = [name for name in node.input[1:] if name]
    if len(node.input) > 3 or not constants or any(name not in kernels.weights for name in constants):
        return False
    is_static = all(kernels.tensors[name].is_static for name in (node.input[0], node.output[0]))
    return is_static and (node.op_type in _CONVOLUTIONS or kernels.weights[node.input[1]].ndim == 2)


class _MergedNodes:
    """Nodes that replace those of several units, in order.

    Attributes:
        graph: the graph that gets their weights and tensors.
        whole: by tensor of a unit, the tensor that holds it for all units.
    """

    def __init__(self, kernels: KernelGraph, parts: Sequence[_Unit], graph: EditableGraph) -> None:
        self.kernels, self.graph, self.parts = kernels, graph, parts
        self.anchors = [kernels.nodes[part.anchor] for part in parts]
        self.base = "merged:" + "+".join(node.output[0] for node in self.anchors)
        self.convolves = self.anchors[0].op_type in _CONVOLUTIONS
        self.axis = 1 if self.convolves else -1
        self.nodes: list[NodeProto] = []
        self.whole = {node.output[0]: self.base for node in self.anchors}

    def stack(self) -> bool:
        """Add the convolution or product; False if a layout does not allow it."""
        first, weight = self.anchors[0], _stacked_weight(self.kernels, self.anchors)
        if weight is None:
            return False
        constants = [self.graph.add_weight(f"{self.base}/weight", weight)]
        if self.convolves or any(any(node.input[2:]) for node in self.anchors):
            bias = np.concatenate([_bias(self.kernels, node) for node in self.anchors])
            constants.append(self.graph.add_weight(f"{self.base}/bias", bias))
        made = _resized(self.kernels, first, weight.shape[2:]) if self.convolves else first
        self._add(made, [first.input[0], *constants], self.anchors)
        return True

    def lift(self) -> int:
        """Add the nodes after the anchors that all parts share; returns the number of nodes of each part.

        The result must be one tensor: a node is lifted with all others that read its operands.
        """
        steps: list[list[NodeProto]] = []
        done = 0
        for indices in zip(*(part.after for part in self.parts), strict=False):
            nodes = [self.kernels.nodes[index] for index in indices]
            found = [self._step(node) for node in nodes]
            if found[0] is None or any(each != found[0] for each in found):
                break
            self.whole |= {node.output[0]: f"{self.base}/{len(steps)}" for node in nodes}
            steps.append(nodes)
            if self._ends(len(steps)):
                done = len(steps)
        for nodes in steps[:done]:
            self._add(nodes[0], [self.whole.get(name, name) for name in nodes[0].input], nodes)
        return done

    def split(self, lifted: int) -> None:
        outputs = [self.kernels.result((part.anchor, *part.after)[lifted]) for part in self.parts]
        sizes = [self.graph.shape(name)[self.axis] for name in outputs]
        node = make_node("Split", [self.nodes[-1].output[0]], outputs, name=f"{self.base}/split", axis=self.axis)
        if self.graph.opset < _SPLIT_BY_OPERAND:
            node = with_attributes(node, split=sizes)
        else:
            node.input.append(self.graph.add_integers(f"{self.base}/sizes", sizes))
        self.nodes.append(node)

    def _add(self, like: NodeProto, inputs: Sequence[str], nodes: Sequence[NodeProto]) -> None:
        """Add a copy of `like` that replaces `nodes`, one of each part."""
        names = [node.output[0] for node in nodes]
        shapes = [self.graph.shape(name) for name in names]
        shape = [*shapes[0]]
        shape[self.axis] = sum(each[self.axis] for each in shapes)
        made = with_attributes(like)
        if made.op_type == "ReorderOutput":
            assign(made, channels=shape[1])
        made.name = self.graph.add_tensor(self.whole[names[0]], names[0], shape)
        made.input[:], made.output[:] = inputs, [made.name]
        self.nodes.append(made)

    def _step(self, node: NodeProto) -> object:
        """Operation and operands of a node after an anchor; None if the parts cannot share the node."""
        if node.op_type == "ReorderOutput":
            channels = [self.graph.shape(name)[1] for name in (node.input[0], node.output[0])]
            # Blocks must be complete.
            is_shareable = self.axis == 1 and channels[0] == channels[1]
        else:
            is_shareable = node.op_type in _ELEMENTWISE and len(node.output) == 1
        operands = [self._operand(name) for name in node.input]
        return (_settings(node, ("channels",)), operands) if is_shareable and None not in operands else None

    def _operand(self, name: str) -> str | bytes | None:
        constant = self.graph.weights.get(name)
        if constant is None:
            return self.whole.get(name, name)
        return constant.tobytes() if constant.size == 1 else None

    def _ends(self, count: int) -> bool:
        """Whether only the last of the first `count` nodes after each anchor is read by others."""
        kernels = self.kernels
        inside = {index for part in self.parts for index in part.after[:count]}
        last = {kernels.result(part.after[count - 1]) for part in self.parts}
        kept = [name for name in self.whole if name not in last]
        return all(name not in kernels.outputs and inside.issuperset(kernels.readers[name]) for name in kept)


# --- weights, in the memory layouts that onnxruntime gives them -----------------------------------------------------


def _stacked_weight(kernels: KernelGraph, nodes: Sequence[NodeProto]) -> np.ndarray | None:
    """The weights stacked along their results, with kernels padded to one size; None in an unknown layout."""
    sizes = [kernels.weights[node.input[1]].shape[2:] for node in nodes]
    size = tuple(max(extents) for extents in zip(*sizes, strict=True))
    found = [_padded(kernels, node, size) for node in nodes]
    weights = [weight for weight in found if weight is not None]
    if len(weights) < len(nodes):
        return None
    return np.concatenate(weights, _result_axis(nodes[0], weights[0]))


def _result_axis(node: NodeProto, weight: np.ndarray) -> int:
    return 0 if weight.ndim > 2 or integer(node, "transB") else 1


def _bias(kernels: KernelGraph, node: NodeProto) -> np.ndarray:
    weight = kernels.weights[node.input[1]]
    bias = kernels.weights[node.input[2]] if any(node.input[2:]) else np.zeros(1, weight.dtype)
    return np.broadcast_to(bias.reshape(-1), weight.shape[_result_axis(node, weight)])


def _padded(kernels: KernelGraph, node: NodeProto, size: Sequence[int]) -> np.ndarray | None:
    """The node's weight with its kernel zero-padded to `size`, in its memory layout."""
    weight = kernels.weights[node.input[1]]
    results, taken, *kernel = weight.shape
    margins = [((want - have) // 2,) * 2 for want, have in zip(size, kernel, strict=True)]
    if not np.any(margins):
        return weight
    together = _numbers_together(kernels, node, taken)
    if together is None:
        return None
    taps = weight.reshape(-1, *kernel, together)
    return np.pad(taps, [(0, 0), *margins, (0, 0)]).reshape(results, taken, *size)


def _numbers_together(kernels: KernelGraph, node: NodeProto, taken: int) -> int | None:
    """Adjacent numbers of each tap: 1 in OIHW, more in MLAS's OIHWBo (plain input) and OIHWBiBo (blocked input)."""
    block = kernels.channel_block
    if node.domain != NCHWC:
        return 1
    if taken < block:
        return block
    return block * block if taken % block == 0 else None


def _resized(kernels: KernelGraph, node: NodeProto, size: Sequence[int]) -> NodeProto:
    """A copy of `node` for a kernel of `size`, with padding on every side for the larger reach."""
    kernel = kernels.weights[node.input[1]].shape[2:]
    grown = np.subtract(size, kernel) * integers(node, "dilations", (1,) * len(kernel)) // 2
    pads = padding(node, kernels.graph.shape(node.input[0])[2:], kernel)
    wider = np.add(pads, np.tile(grown, 2)).tolist()
    return with_attributes(node, auto_pad=None, kernel_shape=size, pads=wider)
