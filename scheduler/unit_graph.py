"""Schedule units: operators that are scheduled as one, by request or because a device computes them together."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cached_property

import msgspec

from iosched.models.errors import InvalidScheduleError, UsageError
from iosched.models.graph import ComputationGraph, Operator
from iosched.scheduler.schedule import Block, Division, Schedule, Stage, Strategy
from iosched.scheduler.start_order import start_order
from iosched.scheduler.strategies import is_linked

Unit = tuple[str, ...]
"""The names of the operators of a unit."""

MOST_NBYTES = 16 << 20
"""The size limit of a list of units."""

_EXAMPLE = 'Write a list of lists of operators, named by their output tensors, such as [["a", "b"], ["c", "d"]]'
_MOST_NAMES, _LONGEST_NAME = 6, 60


@dataclass(frozen=True, eq=False)
class UnitGraph:
    """A computation graph in which each unit is one operator.

    A unit of several operators has the name of its first output; `members` are its original operators in topological
    order.
    """

    graph: ComputationGraph
    members: Mapping[str, tuple[str, ...]]

    @cached_property
    def unit_of(self) -> Mapping[str, str]:
        """The unit of each operator of the original graph, and of each unit."""
        inside = {name: unit for unit, names in self.members.items() for name in names}
        return {**{unit: unit for unit in self.members}, **inside}

    def scheduled(self, schedule: Schedule) -> Schedule:
        """A schedule of operators as a schedule of units; a single block if it separates operators of a unit."""
        blocks = tuple(
            replace(block, stages=tuple(self._stage_of_units(stage) for stage in block.stages))
            for block in schedule.blocks
        )
        named = [name for block in blocks for stage in block.stages for name in stage.operators]
        if len(named) == len(set(named)):
            return Schedule(blocks)
        return Schedule((Block(0, tuple(self.stages(schedule)), optimal=False),))

    def expanded(self, schedule: Schedule) -> Schedule:
        """A schedule of units as a schedule of operators, each unit's in topological order."""
        return Schedule(
            tuple(
                replace(block, stages=tuple(self.expanded_stage(stage) for stage in block.stages))
                for block in schedule.blocks
            )
        )

    def expanded_stage(self, stage: Stage) -> Stage:
        """A stage of units as a stage of operators; a stage of operators of whole units is unchanged."""
        groups = (
            dict.fromkeys(one for name in group for one in self.members[self.unit_of[name]]) for group in stage.groups
        )
        return replace(stage, groups=tuple(map(tuple, groups)))

    def stages(self, schedule: Schedule) -> Sequence[Stage]:
        """The stages of units for a schedule of operators or units, which may separate a unit's operators."""
        return tuple(unit_stages(self, schedule))

    def key(self, unit: str, of_operator: Callable[[str], str], of_stage: Callable[[Stage], str]) -> str:
        """Equal for equal units: the key of the only operator, or of a stage of all operators in order."""
        members = self.members[unit]
        return of_operator(unit) if len(members) == 1 else of_stage(Stage(Strategy.CONCURRENT, (members,)))

    def _stage_of_units(self, stage: Stage) -> Stage:
        groups = (tuple(dict.fromkeys(self.unit_of[name] for name in group)) for group in stage.groups)
        return startable(self.graph, replace(stage, groups=tuple(groups)))


def join_units(graph: ComputationGraph, units: Iterable[Sequence[str]]) -> UnitGraph:
    """The graph with the operators of each unit as one; other operators are unchanged.

    Args:
        units: the names of the operators of each unit, in any order.

    Raises:
        UsageError: a unit is empty, not connected, overlaps another, forms a cycle, or names no operator.

    Complexity: O(operators + edges), up to sorting.
    """
    asked = [tuple(unit) for unit in units]
    if not asked:
        return UnitGraph(graph, {operator.name: (operator.name,) for operator in graph.operators})
    _check_names(graph, asked)
    for number, unit in enumerate(asked, 1):
        _check_connected(graph, number, unit)
    after = with_rings(graph.successors, asked)
    found = components([operator.name for operator in graph.operators], after)
    _check_circles(asked, found)
    return contracted(graph, found, after)


def parse_units(text: bytes) -> tuple[Unit, ...]:
    """The units in a JSON list of lists of operator names, not checked against a model.

    Raises a UsageError if it is invalid, too large or empty.
    """
    if len(text) > MOST_NBYTES:
        raise UsageError(f"larger than {MOST_NBYTES >> 20} MiB, the limit for a list of units")
    try:
        units = msgspec.json.decode(text, type=tuple[Unit, ...])
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise UsageError(f"not a list of units: {error}\n{_EXAMPLE}") from None
    if not units:
        raise UsageError(f"the list of units is empty\n{_EXAMPLE}")
    return units


