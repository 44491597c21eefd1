"""Which operator of the computation graph each optimized node belongs to, and the coarser graph the CPU schedules.

onnxruntime fuses, renames and inserts nodes. Where a fusion reaches across operators they are scheduled as one unit:
units are the strongly connected components of the operators under the dependencies of both graphs, so that any order
of units that respects the coarse graph can be lowered.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from iosched.models.graph import ComputationGraph, Operator
from iosched.models.model import Model
from iosched.runtime.cpu.kernel_graph import KernelGraph

# How onnxruntime names what it makes of a node: "<tensor>_nchwc", "<name>_token_3", "<name>/MatmulTransposeFusion/";
# and how `keep_blocked` and `share_rows` do.
_DECORATION = re.compile(r"(_nchwc|_token_\d+|_token|_fused|/\w*Fusion\w*/?|/(blocked|inner|plain|view)'*|/rows\d*'*)$")


@dataclass(frozen=True, eq=False)
class CoarseGraph:
    """The computation graph as this CPU can schedule it.

    Attributes:
        graph: one operator for each unit; edges are those of both the operators and the optimized nodes.
        members: for each unit, the operators of the original graph in it, in topological order.
        nodes: for each unit, its optimized nodes in topological order; empty for a unit that costs nothing.
    """

    graph: ComputationGraph
    members: Mapping[str, tuple[str, ...]]
    nodes: Mapping[str, tuple[int, ...]]

    def unit_of(self) -> dict[str, str]:
        """For each operator of the original graph, the unit it is in."""
        return {name: unit for unit, names in self.members.items() for name in names}


def coarsen(graph: ComputationGraph, kernels: KernelGraph, tensor_owner: Mapping[str, str]) -> CoarseGraph:
    """Assigns every optimized node to an operator, and makes one unit of operators that depend on each other.

    Args:
        graph: the computation graph.
        kernels: what onnxruntime made of it.
        tensor_owner: for every tensor of the model, also those inside operators, the operator that computes it.
    """
    owners = _owners(graph, kernels, tensor_owner)
    after = _dependencies(graph, kernels, owners)
    units = _absorb_empty(_components([o.name for o in graph.operators], after), after, set(owners))
    return _contract(graph, units, after, owners)


def _owners(graph: ComputationGraph, kernels: KernelGraph, tensor_owner: Mapping[str, str]) -> list[str]:
    """The owner of each node; nodes of unknown origin (inserted casts, transposes) go with their neighbours."""
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
    """Whose tensor, or node of the same name, `name` is, also where onnxruntime or `keep_blocked` decorated it."""
    while name not in tensor_owner:
        shorter = _DECORATION.sub("", name)
        if shorter == name:
            return None
        name = shorter
    return tensor_owner[name]


def _dependencies(graph: ComputationGraph, kernels: KernelGraph, owners: list[str]) -> dict[str, set[str]]:
    """For every operator, those that depend on it in either graph."""
    after: dict[str, set[str]] = {name: set(names) for name, names in graph.successors.items()}
    for index, names in enumerate(kernels.reads):
        for name in names:
            if name not in kernels.producer or owners[kernels.producer[name]] == owners[index]:
                continue
            after[owners[kernels.producer[name]]].add(owners[index])
            if not kernels.tensors[name].is_static:  # a stage must be measurable with inputs of known size
                after[owners[index]].add(owners[kernels.producer[name]])
    return after


def _components(names: list[str], after: Mapping[str, set[str]]) -> list[list[str]]:
    """Strongly connected components in topological order (Tarjan 1972, iterative); O(operators + edges)."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    done: set[str] = set()
    stack: list[str] = []
    found: list[list[str]] = []
    place = {name: index for index, name in enumerate(names)}
    for root in names:
        if root in order:
            continue
        work = [(root, iter(sorted(after[root], key=place.__getitem__)))]
        order[root] = low[root] = len(order)
        stack.append(root)
        while work:
            name, successors = work[-1]
            following = next((s for s in successors if s not in done), None)
            if following is None:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[name])
                if low[name] == order[name]:
                    found.append(_pop_component(stack, name, done, place))
            elif following in order:
                low[name] = min(low[name], order[following])
            else:
                order[following] = low[following] = len(order)
                stack.append(following)
                work.append((following, iter(sorted(after[following], key=place.__getitem__))))
    return found[::-1]


