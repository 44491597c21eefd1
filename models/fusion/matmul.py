"""A MatMul or Gemm, then the sum with a constant bias, then an activation; one of the latter two may be missing."""

from __future__ import annotations

from collections.abc import Mapping

from iosched.models.fusion.view import GraphView, Unit


def match(view: GraphView, index: int, units: Mapping[int, Unit]) -> Unit | None:
    """The unit that begins with the product `index`."""
    if not view.is_op(index, ("MatMul", "Gemm")):
        return None
    nodes = [index]
    if (bias := _bias(view, index)) is not None:
        nodes.append(bias)
    if (activation := view.next_activation(nodes[-1])) in units:
        activation = None
    if activation is not None:
        nodes.append(activation)
    return Unit(view.nodes[index].op_type, tuple(nodes), index, activation) if len(nodes) > 1 else None


def _bias(view: GraphView, index: int) -> int | None:
    reader = view.only_reader(index)
    if reader is None or not view.is_op(reader, ("Add",)):
        return None
    product = view.nodes[index].output[0]
    other = next(name for name in view.nodes[reader].input if name != product)
    keeps_shape = view.same_shape((product, view.nodes[reader].output[0]))
    return reader if other in view.weights and keeps_shape else None
