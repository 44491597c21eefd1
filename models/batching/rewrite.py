"""Rewrites a composed model so that groups of its operators are one operator each."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from graphlib import CycleError, TopologicalSorter
from operator import or_

from iosched.models.batching.axes import chosen_axes
from iosched.models.batching.unit import Parts, Unit
from iosched.models.batching.writer import Writer
from iosched.models.composition.members import members_of, node_owners, note_owners, owners
from iosched.models.editable_graph import EditableGraph, node_name
from iosched.models.graph import ComputationGraph
from iosched.models.load import edited_model
from iosched.models.model import Model

Groups = Sequence[Sequence[str]]


def batched(model: Model, groups: Groups) -> Model:
    """The model in which each of `groups` is one operator; it computes the same.

    What the operators of a group read is taken as it is where it is what another group computes, of the same members in
    the same order, or one tensor that suffices for all. Else it is joined, and what others read of a group is parted
    under the names that it had. Inputs, outputs and all other operators keep their names.

    Args:
        model: a composed model, or any other.
        groups: names of operators, two and more of each group, alike in what `likeness_of` tells of them.

    Raises:
        ValueError: operators of a group are not alike, or depend on each other once the groups are made.
        KeyError: the model has no such operator.
    """
    parts, own = Parts(model), model.graph
    order = _order(own, groups)
    units = [Unit.of(parts, [own.by_name[name] for name in group]) for group in order]
    graph = EditableGraph.of(model.proto, model.weights)
    writer = Writer(graph)
    owned = owners(model, members_of(model.proto))
    several = node_owners(own, owned)
    for group, unit, axis in zip(order, units, chosen_axes(units), strict=True):
        before = len(writer.nodes)
        unit.write(axis, writer)
        bits = reduce(or_, (owned[name] for name in group))
        several.update((node_name(node), bits) for node in writer.nodes[before:])
    graph.remove(*(node.name for unit in units for row in unit.rows for node in row))
    before = len(writer.nodes)
    writer.split_results()
    for node in writer.nodes[before:]:
        sources = (own.producer[name] for name in node.output)
        several[node_name(node)] = reduce(or_, (owned[name] for name in sources))
    note_owners(graph.frame, several)
    return edited_model(model.name, graph)


def _order(graph: ComputationGraph, groups: Groups) -> list[tuple[str, ...]]:
    """The groups, each after those that it reads from."""
    own = {name: tuple(group) for group in groups for name in group}
    if len(own) < sum(map(len, groups)) or any(len(group) < 2 for group in groups):
        raise ValueError("groups have two and more operators, and each operator is in one at most")
    sorter: TopologicalSorter[tuple[str, ...]] = TopologicalSorter()
    for name, before in graph.predecessors.items():
        here = own.get(name, (name,))
        sorter.add(here, *(own.get(other, (other,)) for other in before))
    try:
        return [group for group in sorter.static_order() if len(group) > 1]
    except CycleError as error:
        names = [group[0] for group in error.args[1]]
        raise ValueError(f"groups would wait for each other: those of {', '.join(map(repr, names))}") from error
