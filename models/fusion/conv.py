"""Convolution, then BN, then the sum with a residual, then an activation; each but the convolution may be missing."""

from __future__ import annotations

from collections.abc import Mapping

from iosched.models.fusion.view import GraphView, Unit


def match(view: GraphView, index: int, units: Mapping[int, Unit]) -> Unit | None:
    """The unit that begins with the convolution `index`."""
    if not view.is_op(index, ("Conv",)) or not view.constant_from(index, 1):
        return None
    nodes = [index]
    if (norm := view.next_batch_norm(index)) is not None:
        nodes.append(norm)
    if (residual := _residual(view, nodes[-1])) is not None:
        nodes.append(residual)
    # A ReLU that leads a Relu-SepConv was taken by that one.
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
    # Of two convolutions that are summed, the deeper one is likely to end last; it does the sum.
    return reader if (view.depth[index], index) > (view.depth[rival], rival) else None


def _could_take(view: GraphView, index: int) -> bool:
    if view.only_reader(index) is None:
        return False
    if view.is_op(index, ("BatchNormalization",)):
        before = view.producer.get(view.nodes[index].input[0])
        return before is not None and view.is_op(before, ("Conv",)) and view.next_batch_norm(before) == index
    return view.is_op(index, ("Conv",)) and view.constant_from(index, 1)
