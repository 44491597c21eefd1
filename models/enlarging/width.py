"""Operators with more channels, as a designer would give them; what reads them in the same part reads all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx

from iosched.models.enlarging.part import Part
from iosched.models.fusion.view import ACTIVATIONS
from iosched.models.node_attributes import assign, integer
from iosched.models.wiring import is_standard

_KEEPS = ACTIVATIONS | {
    "AveragePool", "Cast", "Dropout", "GlobalAveragePool", "GlobalMaxPool", "Identity", "LRN", "LpPool", "MaxPool",
}  # fmt: skip
"""Every channel is computed from one, by the same rule for all."""
_COMBINES = frozenset({"Add", "Div", "Max", "Min", "Mul", "PRelu", "Sub", "Sum"})


def width_of(part: Part, operator: str) -> int | None:
    """How many channels an operator computes; None where it is no convolution or product with weights of its own."""
    anchor = _anchor(part, operator)
    return None if anchor is None else part.shape(anchor.input[1])[_result_axis(anchor)]


def widened(part: Part, operator: str, width: int) -> Part | None:
    """The part in which `operator` computes `width` channels, more than it does.

    Weights for the new channels are those of others, so that kernels compute with ordinary numbers. What reads them
    outside of the part is not changed.

    Returns:
        None where the operator has no width, where the model returns its channels, or where something in the part takes
        channels in a way that has no such meaning: a sum with what is computed elsewhere, a Reshape.

    Complexity: O(nodes and edges of the part, and the weights that change).
    """
    anchor = _anchor(part, operator)
    if anchor is None:
        return None
    result = anchor.output[0]
    axis = 1 if anchor.op_type == "Conv" else len(part.shape(result)) - 1
    draft = _Draft(part, axis)
    draft.grow_weights(anchor, {1: _result_axis(anchor), 2: -1}, width)
    draft.more[result] = width - part.shape(result)[axis]
    for node in part.nodes:
        if draft.more_read(node) and not draft.takes(node):
            return None
    if part.returned.intersection(draft.more):
        return None
    return draft.made()


def _anchor(part: Part, operator: str) -> onnx.NodeProto | None:
    """The last node of the operator whose number of results is free."""
    return next((node for node in reversed(part.of(operator)) if _is_free(part, node)), None)


def _is_free(part: Part, node: onnx.NodeProto) -> bool:
    if (
        not is_standard(node)
        or len(node.input) < 2
        or node.input[1] not in part.weights
        or not part.shape(node.output[0])
    ):
        return False
    if any(name and name not in part.weights for name in node.input[2:]):
        return False
    if node.op_type == "Conv":
        return integer(node, "group", 1) == 1
    return node.op_type in ("Gemm", "MatMul") and part.weights[node.input[1]].ndim == 2


def _result_axis(node: onnx.NodeProto) -> int:
    """The axis of a convolution's or a product's weights that its results are counted along."""
    is_rows = node.op_type == "Conv" or (node.op_type == "Gemm" and integer(node, "transB"))
    return 0 if is_rows else 1


@dataclass(eq=False)
class _Draft:
    """A part while its channels grow along one axis.

    Attributes:
        more: by how many channels tensors have grown.
    """

    part: Part
    axis: int
    more: dict[str, int] = field(default_factory=dict)
    nodes: dict[str, onnx.NodeProto] = field(default_factory=dict)
    weights: dict[str, np.ndarray] = field(default_factory=dict)

    def more_read(self, node: onnx.NodeProto) -> bool:
        """Whether the node reads anything that has grown."""
        return any(name in self.more for name in node.input)

    def takes(self, node: onnx.NodeProto) -> bool:
        """Lets the node read what has grown; False where it cannot."""
        rule = _RULES.get(node.op_type, _keeps if node.op_type in _KEEPS else None)
        return is_standard(node) and rule is not None and rule(self, node)

    def grow_weights(self, node: onnx.NodeProto, axes: Mapping[int, int], size: int) -> onnx.NodeProto:
        """The node with weights that have `size` entries along an axis, by the places of inputs."""
        changed = onnx.NodeProto()
        changed.CopyFrom(self.nodes.get(node.name, node))
        for place, axis in axes.items():
            if place < len(node.input) and node.input[place]:
                array = self.weights.get(changed.input[place], self.part.weights.get(node.input[place]))
                assert array is not None
                changed.input[place] = f"{node.name}/{place}"
                self.weights[changed.input[place]] = _grown(array, axis, size)
        self.nodes[node.name] = changed
        return changed

    def made(self) -> Part:
        """The part as it is now."""
        shapes = {}
        for name, count in self.more.items():
            shape = list(self.part.shape(name))
            shape[self.axis] += count
            shapes[name] = tuple(shape)
        return self.part.changed(self.nodes, self.weights, shapes)


def _grown(array: np.ndarray, axis: int, size: int) -> np.ndarray:
    """The array with as many entries along an axis, the first ones again and again; one number takes no memory."""
    if not any(array.strides):
        shape = list(array.shape)
        shape[axis] = size
        return np.broadcast_to(array[(0,) * array.ndim], shape) if array.size else array
    grown: np.ndarray = np.take(array, np.arange(size) % array.shape[axis], axis)
    return grown


def _keeps(draft: _Draft, node: onnx.NodeProto) -> bool:
    draft.more[node.output[0]] = draft.more[node.input[0]]
    return len(draft.part.shape(node.output[0])) > draft.axis


def _convolves(draft: _Draft, node: onnx.NodeProto) -> bool:
    """A dense convolution reads more channels, a depthwise one computes more."""
    part, groups = draft.part, integer(node, "group", 1)
    if draft.axis != 1 or node.input[0] not in draft.more or any(name not in part.weights for name in node.input[1:]):
        return False
    channels = part.shape(node.input[0])[1]
    size = channels + draft.more[node.input[0]]
    if groups == 1:
        draft.grow_weights(node, {1: 1}, size)
        return True
    if groups != channels or part.shape(node.output[0])[1] != channels:
        return False
    assign(draft.grow_weights(node, {1: 0, 2: 0}, size), group=size)
    draft.more[node.output[0]] = draft.more[node.input[0]]
    return True


def _multiplies(draft: _Draft, node: onnx.NodeProto) -> bool:
    """A product with a matrix reads longer rows."""
    source, part = node.input[0], draft.part
    is_row = source in draft.more and len(part.shape(source)) - 1 == draft.axis
    if not is_row or node.input[1] not in part.weights or integer(node, "transA"):
        return False
    size = part.shape(source)[draft.axis] + draft.more[source]
    draft.grow_weights(node, {1: part.weights[node.input[1]].ndim - 1 - _result_axis(node)}, size)
    return part.weights[node.input[1]].ndim == 2


def _normalizes(draft: _Draft, node: onnx.NodeProto) -> bool:
    if draft.axis != 1 or any(name not in draft.part.weights for name in node.input[1:]):
        return False
    size = draft.part.shape(node.input[0])[1] + draft.more[node.input[0]]
    draft.grow_weights(node, dict.fromkeys(range(1, 5), 0), size)
    return _keeps(draft, node)


def _joins(draft: _Draft, node: onnx.NodeProto) -> bool:
    axis, rank = integer(node, "axis", 1), len(draft.part.shape(node.output[0]))
    draft.more[node.output[0]] = sum(draft.more.get(name, 0) for name in node.input)
    return axis % max(rank, 1) == draft.axis


def _combines(draft: _Draft, node: onnx.NodeProto) -> bool:
    """Operands have the same channels, or are weights with an entry for each channel, or one for all."""
    part, result = draft.part, node.output[0]
    rank = len(part.shape(result))
    channels = part.shape(result)[draft.axis] if rank > draft.axis else 0
    counts = {draft.more.get(name, 0) for name in node.input if name not in part.weights}
    if len(counts) != 1 or not channels:
        return False
    (draft.more[result],) = counts
    places = [place for place, name in enumerate(node.input) if name not in part.weights]
    if any(len(part.shape(node.input[place])) != rank or part.shape(node.input[place])[draft.axis] != channels
           for place in places):  # fmt: skip
        return False
    axes = _axes_with(part, node, draft.axis - rank, channels)
    draft.grow_weights(node, axes, channels + draft.more[result])
    return True


def _axes_with(part: Part, node: onnx.NodeProto, axis: int, channels: int) -> dict[int, int]:
    """For weights that have an entry for each channel: the axis, counted from the end, by the place of the input."""
    own = ((place, part.shape(name)) for place, name in enumerate(node.input) if name in part.weights)
    return {place: axis for place, shape in own if len(shape) >= -axis and shape[axis] == channels > 1}


_Rule = Callable[[_Draft, onnx.NodeProto], bool]
_RULES: Mapping[str, _Rule] = {
    "Conv": _convolves,
    "MatMul": _multiplies,
    "Gemm": _multiplies,
    "BatchNormalization": _normalizes,
    "Concat": _joins,
    **dict.fromkeys(_COMBINES, _combines),
}


def widths(width: int, block: int, most: int) -> Sequence[int]:
    """Widths worth trying above this one: whole blocks of channels, the steps doubling, up to twice the width.

    The first whole number of blocks is always among them.

    Args:
        block: how many channels kernels take at once.
        most: how many widths there are at most.
    """
    first = (width // block + 1) * block
    found = [first + block * (2**step - 1) for step in range(most)]
    return [each for each in found if each <= max(2 * width, first)]
