"""Concat and Split, also along the axis of the joined members, which a Reshape then moves to a separate axis."""

from __future__ import annotations

from iosched.models.batching.layer import Axes, Constants, Joined, MemberLayer, Single, Writer, same, scaled
from iosched.models.node_attributes import assign, integer

TYPES = frozenset({"Concat", "Split"})


def axes(layer: MemberLayer) -> Axes:
    """All axes."""
    return same(() if any(0 in shape for shape in layer.results) else range(len(layer.shape)))


def write(layer: MemberLayer, axis: int, writer: Writer) -> list[Joined]:
    """The node over all members."""
    cut = integer(layer.node, "axis", 1 if layer.node.op_type == "Concat" else 0)
    cut += len(layer.shape) if cut < 0 else 0
    names = [_operand(layer, operand, axis, cut, writer) for operand in layer.operands if operand]
    outputs = [writer.fresh(name, layer.count) for name in layer.node.output]
    node = writer.add(layer.node, names, outputs)
    assign(node, axis=cut + 1 if axis == cut else cut)
    if axis != cut:
        return [Joined(name, axis, shape) for name, shape in zip(outputs, layer.results, strict=True)]
    return [
        Joined(writer.reshaped(name, scaled(shape, axis, layer.count), own, layer.count), axis, shape)
        for name, own, shape in zip(outputs, layer.node.output, layer.results, strict=True)
    ]


def _operand(layer: MemberLayer, operand: Joined | Single | Constants, axis: int, cut: int, writer: Writer) -> str:
    """An operand, with an axis for the members if they are joined along the node's axis; or a Split's sizes."""
    if isinstance(operand, Constants):
        if layer.node.op_type == "Split":
            return operand.name
        shape = tuple(operand.first.shape)
        name = writer.spread(operand, len(layer.shape), axis, shape[axis])
    else:
        name, shape = operand.name, operand.shape
    if axis != cut:
        return name
    return writer.reshaped(name, (*shape[:axis], layer.count, *shape[axis:]), f"{name}/apart", layer.count)
