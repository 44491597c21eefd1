"""Assigns optimized nodes to operators, and builds the coarser graph that the CPU schedules.

onnxruntime fuses, renames and inserts nodes. Operators that a fusion joins are scheduled as one unit: units are the
strongly connected components of the operators under the dependencies of both graphs, so any order of units that
respects the coarse graph can be lowered.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from iosched.models.graph import ComputationGraph
from iosched.models.model import Model
from iosched.runtime.cpu.kernel_graph import KernelGraph
from iosched.scheduler.unit_graph import UnitGraph, components, contracted, with_rings

# Suffixes of onnxruntime ("<tensor>_nchwc", "<name>_token_3", "<name>/MatmulTransposeFusion/"), `keep_blocked` and
# `share_rows`.
_DECORATION = re.compile(r"(_nchwc|_token_\d+|_token|_fused|/\w*Fusion\w*/?|/(blocked|inner|plain|view)'*|/rows\d*'*)$")


@dataclass(frozen=True, eq=False)
class CoarseGraph:
    """The computation graph as this CPU can schedule it.

    Attributes:
        units: the units; their graph has the edges of both the operators and the optimized nodes.
        nodes: optimized nodes of each unit in topological order; empty for a unit that costs nothing.
    """

    units: UnitGraph
    nodes: Mapping[str, tuple[int, ...]]


def coarsen(
    graph: ComputationGraph,
    kernels: KernelGraph,
    tensor_owner: Mapping[str, str],
    requested: Iterable[Sequence[str]] = (),
) -> CoarseGraph:
    """Assign every optimized node to an operator, and merge operators that depend on each other into units.

    Args:
        graph: the computation graph.
        kernels: its optimized graph.
        tensor_owner: the operator that computes each tensor of the model, also inside operators.
        requested: the user's units, which `join_units` accepts; fused kernels may enlarge them.
    """
    owners = _owners(graph, kernels, tensor_owner)
    after = with_rings(_dependencies(graph, kernels, owners), requested)
    units = _absorb_empty(components([o.name for o in graph.operators], after), after, set(owners))
    return _with_nodes(contracted(graph, units, after), owners)


def _owners(graph: ComputationGraph, kernels: KernelGraph, tensor_owner: Mapping[str, str]) -> list[str]:
    """The owner of each node; inserted nodes of unknown origin (casts, transposes) belong to their neighbours."""
    owners = [_named_owner(node.output, node.name, tensor_owner) for node in kernels.nodes]
    for index, names in enumerate(kernels.reads):
        if owners[index] is None:
            made_by = [owners[kernels.producer[name]] for name in names if name in kernels.producer]
            owners[index] = next((owner for owner in reversed(made_by) if owner), None)
    for index in reversed(range(len(owners))):
        if owners[index] is None:
            used_by = [owners[r] for name in kernels.nodes[index].output for r in kernels.readers.get(name, ())]
            owners[index] = next((owner for owner in used_by if owner), graph.operators[0].name)
    return [owner for owner in owners if owner is not None]


def _named_owner(outputs: Iterable[str], node_name: str, tensor_owner: Mapping[str, str]) -> str | None:
    for name in (*outputs, node_name):
        owner = owner_of(name, tensor_owner)
        if owner is not None:
            return owner
    return None


def owner_of(name: str, tensor_owner: Mapping[str, str]) -> str | None:
    """The owner of a tensor or node, even if onnxruntime or `keep_blocked` decorated its name."""
    while name not in tensor_owner:
        shorter = _DECORATION.sub("", name)
        if shorter == name:
            return None
        name = shorter
    return tensor_owner[name]


def _dependencies(graph: ComputationGraph, kernels: KernelGraph, owners: list[str]) -> dict[str, set[str]]:
    after: dict[str, set[str]] = {name: set(names) for name, names in graph.successors.items()}
    for index, names in enumerate(kernels.reads):
        for name in names:
            if name not in kernels.producer or owners[kernels.producer[name]] == owners[index]:
                continue
            after[owners[kernels.producer[name]]].add(owners[index])
            if not kernels.tensors[name].is_static:  # a stage must be measurable with inputs of known size
                after[owners[index]].add(owners[kernels.producer[name]])
    return after


def _absorb_empty(components: list[list[str]], after: Mapping[str, set[str]], with_nodes: set[str]) -> list[list[str]]:
    """Joins each component that no node belongs to with the last component it depends on.

    Joining with the topologically last predecessor cannot close a cycle: a path between the two would end in a
    predecessor that is later still.
    """
    home: dict[str, list[str]] = {}
    kept: list[list[str]] = []
    rank: dict[int, int] = {}
    for component in components:
        empty = not with_nodes.intersection(component)
        before = [home[name] for name in home if after[name].intersection(component)] if empty else []
        target = component
        if before:
            target = max(before, key=lambda unit: rank[id(unit)])
            target.extend(component)
        else:
            rank[id(component)] = len(kept)
            kept.append(component)
        home.update(dict.fromkeys(component, target))
    return kept


def _with_nodes(units: UnitGraph, owners: Sequence[str]) -> CoarseGraph:
    nodes: dict[str, list[int]] = {unit: [] for unit in units.members}
    for index, owner in enumerate(owners):
        nodes[units.unit_of[owner]].append(index)
    return CoarseGraph(units, {unit: tuple(found) for unit, found in nodes.items()})


def tensor_owners(model: Model) -> dict[str, str]:
    """For every tensor that a node of `model` computes, the operator that covers the node."""
    covering = {node: operator.name for operator in model.graph.operators for node in operator.nodes}
    owners = {}
    for node in model.proto.graph.node:
        names = [name for name in node.output if name]
        if names and names[0] in covering:
            owners.update(dict.fromkeys(names, covering[names[0]]))
    return owners
