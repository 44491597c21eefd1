"""Schedules graphs of several models: connected components, and regions of shared and own operators.

Weakly connected components are searched separately, equal ones once, and then run in one of three ways: one after
another; equal components in step, each stage concurrently with its copies; or all components in a single stage, one
group each. `Pruning` applies within components only, since the last two ways have a group for each component.

Operators that models share alternate with operators of single models. No stage crosses between two such regions.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from heapq import heappop, heappush

from iosched.models.graph import ComputationGraph, TensorSpec
from iosched.scheduler.block_searches import Deadline
from iosched.scheduler.cost import CostModel, CostQuestion, OperatorBounds, OperatorKeys, announce
from iosched.scheduler.equivalence import block_key
from iosched.scheduler.schedule import Block, Schedule, Stage, Strategy, sum_us
from iosched.scheduler.search import SearchResult

Part = tuple[str, ...]
"""The operators of a component, in topological order."""

Find = Callable[[ComputationGraph, CostModel], SearchResult]


def components(graph: ComputationGraph) -> tuple[Part, ...]:
    """The weakly connected components, in the order of their first operators; O(operators + edges)."""
    head: dict[str, str] = {}
    for operator in graph.operators:
        if operator.name in head:
            continue
        reached = {operator.name: None}
        waiting = [operator.name]
        for name in waiting:
            neighbours = (*graph.predecessors[name], *graph.successors[name])
            waiting.extend(other for other in dict.fromkeys(neighbours) if other not in reached)
            reached.update(dict.fromkeys(neighbours))
        head.update(dict.fromkeys(reached, operator.name))
    found: dict[str, list[str]] = {}
    for operator in graph.operators:
        found.setdefault(head[operator.name], []).append(operator.name)
    return tuple(map(tuple, found.values()))


def search_components(
    graph: ComputationGraph, cost: CostModel, find: Find, *, concurrent: bool = True, is_over: Deadline = lambda: False
) -> SearchResult:
    """The result of `find` for a connected graph; else the best of the three ways to run its components.

    `lower_bound_us` assumes components one after another; it is 0 if they run otherwise. Raises as `find` does.

    Args:
        concurrent: whether components may run concurrently.
        is_over: once true, the device is not used any more.
    """
    parts = components(graph)
    if len(parts) < 2:
        return find(graph, cost)
    sets = [_Equal(graph, same) for same in _classes(graph, cost, parts)]
    alone = [find(same.graph, cost) for same in sets]
    chosen = [same.in_a_row(each) for same, each in zip(sets, alone, strict=True)]
    if concurrent:
        chosen = [same.in_step(cost, find, each, is_over) for same, each in zip(sets, chosen, strict=True)]
        chosen = [_all_concurrent(cost, parts, chosen, is_over)]
    return one_after_another(chosen)


def one_after_another(results: Sequence[SearchResult]) -> SearchResult:
    """Joins the results for parts of a graph, none of which reads from a later one."""
    blocks = (block for result in results for block in result.schedule.blocks)
    return SearchResult(
        Schedule(tuple(replace(block, index=index) for index, block in enumerate(blocks))),
        states=sum(result.states for result in results),
        transitions=sum(result.transitions for result in results),
        stages=sum(result.stages for result in results),
        measured=sum(result.measured for result in results),
        lower_bound_us=sum(result.lower_bound_us for result in results),
        remeasured=sum(result.remeasured for result in results),
        predicted_least_us=sum_us(result.predicted_least_us for result in results),
        scope="blocks",
    )


def _all_concurrent(
    cost: CostModel, parts: Sequence[Part], results: Sequence[SearchResult], is_over: Deadline
) -> SearchResult:
    found = one_after_another(results)
    if is_over():
        return found
    whole = side_by_side(cost, parts)
    asked = replace(found, measured=found.measured + 1)
    if not _is_less(whole.predicted_us, found.schedule.predicted_us):
        return asked
    return asked.unbounded(Schedule((Block(0, (whole,)),)))


def side_by_side(cost: CostModel, parts: Sequence[Part]) -> Stage:
    """A stage of all components, one group each, with its latency."""
    stage = Stage(Strategy.CONCURRENT, tuple(parts))
    return replace(stage, predicted_us=cost.stage_latency_us(stage))


def _is_less(one_us: float | None, other_us: float | None) -> bool:
    return one_us is not None and (other_us is None or one_us < other_us)


def _classes(graph: ComputationGraph, cost: CostModel, parts: Sequence[Part]) -> list[list[Part]]:
    """Groups components that are equal except for names; their operators correspond in order."""
    if not isinstance(cost, OperatorKeys):
        return [[part] for part in parts]
    found: dict[Hashable, list[Part]] = {}
    for part in parts:
        labels = {name: cost.operator_key(name) for name in part}
        found.setdefault(block_key(graph, part, labels), []).append(part)
    return list(found.values())


def part_of(graph: ComputationGraph, names: Sequence[str]) -> ComputationGraph:
    """The subgraph of some operators, in topological order; results of others become its inputs."""
    operators = tuple(graph.by_name[name] for name in names)
    inside = frozenset(names)
    computed = {tensor: None for operator in operators for tensor in operator.outputs}
    read = dict.fromkeys(tensor for operator in operators for tensor in operator.inputs if tensor not in computed)
    outside = {
        tensor
        for name in names
        for reader in graph.successors[name]
        if reader not in inside
        for tensor in graph.by_name[reader].inputs
    }
    outside.update(graph.outputs)
    return ComputationGraph(
        graph.name,
        tuple(graph.tensor.get(name, TensorSpec(name, "", None)) for name in read),
        tuple(name for name in computed if name in outside),
        operators,
        tuple(spec for spec in graph.tensors if spec.name in computed),
    )


@dataclass(frozen=True, eq=False)
class _Equal:
    """Components of `whole` that are equal except for names; their operators correspond in order."""

    whole: ComputationGraph
    parts: Sequence[Part]

    @property
    def graph(self) -> ComputationGraph:
        return part_of(self.whole, self.parts[0])

    @cached_property
    def _names(self) -> tuple[Mapping[str, str], ...]:
        return tuple(dict(zip(self.parts[0], part, strict=True)) for part in self.parts)

    def copies(self, stage: Stage) -> tuple[Stage, ...]:
        return tuple(stage.renamed(names) for names in self._names)

    def as_one(self, stage: Stage) -> Stage | None:
        """The copies of a stage as one stage; None for merged operators, which belong to one component."""
        if stage.strategy is not Strategy.CONCURRENT:
            return None
        return Stage(Strategy.CONCURRENT, tuple(group for copy in self.copies(stage) for group in copy.groups))

    def in_a_row(self, alone: SearchResult) -> SearchResult:
        count = len(self.parts)
        rows = [[self.copies(stage) for stage in block.stages] for block in alone.schedule.blocks]
        blocks = [
            replace(block, stages=tuple(copies[number] for copies in row))
            for number in range(count)
            for block, row in zip(alone.schedule.blocks, rows, strict=True)
        ]
        return replace(
            alone,
            schedule=Schedule(tuple(blocks)),
            states=alone.states * count,
            transitions=alone.transitions * count,
            stages=alone.stages * count,
            lower_bound_us=alone.lower_bound_us * count,
            predicted_least_us=sum_us([alone.predicted_least_us] * count),
        )

    def in_step(self, cost: CostModel, find: Find, row: SearchResult, is_over: Deadline) -> SearchResult:
        """The components in step, searched on the first one with the latencies of all; else `row`."""
        if len(self.parts) < 2 or is_over():
            return row
        steps = _InStep(self, cost)
        found = find(self.graph, _KeyedSteps(self, cost) if isinstance(cost, OperatorKeys) else steps)
        asked = replace(row, measured=row.measured + found.measured)
        if is_over() or not _is_less(found.schedule.predicted_us, row.schedule.predicted_us):
            return asked
        blocks = tuple(
            Block(0, tuple(step for stage in block.stages for step in steps.best(stage)))
            for block in found.schedule.blocks
        )
        return asked.unbounded(Schedule(blocks))


@dataclass(frozen=True, eq=False)
class _InStep:
    """The cost of a stage that all equal components run: concurrently or one after another."""

    parts: _Equal
    cost: CostModel

    def stage_latency_us(self, stage: Stage) -> float:
        return sum(step.predicted_us or 0.0 for step in self.best(stage))

    def lower_bound_us(self, stage: Stage) -> float:
        """See `CostModel`: the work of all components, or the longest group."""
        if not isinstance(self.cost, OperatorBounds):
            return 0.0
        work_us = sum(map(self.cost.operator_work_us, stage.operators)) * len(self.parts.parts)
        longest_us = max(sum(map(self.cost.operator_latency_us, group)) for group in stage.groups)
        return max(work_us / self.cost.lanes, longest_us if stage.strategy is Strategy.CONCURRENT else 0.0)

    def prefetch(self, questions: Sequence[CostQuestion]) -> None:
        stages = [question.stage for question in questions]
        found = [stage for each in stages for stage in (each, self.parts.as_one(each)) if stage is not None]
        announce(self.cost, [CostQuestion(stage) for stage in found])

    def best(self, stage: Stage) -> tuple[Stage, ...]:
        alone_us = self.cost.stage_latency_us(stage)
        row = tuple(replace(copy, predicted_us=alone_us) for copy in self.parts.copies(stage))
        as_one = self.parts.as_one(stage)
        if as_one is None:
            return row
        one_us = self.cost.stage_latency_us(as_one)
        return (replace(as_one, predicted_us=one_us),) if one_us <= alone_us * len(row) else row


@dataclass(frozen=True, eq=False)
class _KeyedSteps(_InStep):
    def operator_key(self, name: str) -> str:
        assert isinstance(self.cost, OperatorKeys)
        return self.cost.operator_key(name)


def regions(graph: ComputationGraph, common: Container[str]) -> tuple[Part, ...]:
    """All operators in alternating regions of common and other operators; no region reads from a later one.

    Each operator is in its earliest possible region. Complexity: O(operators + edges).
    """
    region_of: dict[str, int] = {}
    found: dict[int, list[str]] = {}
    for operator in graph.operators:
        parity = int(operator.name in common)
        earliest = max((region_of[name] for name in graph.predecessors[operator.name]), default=0)
        region_of[operator.name] = earliest + (earliest % 2 != parity)
        found.setdefault(region_of[operator.name], []).append(operator.name)
    return tuple(tuple(found[index]) for index in sorted(found))


def owner_parts(graph: ComputationGraph, owners: Mapping[str, int]) -> tuple[Part, ...]:
    """All operators in parts of equal owners, by a simple heuristic for few parts; no part reads from a later one.

    A part continues while an operator of its owners, a bit for each model, is ready. The next part has the most owners,
    and of these the first operator in the graph. Complexity: O(operators log operators + edges).
    """
    position = {operator.name: index for index, operator in enumerate(graph.operators)}
    waiting = {name: len(before) for name, before in graph.predecessors.items()}
    ready: dict[int, list[tuple[int, str]]] = {}
    for operator in graph.operators:
        if not waiting[operator.name]:
            heappush(ready.setdefault(owners[operator.name], []), (position[operator.name], operator.name))
    found: list[Part] = []
    while ready:
        own = min(ready, key=lambda owner: (-owner.bit_count(), ready[owner][0]))
        part: list[str] = []
        while ready[own]:
            name = heappop(ready[own])[1]
            part.append(name)
            for reader in graph.successors[name]:
                waiting[reader] -= 1
                if not waiting[reader]:
                    heappush(ready.setdefault(owners[reader], []), (position[reader], reader))
        del ready[own]
        found.append(tuple(part))
    return tuple(found)


def search_owner_parts(
    graph: ComputationGraph,
    cost: CostModel,
    owners: Mapping[str, int],
    find: Find,
    *,
    is_over: Deadline = lambda: False,
) -> SearchResult:
    """The best schedule of each of `owner_parts`, one after another: models in turn, each with its own schedule."""
    parts = [part_of(graph, part) for part in owner_parts(graph, owners)]
    return one_after_another([search_components(part, cost, find, is_over=is_over) for part in parts])


def packed_regions(graph: ComputationGraph, cost: CostModel, common: Container[str], find: Find) -> SearchResult:
    """Regions one after another; within each, all components run concurrently."""
    return one_after_another([_packed(graph, region, cost, find) for region in regions(graph, common)])


def _packed(graph: ComputationGraph, region: Part, cost: CostModel, find: Find) -> SearchResult:
    part = part_of(graph, region)
    parts = components(part)
    if len(parts) < 2:
        return find(part, cost)
    schedule = Schedule((Block(0, (side_by_side(cost, parts),)),))
    return SearchResult(schedule, states=0, transitions=0, stages=1, measured=1, lower_bound_us=0.0)


def search_regions(
    graph: ComputationGraph,
    cost: CostModel,
    common: Container[str],
    find: Find,
    *,
    is_over: Deadline = lambda: False,
) -> SearchResult:
    """The best schedule of each region of `common` and other operators, one after another."""
    parts = [part_of(graph, region) for region in regions(graph, common)]
    return one_after_another([search_components(part, cost, find, is_over=is_over) for part in parts])
