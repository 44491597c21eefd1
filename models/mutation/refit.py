"""What weights a node needs for what it reads now, where the number of channels before it was changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod

import numpy as np

from iosched.models.graph import AttributeValue
from iosched.models.mutation.graph import GraphView, Node

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Needs:
    """What a node has to get.

    Attributes:
        weights: instead of those that do not fit, by their places: shapes, or values.
        attributes: those that go with them.
        ends: whether its weights alone say how many channels it computes, so that nothing behind it is concerned.
    """

    weights: Mapping[int, Shape | np.ndarray] = field(default_factory=dict)
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)
    ends: bool = False


def needs(graph: GraphView, node: Node) -> Needs:
    """What `node` needs, so that its weights fit what it reads; nothing where shapes are not known. O(1)."""
    rule, read = _RULES.get(node.type), [graph.spec(name) for name in node.inputs if name]
    if rule is None or any(spec is None or spec.shape is None for spec in read):
        return Needs()
    return rule(graph, node)


def _conv(graph: GraphView, node: Node) -> Needs:
    channels, kernel = graph.shape(node.inputs[0])[1], graph.shape(node.inputs[1])
    group = node.attributes.get("group", 1)
    if not isinstance(group, int) or node.inputs[1] not in graph.weights:
        return Needs(ends=True)
    if kernel[1] == 1 and group > 1:  # depthwise: as many results for each channel as before
        results = channels * (kernel[0] // group)
        wanted = {1: (results, *kernel[1:]), **({2: (results,)} if len(node.inputs) > 2 else {})}
        return Needs(_unlike(graph, node, wanted), {} if group == channels else {"group": channels})
    return Needs(_unlike(graph, node, {1: (kernel[0], channels // group, *kernel[2:])}), ends=True)


def _normalization(graph: GraphView, node: Node) -> Needs:
    channels = graph.shape(node.inputs[0])[1]
    return Needs(_unlike(graph, node, dict.fromkeys(range(1, len(node.inputs)), (channels,))))


def _gemm(graph: GraphView, node: Node) -> Needs:
    data, matrix = graph.shape(node.inputs[0]), graph.shape(node.inputs[1])
    inner = data[0] if node.attributes.get("transA") else data[1]
    wanted = (matrix[0], inner) if node.attributes.get("transB") else (inner, matrix[1])
    return Needs(_unlike(graph, node, {1: wanted}), ends=True)


def _matmul(graph: GraphView, node: Node) -> Needs:
    data, matrix = graph.shape(node.inputs[0]), graph.shape(node.inputs[1])
    if node.inputs[1] not in graph.weights or len(matrix) < 2:
        return Needs(ends=node.inputs[1] in graph.weights)
    return Needs(_unlike(graph, node, {1: (*matrix[:-2], data[-1], matrix[-1])}), ends=True)


def _element_by_element(graph: GraphView, node: Node) -> Needs:
    """Constants spread over the other operand: an axis that is neither 1 nor as long as that becomes as long."""
    places = [place for place, name in enumerate(node.inputs) if name in graph.weights]
    others = [graph.shape(name) for name in node.inputs if name not in graph.weights]
    if len(others) != 1:
        return Needs()
    (whole,), wanted = others, {}
    for place in places:
        shape = graph.shape(node.inputs[place])
        if len(shape) <= len(whole):
            last = whole[len(whole) - len(shape) :]
            wanted[place] = tuple(1 if own == 1 else size for own, size in zip(shape, last, strict=True))
    return Needs(_unlike(graph, node, wanted))


def _reshape(graph: GraphView, node: Node) -> Needs:
    """Another size for the one axis that can have one, if there is one alone; the batch stays."""
    data, target = graph.shape(node.inputs[0]), graph.weights.get(node.inputs[1])
    if target is None or target.ndim != 1 or target.size == 0 or min(target.tolist()) < 1:
        return Needs()
    if prod(data) == prod(target.tolist()):
        return Needs(ends=True)
    batch = 1 if data[:1] == (target[0],) and target.size > 1 else 0
    sizes = {axis: divmod(prod(data) * int(target[axis]), prod(target.tolist())) for axis in range(batch, target.size)}
    possible = {axis: size for axis, (size, rest) in sizes.items() if not rest}
    if len(possible) != 1:
        return Needs()
    ((axis, size),) = possible.items()
    changed = target.copy()
    changed[axis] = size
    return Needs({1: changed})


def _unlike(graph: GraphView, node: Node, wanted: Mapping[int, Shape]) -> dict[int, Shape | np.ndarray]:
    """Those of the wanted weights that are constants of another shape now."""
    constant = {place: shape for place, shape in wanted.items() if node.inputs[place] in graph.weights}
    return {place: shape for place, shape in constant.items() if graph.shape(node.inputs[place]) != shape}


_RULES: Mapping[str, Callable[[GraphView, Node], Needs]] = {
    **{"Conv": _conv, "Gemm": _gemm, "MatMul": _matmul, "Reshape": _reshape},
    **dict.fromkeys(("BatchNormalization", "InstanceNormalization"), _normalization),
    **dict.fromkeys(("Add", "Sub", "Mul", "Div", "PRelu"), _element_by_element),
}
