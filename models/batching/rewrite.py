"""Rewrites a composed model so that groups of its operators are one operator each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from graphlib import CycleError, TopologicalSorter
from operator import or_

from iosched.models.batching.layer import Axes, Writer
from iosched.models.batching.unit import Unit
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
    composed, own = EditableGraph.of(model.proto, model.weights, model.graph.tensor), model.graph
    order = _order(own, groups)
    units = [Unit.of(composed, [own.by_name[name] for name in group]) for group in order]
    graph = composed.copy()
    graph.tensors = {}
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


def chosen_axes(units: Sequence[Unit]) -> list[int]:
    """For each unit the axis along which what it reads is joined.

    A unit that leaves a choice follows those that it reads from, or else the first one that reads from it.

    Args:
        units: each after those that it reads from.

    Raises:
        ValueError: the operators of a unit cannot become one.
    """
    options = [unit.axes() for unit in units]
    for unit, ways in zip(units, options, strict=True):
        if not ways:
            raise ValueError(f"operators like {unit.results[0][0]!r} cannot become one")
    source = {names: index for index, unit in enumerate(units) for names in unit.results}
    readers: dict[int, list[int]] = {}
    found: dict[int, int] = {}
    for index, unit in enumerate(units):
        fed = [source[names] for names in unit.ports() if names in source]
        for feeder in fed:
            readers.setdefault(feeder, []).append(index)
        axis = _followed(options[index], [options[feeder][found[feeder]] for feeder in fed if feeder in found])
        if axis is not None:
            found[index] = axis
    for index in reversed(range(len(units))):
        if index not in found:
            found[index] = _ahead(options[index], [found[reader] for reader in readers.get(index, ())])
    return [found[index] for index in range(len(units))]


def _followed(options: Axes, before: Sequence[int]) -> int | None:
    """The axis of those that are read from, as far as there is a choice; None where they do not tell."""
    if len(options) == 1:
        return next(iter(options))
    return next((axis for axis in before if axis in options), None)


def _ahead(options: Mapping[int, int], behind: Sequence[int]) -> int:
    """The axis that gives a result as a reader wants it; the first one where none tells."""
    wanted = (own for axis in behind for own, result in options.items() if result == axis)
    return next(wanted, next(iter(options)))
