"""Chooses the lanes of a stage's groups: the likely divisions to measure, and the fastest of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from iosched.profiler.measuring.statistics import UNRUNNABLE, Measurement
from iosched.runtime.cpu.backend import CpuBackend
from iosched.runtime.cpu.calls import in_caches
from iosched.scheduler.schedule import Division, Stage, Strategy

Lanes = tuple[tuple[int, ...], ...]
"""For each group of a stage its lanes, ascending."""

MOST_OTHERS = 2
"""Number of divisions of a stage that are measured besides the default one."""

LEAST_GAIN = 0.03
"""A division is measured if it should save this share of the default one's latency. Measuring equally good ones too
took twice as many measurements on four and eight simulated cores, and found nothing better
(`benchmarks/cores_simulated.py`).
"""

_MOST_SPLIT = 6  # groups that are bundled in every way; 203 ways for six


@dataclass(frozen=True)
class GroupTime:
    """Latency of a group as a fixed part, and a part that lanes share (Amdahl's law; negative if more lanes are
    slower).
    """

    fixed_us: float = 0.0
    shared_us: float = 0.0

    @classmethod
    def between(cls, one_us: float, all_us: float, lanes: int) -> GroupTime:
        """From the latencies on one lane and on `lanes`, two or more."""
        shared_us = (one_us - all_us) * lanes / (lanes - 1)
        return cls(one_us - shared_us, shared_us)

    def __add__(self, other: GroupTime) -> GroupTime:
        return GroupTime(self.fixed_us + other.fixed_us, self.shared_us + other.shared_us)

    def on(self, lanes: int) -> float:
        """Microseconds on `lanes` lanes."""
        return self.fixed_us + self.shared_us / lanes


def makespan_us(times: Sequence[GroupTime], groups: Lanes) -> float:
    """The end time of the busiest lane, if no lane waits."""
    busy: dict[int, float] = {}
    for time, own in zip(times, groups, strict=True):
        for lane in own:
            busy[lane] = busy.get(lane, 0.0) + time.on(len(own))
    return max(busy.values(), default=0.0)


def likely_divisions(
    times: Sequence[GroupTime], lanes: int, guessed: Lanes, in_a_cache: int = 0
) -> tuple[tuple[Division, float], ...]:
    """The divisions that should beat the default one, with their expected ratio to its latency, the lowest first.

    Groups form two or more bundles. Each bundle runs its groups in order on separate lanes. Lanes are distributed to
    speed up the slowest bundle, with variants that move one lane. If there are at least as many groups as lanes, every
    group runs on one lane, as its bound assumes (`scheduler.cost.OperatorBounds`); more lanes would gain nothing that
    two stages do not. Up to six groups are bundled in every way, more by Graham's LPT for each number of bundles. The
    result is empty if the gain must be below `LEAST_GAIN`. Of divisions that differ only in groups of equal times, one
    is returned. Complexity: O(B(n) n^3) for n <= 6 groups, with Bell numbers B(6) = 203; O(n^3 lanes) for more.
    """
    expected_us = makespan_us(times, guessed)
    if len(times) < 2 or lanes < 2 or expected_us * (1 - LEAST_GAIN) <= _least_us(times, lanes):
        return ()
    met = {_alike(times, guessed)}
    found: list[tuple[float, Lanes]] = []
    fewest = lanes if len(times) >= lanes else 2
    for bundles in _bundlings(times, fewest, min(lanes, len(times))):
        for counts in _dealt([sum((times[group] for group in bundle), GroupTime()) for bundle in bundles], lanes):
            groups = _lanes_of(bundles, counts, lanes, in_a_cache)
            if (key := _alike(times, groups)) not in met:
                met.add(key)
                found.append((makespan_us(times, groups), groups))
    likely = [each for each in found if each[0] <= expected_us * (1 - LEAST_GAIN)]
    return tuple((Division(lanes, groups), us / expected_us) for us, groups in sorted(likely)[:MOST_OTHERS])


def _least_us(times: Sequence[GroupTime], lanes: int) -> float:
    """Lower bound: all lanes are busy, and every group is on the number of lanes with the least work."""
    return sum(min(time.on(1), time.on(lanes) * lanes) for time in times) / lanes


def _bundlings(times: Sequence[GroupTime], fewest: int, most: int) -> Iterator[list[list[int]]]:
    if len(times) <= _MOST_SPLIT:
        yield from (bundles for bundles in _partitions(len(times), most) if len(bundles) >= fewest)
        return
    longest = sorted(range(len(times)), key=lambda group: (-times[group].on(1), group))
    for count in range(fewest, most + 1):
        bundles: list[list[int]] = [[] for _ in range(count)]
        for group in longest:
            min(bundles, key=lambda bundle: sum(times[each].on(1) for each in bundle)).append(group)
        yield [sorted(bundle) for bundle in bundles]


def _partitions(count: int, most: int) -> Iterator[list[list[int]]]:
    if count == 0:
        yield []
        return
    for parts in _partitions(count - 1, most):
        for index in range(len(parts)):
            yield [[*part, count - 1] if at == index else part for at, part in enumerate(parts)]
        if len(parts) < most:
            yield [*parts, [count - 1]]


def _dealt(times: Sequence[GroupTime], lanes: int) -> Iterator[list[int]]:
    """Numbers of lanes of the bundles: one each, and further lanes for the slowest bundle as long as they help.

    Then the same with one lane moved from any bundle to any other. Some lanes may stay unused.
    """
    counts = [1] * len(times)
    for _ in range(lanes - len(times)):
        slowest = max(range(len(times)), key=lambda bundle: times[bundle].on(counts[bundle]))
        if times[slowest].shared_us <= 0:
            break
        counts[slowest] += 1
    yield counts
    for giver in (bundle for bundle, count in enumerate(counts) if count > 1):
        for taker in (bundle for bundle in range(len(counts)) if bundle != giver):
            yield [count - (at == giver) + (at == taker) for at, count in enumerate(counts)]


def _lanes_of(bundles: Sequence[Sequence[int]], counts: Sequence[int], lanes: int, in_a_cache: int) -> Lanes:
    placed = zip(bundles, in_caches(counts, lanes, in_a_cache), strict=True)
    own = {group: of_bundle for bundle, of_bundle in placed for group in bundle}
    return tuple(own[group] for group in range(len(own)))


def _alike(times: Sequence[GroupTime], groups: Lanes) -> tuple[object, ...]:
    """Equal for divisions that differ only in lane numbers, or in groups of equal latency."""
    members: dict[int, list[tuple[float, float, int]]] = {}
    for time, own in zip(times, groups, strict=True):
        for lane in own:
            members.setdefault(lane, []).append((time.fixed_us, time.shared_us, len(own)))
    return tuple(sorted(tuple(sorted(found)) for found in members.values()))


Look = Callable[[Stage, float], Measurement | None]
"""The latency of a stage with its division, exact only up to a limit; None if unknown and not to be measured."""

_DOUBT = 0.9  # a division's latency may be this factor of the expected one


@dataclass(frozen=True, eq=False)
class DivisionChoice:
    """Chooses divisions for the stages of one model; `unit_time` is a unit's latency by lanes, None while unknown."""

    backend: CpuBackend
    unit_time: Callable[[str], GroupTime | None]
    _likely_of: dict[tuple[tuple[str, ...], ...], Sequence[tuple[Division, float]]] = field(
        default_factory=dict, init=False
    )

    def best(self, stage: Stage, look: Look, worse_than_us: float = math.inf) -> tuple[Stage, Measurement]:
        """The stage with its fastest division, and its latency.

        A division other than the default is chosen only if their intervals are disjoint: the minimum of several noisy
        latencies would be too low. With interference, no other division is tried.

        Args:
            stage: a given division is kept; without one, the stage means the default division.
            worse_than_us: a latency above which the exact value does not matter.
        """
        chosen, found = stage, look(stage, worse_than_us)
        if found is None:
            return stage, UNRUNNABLE
        for division, ratio in self._likely(stage) if math.isfinite(found.median_us) and not found.disturbed_by else ():
            if found.low_us * ratio * _DOUBT > worse_than_us:
                continue
            other = replace(stage, division=division)
            candidate = look(other, min(found.median_us, worse_than_us))
            if candidate is not None and candidate.high_us < found.low_us:
                chosen, found = other, candidate
        return chosen, found

    def with_guessed_division(self, stage: Stage) -> Stage:
        """The stage with the default division if it has none and its groups have a choice."""
        if not self._is_dividable(stage):
            return stage
        return replace(stage, division=Division(self.backend.lanes, self.backend.guessed_lanes(stage)))

    def is_guessed(self, stage: Stage, lanes: int) -> bool:
        """Whether the stage's lanes are the default ones."""
        own = stage.division
        return own is None or own.lanes != lanes or own.groups == self.backend.guessed_lanes(stage)

    def _likely(self, stage: Stage) -> Sequence[tuple[Division, float]]:
        if not self._is_dividable(stage) or self.backend.lanes == len(stage.groups) == 2:
            return ()
        if stage.groups not in self._likely_of:
            times = [self._group_time(group) for group in stage.groups]
            known = [time for time in times if time is not None]
            if len(known) < len(times):
                return ()
            guessed = self.backend.guessed_lanes(stage)
            near = self.backend.kernels.lanes_in_a_cache
            self._likely_of[stage.groups] = likely_divisions(known, self.backend.lanes, guessed, near)
        return self._likely_of[stage.groups]

    def _group_time(self, group: Sequence[str]) -> GroupTime | None:
        total = GroupTime()
        for name in group:
            time = self.unit_time(name)
            if time is None:
                return None
            total += time
        return total

    def _is_dividable(self, stage: Stage) -> bool:
        several = self.backend.lanes > 1 and len(stage.groups) > 1
        return several and stage.strategy is Strategy.CONCURRENT and stage.division is None