def _check_names(graph: ComputationGraph, units: Sequence[Sequence[str]]) -> None:
    number_of: dict[str, int] = {}
    for number, unit in enumerate(units, 1):
        if not unit:
            raise UsageError(f"unit {number} is empty: name the operators of each unit by their output tensors")
        for name in unit:
            if name not in graph.by_name:
                raise UsageError(f"unit {number} names {shown([name])}, which is not an operator: {_hint(graph, name)}")
            if name in number_of:
                where = f"unit {number} twice" if number_of[name] == number else f"units {number_of[name]} and {number}"
                raise UsageError(f"operator {shown([name])} is in {where}: name each operator once")
            number_of[name] = number


def _hint(graph: ComputationGraph, name: str) -> str:
    inside = {part: operator.name for operator in graph.operators for part in (*operator.nodes, *operator.outputs)}
    if name in inside:
        return f"it is inside operator {shown([inside[name]])}"
    close = get_close_matches(name[:_LONGEST_NAME], graph.by_name, n=2)
    return f"did you mean {' or '.join(close)}?" if close else "'iosched show' lists the operators of a schedule"


def _check_connected(graph: ComputationGraph, number: int, unit: Sequence[str]) -> None:
    inside, reached, todo = set(unit), {unit[0]}, [unit[0]]
    while todo:
        name = todo.pop()
        neighbours = inside.intersection((*graph.predecessors[name], *graph.successors[name])) - reached
        reached |= neighbours
        todo.extend(neighbours)
    if separate := [name for name in unit if name not in reached]:
        raise UsageError(
            f"unit {number} is not connected: no path inside it links {shown([unit[0]])} and {shown(separate)}\n"
            "Add the operators between them, or split the unit"
        )


def _check_circles(units: Sequence[Sequence[str]], found: Iterable[Sequence[str]]) -> None:
    number_of = {name: number for number, unit in enumerate(units) for name in unit}
    for component in found:
        numbers = sorted({number_of[name] for name in component if name in number_of})
        if len(component) == 1 or [len(units[number]) for number in numbers] == [len(component)]:
            continue
        first, *others = (f"unit {number + 1} ({shown(units[number])})" for number in numbers)
        outside = [name for name in component if name not in number_of]
        through = " and ".join([*others, *([shown(outside)] if outside else [])])
        raise UsageError(
            f"{first} forms a cycle with {through}: each reads outputs of the other\n"
            "Merge them into one unit, or remove operators from it"
        )


def units_text(units: Sequence[Unit]) -> str:
    """Equal for the same units; empty for none."""
    return f" with units {sorted(map(sorted, units))}" if units else ""


def shown(names: Sequence[str]) -> str:
    """Names for messages, also from untrusted files: shortened, and the first ones of many."""
    shown = ", ".join(repr(name[:_LONGEST_NAME]) for name in names[:_MOST_NAMES])
    return shown if len(names) <= _MOST_NAMES else f"{shown} and {len(names) - _MOST_NAMES} more"


def with_rings(after: Mapping[str, Iterable[str]], units: Iterable[Sequence[str]]) -> dict[str, set[str]]:
    """The dependencies plus a ring through each unit's operators, which makes it one component."""
    found = {name: set(names) for name, names in after.items()}
    for unit in units:
        for name, following in zip(unit, (*unit[1:], unit[0]), strict=True):
            found[name].add(following)
    return found


