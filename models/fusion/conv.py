"""A convolution, then batch normalization or other constant scales and shifts of each channel, then the sum with
another operator's value (the residual), then an activation.

All but the convolution may be missing.
"""

from __future__ import annotations

from collections.abc import Mapping

from iosched.models.affine import is_per_channel
from iosched.models.fusion.relu_conv import leading_relu
from iosched.models.fusion.view import GraphView, Unit
from iosched.models.wiring import writes


def match(view: GraphView, index: int, units: Mapping[int, Unit]) -> Unit | None:
    """The unit that begins with the convolution `index`."""
    if not view.is_op(index, ("Conv",)) or not view.constant_from(index, 1):
        return None
    nodes = [index]
    while (norm := _next_affine(view, nodes[-1])) is not None:
        nodes.append(norm)
    # A convolution that a ReLU leads becomes a Relu-Conv, and such a unit has no residual.
    residual = None if leading_relu(view, index, units) is not None else _residual(view, nodes[-1])
    if residual is not None:
        nodes.append(residual)
    if (gate := view.next_gate(nodes[-1])) is not None:
        return Unit("Conv", (*nodes, *gate), index, gate[1], residual)
    # An activation may belong to another unit already: a ReLU that leads a Relu-SepConv does.
    if (activation := view.next_activation(nodes[-1])) in units:
        activation = None
    if activation is not None:
        nodes.append(activation)
    return Unit("Conv", tuple(nodes), index, activation, residual)


def _residual(view: GraphView, index: int) -> int | None:
    reader = view.only_reader(index)
    if reader is None or not view.is_op(reader, ("Add", "Sum")) or len(view.nodes[reader].input) != 2:
        return None
    mine = view.nodes[index].output[0]
    other = next(name for name in view.nodes[reader].input if name != mine)
    if other in view.weights or not view.same_shape((mine, other)):
        return None
    rival = view.producer.get(other)
    if rival is None or not _could_take(view, rival):
        return reader
    # Of two convolutions whose results are summed, the deeper one probably ends last, and does the sum. Of two that are
    # equally deep, the one that is the second operand does; the order of nodes in the file must not decide.
    if view.depth[index] != view.depth[rival]:
        return reader if view.depth[index] > view.depth[rival] else None
    return reader if view.nodes[reader].input[1] == mine else None


def _could_take(view: GraphView, index: int) -> bool:
    """Whether node `index` computes the result of another convolution, which could add the residual as well."""
    if view.only_reader(index) is None:
        return False
    if view.is_op(index, ("Conv",)):
        return view.constant_from(index, 1)
    before = next((view.producer[name] for name in view.nodes[index].input if name in view.producer), None)
    return before is not None and _next_affine(view, before) == index and _could_take(view, before)


def _next_affine(view: GraphView, index: int) -> int | None:
    norm = view.next_batch_norm(index)
    if norm is not None:
        return norm
    reader = view.only_reader(index)
    if reader is None or not view.is_op(reader, ("Mul", "Add")):
        return None
    constants = [view.weights[name] for name in view.nodes[reader].input if name in view.weights]
    result = writes(view.nodes[reader])[0]
    if len(constants) != 1 or not view.same_shape((*writes(view.nodes[index]), result)):
        return None
    return reader if is_per_channel(constants[0].shape, len(view.specs[result].shape or ())) else None
