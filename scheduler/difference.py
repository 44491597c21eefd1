"""Compares two schedules of the same operators, operator by operator.

Stages have no identity, so stages of both schedules are first aligned in order, such that the pairs have the most
operators in common. Groups of paired stages are matched likewise.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from iosched.scheduler.schedule import Schedule, Stage, Strategy
from iosched.scheduler.strategies import STAGE_RULES


class Change(StrEnum):
    """How an operator differs between two schedules."""

    MISSING = "missing"  # only one of them has it
    STAGE = "stage"  # it runs in another stage
    GROUP = "group"  # it runs in another group of its stage
    STRATEGY = "strategy"  # its stage runs in another way: side by side, merged, or in a session
    MERGED = "merged"  # it is merged in both, with others
    ORDER = "order"  # its group runs the same operators in another order
    LANES = "lanes"  # its group has other lanes


@dataclass(frozen=True)
class OperatorPosition:
    """The position of an operator in a schedule, by numbers of its block, its stage in the schedule, and its group.

    `together` are the operators of its group, in order, or all of a merged stage; `lanes` is None if the device
    chooses.
    """

    block: int
    stage: int
    group: int
    strategy: Strategy
    together: tuple[str, ...]
    lanes: tuple[int, ...] | None


@dataclass(frozen=True)
class OperatorChange:
    """An operator that two schedules run differently; `before` or `after` is None if a schedule does not have it."""

    operator: str
    changes: tuple[Change, ...]
    before: OperatorPosition | None
    after: OperatorPosition | None


@dataclass(frozen=True)
class StagePair:
    """Two aligned stages by number, None without a counterpart; `alike` if all their operators run alike."""

    before: int | None
    after: int | None
    alike: bool


@dataclass(frozen=True)
class ScheduleDifference:
    """The differences between two schedules, latencies aside.

    Attributes:
        operators: those that run differently, in the order of the first schedule, then of the second.
        stages: the aligned stages of both.
        count: number of operators in either.
    """

    operators: tuple[OperatorChange, ...]
    stages: tuple[StagePair, ...]
    count: int

    @property
    def equal(self) -> bool:
        """Whether all operators run alike."""
        return not self.operators


def difference(before: Schedule, after: Schedule) -> ScheduleDifference:
    """Compares two schedules by the names of their operators; O(n log n) for n operators."""
    stages = list(before.stages), list(after.stages)
    positions = _positions(before), _positions(after)
    pairs = dict(_aligned(*positions))
    groups = {pair: _grouped(stages[0][pair[0]], stages[1][pair[1]]) for pair in pairs.items()}
    found = []
    for name in dict.fromkeys((*positions[0], *positions[1])):
        one, other = positions[0].get(name), positions[1].get(name)
        changes = tuple(_changes(one, other, pairs, groups))
        if changes:
            found.append(OperatorChange(name, changes, one, other))
    changed = {each.operator for each in found}
    return ScheduleDifference(tuple(found), tuple(_rows(*stages, pairs, changed)), len({*positions[0], *positions[1]}))


def _positions(schedule: Schedule) -> dict[str, OperatorPosition]:
    found, stage_number = {}, 0
    for block in schedule.blocks:
        for stage in block.stages:
            for number, group in enumerate(stage.groups):
                together = stage.operators if STAGE_RULES[stage.strategy].is_one_operator else group
                lanes = None if stage.division is None else stage.division.groups[number]
                for name in group:
                    found[name] = OperatorPosition(block.index, stage_number, number, stage.strategy, together, lanes)
            stage_number += 1
    return found


def _changes(
    one: OperatorPosition | None,
    other: OperatorPosition | None,
    pairs: Mapping[int, int],
    groups: Mapping[tuple[int, int], Mapping[int, int]],
) -> Iterator[Change]:
    if one is None or other is None:
        yield Change.MISSING
        return
    is_paired = pairs.get(one.stage) == other.stage
    if not is_paired:
        yield Change.STAGE
    if one.strategy is not other.strategy:
        yield Change.STRATEGY
    elif STAGE_RULES[one.strategy].is_one_operator:
        if set(one.together) != set(other.together):
            yield Change.MERGED
        return
    if not is_paired or one.strategy is not other.strategy:
        return
    if groups[one.stage, other.stage].get(one.group) != other.group:
        yield Change.GROUP
        return
    if _common(one, other) != _common(other, one):
        yield Change.ORDER
    if one.lanes != other.lanes:
        yield Change.LANES


def _common(one: OperatorPosition, other: OperatorPosition) -> list[str]:
    known = set(other.together)
    return [name for name in one.together if name in known]


def _grouped(before: Stage, after: Stage) -> dict[int, int]:
    """Matches the groups of two stages, those with the most common operators first."""
    where = {name: number for number, group in enumerate(after.groups) for name in group}
    shared = Counter(
        (number, where[name]) for number, group in enumerate(before.groups) for name in group if name in where
    )
    found: dict[int, int] = {}
    taken: set[int] = set()
    for (one, other), _ in sorted(shared.items(), key=lambda item: (-item[1], item[0])):
        if one not in found and other not in taken:
            found[one] = other
            taken.add(other)
    return found


@dataclass(frozen=True)
class _StagePairs:
    """Pairs of stages in the order of both schedules, the last one first; `weight` counts common operators."""

    weight: int
    last: tuple[int, int]
    rest: _StagePairs | None


def _aligned(before: Mapping[str, OperatorPosition], after: Mapping[str, OperatorPosition]) -> list[tuple[int, int]]:
    """The pairs of stages, ascending in both, with the most operators in common."""
    shared = Counter((position.stage, after[name].stage) for name, position in before.items() if name in after)
    best: list[_StagePairs] = []  # ends of chains, ascending by last stage and by weight
    rows: dict[int, list[tuple[int, int]]] = {}
    for (one, other), weight in shared.items():
        rows.setdefault(one, []).append((other, weight))
    for one in sorted(rows):
        # A chain has at most one pair of each row, so all lookups of a row precede its insertions.
        for chain in [_longer(best, (one, other), weight) for other, weight in rows[one]]:
            _put_in(best, chain)
    end = best[-1] if best else None
    found = []
    while end is not None:
        found.append(end.last)
        end = end.rest
    return found[::-1]


def _longer(best: Sequence[_StagePairs], pair: tuple[int, int], weight: int) -> _StagePairs:
    """The heaviest chain that ends before `pair`, extended by it."""
    index = bisect_left(best, pair[1], key=lambda chain: chain.last[1])
    rest = best[index - 1] if index else None
    return _StagePairs(weight + (rest.weight if rest else 0), pair, rest)


def _put_in(best: list[_StagePairs], chain: _StagePairs) -> None:
    """Inserts a chain unless one that ends no later is as heavy; removes the chains that it dominates."""
    index = bisect_left(best, chain.last[1] + 1, key=lambda each: each.last[1])
    if index and best[index - 1].weight >= chain.weight:
        return
    end = index
    while end < len(best) and best[end].weight <= chain.weight:
        end += 1
    best[index:end] = [chain]


def _rows(
    before: Sequence[Stage], after: Sequence[Stage], pairs: Mapping[int, int], changed: set[str]
) -> Iterator[StagePair]:
    done = 0
    for number, stage in enumerate(before):
        other = pairs.get(number)
        if other is None:
            yield StagePair(number, None, alike=False)
            continue
        yield from (StagePair(None, each, alike=False) for each in range(done, other))
        yield StagePair(number, other, alike=not changed & {*stage.operators, *after[other].operators})
        done = other + 1
    yield from (StagePair(None, each, alike=False) for each in range(done, len(after)))