def _pop_component(stack: list[str], root: str, done: set[str], place: Mapping[str, int]) -> list[str]:
    component = []
    while True:
        name = stack.pop()
        done.add(name)
        component.append(name)
        if name == root:
            return sorted(component, key=place.__getitem__)


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


def _contract(
    graph: ComputationGraph, units: list[list[str]], after: Mapping[str, set[str]], owners: list[str]
) -> CoarseGraph:
    place = {operator.name: index for index, operator in enumerate(graph.operators)}
    units = sorted(units, key=lambda unit: min(place[name] for name in unit))  # siblings stay in the model's order
    home = {name: index for index, unit in enumerate(units) for name in unit}
    nodes: list[list[int]] = [[] for _ in units]
    for index, owner in enumerate(owners):
        nodes[home[owner]].append(index)
    before: list[set[int]] = [set() for _ in units]
    for name, successors in after.items():
        for successor in successors:
            if home[name] != home[successor]:
                before[home[successor]].add(home[name])
    operators = [_unit_operator(graph, unit) for unit in units]
    linked = [_with_edges(o, [operators[p] for p in sorted(before[i])]) for i, o in enumerate(operators)]
    linked = [linked[i] for i in _topological(before)]
    return CoarseGraph(
        graph=replace(graph, operators=tuple(linked)),
        members={operator.name: tuple(unit) for operator, unit in zip(operators, units, strict=True)},
        nodes={operator.name: tuple(found) for operator, found in zip(operators, nodes, strict=True)},
    )


def _topological(before: list[set[int]]) -> list[int]:
    """Kahn's algorithm, smallest index first, so that the order stays close to the model's own."""
    missing = [len(names) for names in before]
    after: list[list[int]] = [[] for _ in before]
    for index, names in enumerate(before):
        for name in names:
            after[name].append(index)
    ready = [index for index, count in enumerate(missing) if count == 0]
    heapq.heapify(ready)
    order = []
    while ready:
        index = heapq.heappop(ready)
        order.append(index)
        for successor in after[index]:
            missing[successor] -= 1
            if missing[successor] == 0:
                heapq.heappush(ready, successor)
    return order


def _unit_operator(graph: ComputationGraph, names: list[str]) -> Operator:
    """One operator that stands for several."""
    if len(names) == 1:
        return graph.by_name[names[0]]
    members = [graph.by_name[name] for name in names]
    made = [tensor for member in members for tensor in member.outputs]
    inside = set(names)
    used_outside = {t for o in graph.operators if o.name not in inside for t in o.inputs} | set(graph.outputs)
    outputs = [tensor for tensor in made if tensor in used_outside] or [members[-1].name]
    inputs = dict.fromkeys(t for member in members for t in member.inputs if t not in made)
    return Operator(
        name=outputs[0],
        type="+".join(member.type for member in members),
        nodes=tuple(node for member in members for node in member.nodes),
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        attributes=tuple(
            (f"{index}.{key}", value) for index, member in enumerate(members) for key, value in member.attributes
        ),
        weights=tuple(weight for member in members for weight in member.weights),
        flops=sum(member.flops for member in members),
        nbytes=sum(member.nbytes for member in members),
    )


def _with_edges(operator: Operator, before: list[Operator]) -> Operator:
    """Adds the dependencies that only the optimized nodes have, as inputs."""
    extra = [p.outputs[0] for p in before if not set(p.outputs).intersection(operator.inputs)]
    return replace(operator, inputs=(*operator.inputs, *extra)) if extra else operator


def tensor_owners(model: Model) -> dict[str, str]:
    """For every tensor that a node of `model` computes, the operator that covers the node."""
    covering = {node: operator.name for operator in model.graph.operators for node in operator.nodes}
    owners = {}
    for node in model.proto.graph.node:
        names = [name for name in node.output if name]
        if names and names[0] in covering:
            owners.update(dict.fromkeys(names, covering[names[0]]))
    return owners
