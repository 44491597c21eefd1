"""A convolution or a product of integers, what turns its sums into floats, a constant bias, and an activation.

So quantizers write operators whose input is made whole in the run (DynamicQuantizeLinear). The scale of the result,
that of the input times a constant, is computed by a node that counts to the operator where nothing else reads it.
"""

from __future__ import annotations

from collections.abc import Mapping

from iosched.models.fusion.view import GraphView, Unit


def match(view: GraphView, index: int, units: Mapping[int, Unit]) -> Unit | None:
    """The unit whose product of integers is node `index`."""
    if not view.is_op(index, ("ConvInteger", "MatMulInteger")):
        return None
    cast = _only_reader(view, index, "Cast")
    scaled = None if cast is None else _only_reader(view, cast, "Mul")
    if cast is None or scaled is None:
        return None
    nodes = [*_scale(view, cast, scaled, units), index, cast, scaled]
    if (bias := _bias(view, scaled)) is not None:
        nodes.append(bias)
    if (activation := view.next_activation(nodes[-1])) in units:
        activation = None
    if activation is not None:
        nodes.append(activation)
    return Unit(view.nodes[index].op_type, tuple(sorted(nodes)), index, activation, merges=False)


def _only_reader(view: GraphView, index: int, kind: str) -> int | None:
    reader = view.only_reader(index)
    return reader if view.is_op(reader, (kind,)) else None


def _scale(view: GraphView, cast: int, scaled: int, units: Mapping[int, Unit]) -> list[int]:
    """The node that computes what the sums are multiplied by; none where others read it, or it is no such product."""
    sums = view.nodes[cast].output[0]
    factor = next((name for name in view.nodes[scaled].input if name != sums), sums)
    index = view.producer.get(factor)
    if index is None or index in units or not view.is_op(index, ("Mul",)) or view.only_reader(index) != scaled:
        return []
    return [index] if any(name in view.weights for name in view.nodes[index].input) else []


def _bias(view: GraphView, index: int) -> int | None:
    reader = _only_reader(view, index, "Add")
    if reader is None or not any(name in view.weights for name in view.nodes[reader].input):
        return None
    return reader if view.same_shape((view.nodes[index].output[0], view.nodes[reader].output[0])) else None