def components(names: Sequence[str], after: Mapping[str, set[str]]) -> list[list[str]]:
    """Strongly connected components in topological order (Tarjan 1972, iterative); O(operators + edges)."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    done: set[str] = set()
    stack: list[str] = []
    found: list[list[str]] = []
    rank = {name: index for index, name in enumerate(names)}
    for root in names:
        if root in order:
            continue
        work = [(root, iter(sorted(after[root], key=rank.__getitem__)))]
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
                    found.append(_pop_component(stack, name, done, rank))
            elif following in order:
                low[name] = min(low[name], order[following])
            else:
                order[following] = low[following] = len(order)
                stack.append(following)
                work.append((following, iter(sorted(after[following], key=rank.__getitem__))))
    return found[::-1]


def _pop_component(stack: list[str], root: str, done: set[str], rank: Mapping[str, int]) -> list[str]:
    component = []
    while True:
        name = stack.pop()
        done.add(name)
        component.append(name)
        if name == root:
            return sorted(component, key=rank.__getitem__)


def contracted(
    graph: ComputationGraph, units: Iterable[Sequence[str]], after: Mapping[str, Collection[str]]
) -> UnitGraph:
    """The graph of these units, which cover all operators and do not depend on each other.

    `after` are the dependents of each operator, possibly more than its readers.
    """
    rank = {operator.name: index for index, operator in enumerate(graph.operators)}
    units = sorted(units, key=lambda unit: min(rank[name] for name in unit))  # siblings stay in the model's order
    home = {name: index for index, unit in enumerate(units) for name in unit}
    before: list[set[int]] = [set() for _ in units]
    for name, successors in after.items():
        for successor in successors:
            if home[name] != home[successor]:
                before[home[successor]].add(home[name])
    operators = [_unit_operator(graph, unit) for unit in units]
    linked = [_with_edges(o, [operators[p] for p in sorted(before[i])]) for i, o in enumerate(operators)]
    return UnitGraph(
        graph=replace(graph, operators=tuple(linked[i] for i in _topological(before))),
        members={operator.name: tuple(unit) for operator, unit in zip(operators, units, strict=True)},
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


def _unit_operator(graph: ComputationGraph, names: Sequence[str]) -> Operator:
    if len(names) == 1:
        return graph.by_name[names[0]]
    members = [graph.by_name[name] for name in names]
    made = dict.fromkeys(tensor for member in members for tensor in member.outputs)
    readers = {reader for name in names for reader in graph.successors[name]}.difference(names)
    used_outside = {t for reader in readers for t in graph.by_name[reader].inputs}.union(graph.outputs)
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
        merges=False,
    )


def _with_edges(operator: Operator, before: list[Operator]) -> Operator:
    """Adds, as inputs, the dependencies that only the optimized nodes have."""
    extra = [p.outputs[0] for p in before if not set(p.outputs).intersection(operator.inputs)]
    return replace(operator, inputs=(*operator.inputs, *extra)) if extra else operator


def startable(graph: ComputationGraph, stage: Stage) -> Stage:
    """The stage; if linked groups would wait for each other, their operators get the order of the graph."""
    if not is_linked(stage):
        return stage
    try:
        start_order(graph, stage)
    except InvalidScheduleError:
        rank = {operator.name: number for number, operator in enumerate(graph.operators)}
        return replace(stage, groups=tuple(tuple(sorted(group, key=rank.__getitem__)) for group in stage.groups))
    return stage


def unit_stages(units: UnitGraph, schedule: Schedule) -> list[Stage]:
    """The schedule in units, without latencies and empty stages; see `numbered_unit_stages`."""
    return [stage for _, stage in numbered_unit_stages(units, schedule)]


def numbered_unit_stages(units: UnitGraph, schedule: Schedule) -> list[tuple[int, Stage]]:
    """The schedule in units, without latencies and empty stages, each stage with its number in the schedule.

    A unit runs in the last stage of its operators, or later if its inputs come later: schedules of another device may
    split units, which this one cannot. A stage keeps its division if its groups of units are its groups of operators.
    """
    unit_of = units.unit_of
    position: dict[str, int] = {}
    label: dict[str, tuple[int, int]] = {}
    stages = tuple(schedule.stages)
    for number, stage in enumerate(stages):
        for index, group in enumerate(stage.groups):
            for name in group:
                position[unit_of[name]] = number
                label[unit_of[name]] = (number, index)
    for operator in units.graph.operators:
        before = [position[name] for name in units.graph.predecessors[operator.name]]
        position[operator.name] = max([position[operator.name], *before])
    return _group_units(units, position, label, stages)


def _group_units(
    units: UnitGraph,
    position: Mapping[str, int],
    label: Mapping[str, tuple[int, int]],
    stages: Sequence[Stage],
) -> list[tuple[int, Stage]]:
    group_of: dict[str, list[str]] = {}
    first_of: dict[tuple[int, int], str] = {}
    for operator in units.graph.operators:
        name = operator.name
        group_of[name] = [name]
        before = () if is_linked(stages[position[name]]) else units.graph.predecessors[name]
        same = [p for p in before if position[p] == position[name]]
        if label[name][0] == position[name]:
            same.append(first_of.setdefault(label[name], name))
        for other in same:
            if group_of[other] is not group_of[name]:
                group_of[other].extend(group_of[name])
                for member in group_of[name]:
                    group_of[member] = group_of[other]
    groups_of: list[list[tuple[str, ...]]] = [[] for _ in stages]
    order = {operator.name: index for index, operator in enumerate(units.graph.operators)}
    for name in order:
        group = group_of[name]
        if min(group, key=order.__getitem__) == name:
            groups_of[position[name]].append(tuple(sorted(group, key=order.__getitem__)))
    found = []
    for number, (stage, groups) in enumerate(zip(stages, groups_of, strict=True)):
        origins = [{label[name] for name in group} for group in groups]
        division = _division(stage, number, origins)
        found.append((number, Stage(stage.strategy, _as_listed(units, stage, groups), division=division)))
    return [(number, startable(units.graph, stage)) for number, stage in found if stage.groups]


def _as_listed(units: UnitGraph, stage: Stage, groups: Sequence[tuple[str, ...]]) -> tuple[tuple[str, ...], ...]:
    """The groups of a linked stage in its order; a unit takes the position of its last operator."""
    if not is_linked(stage):
        return tuple(groups)
    place = {units.unit_of[name]: number for number, name in enumerate(stage.operators)}
    return tuple(tuple(sorted(group, key=lambda unit: place.get(unit, len(place)))) for group in groups)


def _division(stage: Stage, number: int, origins: Sequence[set[tuple[int, int]]]) -> Division | None:
    wanted = {(number, index) for index in range(len(stage.groups))}
    if stage.division is None or any(len(own) != 1 for own in origins) or set().union(*origins) != wanted:
        return None
    return replace(stage.division, groups=tuple(stage.division.groups[index] for ((_, index),) in origins))
