"""A ReLU, then a dense 1x1 convolution and what belongs to it: the Relu-Conv unit of NASNet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from iosched.models.fusion.view import GraphView, Unit
from iosched.models.node_attributes import integer


def match(view: GraphView, index: int, units: Mapping[int, Unit]) -> Unit | None:
    """The unit whose leading ReLU is node `index`, unless that is the activation of an earlier unit."""
    reader = view.only_reader(index)
    unit = None if reader is None else units.get(reader)
    if reader is None or unit is None or unit.type != "Conv" or leading_relu(view, reader, units) != index:
        return None
    return replace(unit, type="ReluConv", nodes=(index, *unit.nodes))


def leading_relu(view: GraphView, index: int, units: Mapping[int, Unit]) -> int | None:
    """The ReLU of no unit that nothing but the convolution `index` reads, if that is dense and 1x1."""
    if not view.is_op(index, ("Conv",)) or not view.constant_from(index, 1):
        return None
    relu = view.producer.get(view.nodes[index].input[0])
    if relu is None or relu in units or not view.is_op(relu, ("Relu",)) or view.only_reader(relu) != index:
        return None
    is_dense = set(view.kernel(index)[2:]) == {1} and integer(view.nodes[index], "group", 1) == 1
    return relu if is_dense and not _ends_a_sum(view, relu) else None


def _ends_a_sum(view: GraphView, index: int) -> bool:
    """Whether the ReLU `index` is the only reader of a sum of computed values; then it is counted to the sum."""
    before = view.producer.get(view.nodes[index].input[0])
    if before is None or view.only_reader(before) != index:
        return False
    if view.is_op(before, ("Concat",)) and len(view.nodes[before].input) == 1:
        return True
    return view.is_op(before, ("Add", "Sum")) and not any(name in view.weights for name in view.nodes[before].input)
