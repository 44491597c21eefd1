"""Chooses the next stages of a block to measure, and tracks its best known schedule."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np

from iosched.scheduler.baselines import ready_sets
from iosched.scheduler.cost import CostQuestion, Curtailable, Remeasurable
from iosched.scheduler.effort import Effort
from iosched.scheduler.latencies import KnownLatencies
from iosched.scheduler.lattice import Latencies, Lattice, bits, popcount
from iosched.scheduler.paths import bound_us, distances, shortest_path, some_shortest_path, through_us, within
from iosched.scheduler.schedule import Stage, Strategy

_ROUNDS_BETWEEN_TRIMS = 16
_REPEATS = 2  # how often a search continues without latencies measured under interference
_NEAR_TIES = 8  # stages of the next best schedules that are measured again in one round


@dataclass(frozen=True)
class SearchRound:
    """Stages to measure next, by position in `lattice.stages`.

    Attributes:
        more: whether they are measured a second time.
        worse_than_us: for some positions a latency above which the exact value does not matter.
        bounds: whether bounds by operators (`OperatorBounds`) are requested right after the stages.
        later: whether other blocks should come first: because of interference, or of their own suggestions.
    """

    positions: list[int]
    more: bool = False
    later: bool = False
    worse_than_us: Mapping[int, float] = field(default_factory=dict)
    bounds: bool = False


@dataclass(frozen=True)
class BestKnown:
    """The best known schedule of a block.

    Attributes:
        lower_bound_us: lower bound of all schedules of the block.
        predicted_least_us: the same by optimistic predictions, which is no bound; None without predictions.
    """

    stages: tuple[Stage, ...]
    total_us: float
    lower_bound_us: float
    predicted_least_us: float | None = None

    @property
    def optimal(self) -> bool:
        """Whether it is proven optimal for the block."""
        return self.lower_bound_us >= self.total_us and math.isfinite(self.total_us)


@dataclass(eq=False)
class Exploration:
    """The search of one block, one round of measurements at a time.

    Attributes:
        suggested: stages to measure first (`Suggesting`).
        proven: no schedule can be better, beyond the tolerance, than the best one of measured stages; in a search with
            predictions, none is predicted to be.
        best_us: the last determined latency of the best known schedule; infinite before.
    """

    lattice: Lattice
    latencies: KnownLatencies
    effort: Effort
    suggested: tuple[int, ...] = ()
    proven: bool = False
    best_us: float = math.inf
    _n_alone: int = 0
    _only_settled: bool = False  # rounds ran out before the stages of the best schedule were measured twice
    _ended: bool = False  # and not by a deadline
    _rounds: Iterator[SearchRound] | None = field(default=None, repr=False)

    @property
    def started(self) -> bool:
        """Whether `next_round` has been called."""
        return self._rounds is not None

    def measure(self, position: int, wanted: SearchRound) -> int:
        """Measures a stage of a round unless it is ruled out; returns the number of measurements."""
        if wanted.more:
            self.latencies.remeasure(position)
            return 1
        worse_than_us = wanted.worse_than_us.get(position, math.inf)
        return self.latencies.measure(position, self.effort.bound_slack, worse_than_us)

    def questions(self, wanted: SearchRound) -> list[CostQuestion]:
        """The questions of a round; answers to some may rule out others."""
        slack, worse_than_us = self.effort.bound_slack, wanted.worse_than_us
        found = [
            question
            for position in wanted.positions
            for question in (
                self.latencies.questions_again(position)
                if wanted.more
                else self.latencies.questions(position, slack, worse_than_us.get(position, math.inf))
            )
        ]
        return [*found, *self.latencies.bound_questions()] if wanted.bounds else found

    def next_round(self, is_over: Callable[[], bool]) -> SearchRound | None:
        """The next round of measurements, or None at the end.

        Single operators come first: they form the sequential schedule, which an early deadline leaves.
        """
        if self._rounds is None:
            self._rounds = self._all_rounds(is_over)
        return next((wanted for wanted in self._rounds if wanted.positions or wanted.bounds or wanted.later), None)

    def _all_rounds(self, is_over: Callable[[], bool]) -> Iterator[SearchRound]:
        yield SearchRound(self.latencies.missing(self.latencies.single_operators()), bounds=True)
        self._n_alone = self.latencies.n_measured
        yield SearchRound(self.latencies.missing(self.suggested), later=bool(self.suggested))
        if self.latencies.fill_bounds(is_over):
            yield from self._beyond_operators()
            yield from self._undisturbed(is_over)
            yield from self._measured_again()
        self._ended = True

    def _beyond_operators(self) -> Iterator[SearchRound]:
        limit = self.effort.max_measurements
        if self.effort.exhaustive or not self.latencies.informative:
            everything = self.latencies.missing(range(len(self.lattice.stages)))
            yield SearchRound(everything[:limit])
            self.proven = limit is None or len(everything) <= limit
        else:
            yield from self._along_shortest_paths()
        if not self.proven:
            yield SearchRound(self._greedy_if_promising())

    def _undisturbed(self, is_over: Callable[[], bool]) -> Iterator[SearchRound]:
        """Continues the search with the low ends of latencies that had interference.

        Otherwise a stage that looked too slow would never be measured again. Nothing can change if there is only one
        schedule.
        """
        for _ in range(_REPEATS if len(self.lattice.stages) > 1 else 0):
            if not any(flags.any() for flags in self.latencies.disturbed().values()):
                return
            yield SearchRound([], later=True)
            best = shortest_path(self.lattice, self.latencies.known_us()) if math.isfinite(self._best_us()) else []
            self.latencies.forget_disturbed()
            self.proven = False
            yield SearchRound(self.latencies.missing([*self.latencies.single_operators(), *best]), bounds=True)
            self.latencies.refill_bounds(is_over)
            yield from self._beyond_operators()
            if not self.proven:  # the bounds rule nothing out
                self.latencies.recall_forgotten()

    def _measured_again(self) -> Iterator[SearchRound]:
        """Continues until the stages of the best schedule, and of close ones, were measured twice.

        A stage whose first latency was too low gets onto the best schedule, is measured again, and drops out.
        """
        trusted = self.effort.remeasure_rounds < 1 or not isinstance(self.latencies.cost, Remeasurable)
        if trusted or not math.isfinite(self._best_us()):
            return
        for _ in range(self.effort.remeasure_rounds):
            doubtful = self._doubtful() or self._near_ties()
            if not doubtful:
                return
            yield SearchRound(doubtful, more=True)
            self.latencies.refresh_bounds()
            if self.latencies.informative and not self.effort.exhaustive:
                self.proven = False
                yield from self._follow(prove=True)
        self._only_settled = bool(self._doubtful())

    def _best_us(self) -> float:
        return bound_us(self.lattice, self.latencies.known_us())

    def _doubtful(self) -> list[int]:
        weights = self.latencies.known_us()
        settled = self.latencies.is_settled()
        path = shortest_path(self.lattice, weights)
        return self.latencies.one_of_each(position for position in path if not settled[position])

    def _near_ties(self) -> list[int]:
        weights = self.latencies.known_us()
        through = np.where(self.latencies.is_settled(), np.inf, through_us(self.lattice, weights))
        close = np.flatnonzero(through <= bound_us(self.lattice, weights) * (1 + self.effort.tolerance))
        nearest = close[np.argsort(through[close], kind="stable")]
        return self.latencies.one_of_each(nearest.tolist())[:_NEAR_TIES]

    def _along_shortest_paths(self) -> Iterator[SearchRound]:
        """LazySP, twice: with full bounds to find a good schedule, then with slackened bounds to prove it.

        Slackened bounds alone favour unmeasured stages, and a limited search would end among stages that only looked
        better.
        """
        if self.effort.bound_slack < 1:
            yield from self._follow(prove=False)
        yield from self._follow(prove=True)

    def _expected_us(self, *, prove: bool = True) -> Latencies:
        """Lower bounds or predictions of stages: for a proof with room for errors, else the likely ones."""
        slack = self.effort.bound_slack if prove else 1.0
        if not self.effort.gap:
            return self.latencies.bounds_us(slack)
        # Strategies that bounds with this slack rule out are never requested, so predictions use the same slack.
        least = self.effort.bound_slack
        return self.latencies.bounds_us(least, factors(self.latencies, OPTIMISTIC if prove else LIKELY, least))

    def _follow(self, *, prove: bool) -> Iterator[SearchRound]:
        lattice, latencies = self.lattice, self.latencies
        predicts = self.effort.gap > 0
        slack = self.effort.bound_slack if prove or predicts else 1.0
        for rounds in count():
            bounds = self._expected_us(prove=prove)
            lowest = latencies.bounds_us(slack) if predicts else bounds  # unlike predictions, they never fall
            reached, best = distances(lattice, bounds), bound_us(lattice, latencies.known_us())
            self.best_us = best
            done = reached[-1] >= best * (1 - self.effort.tolerance_after(latencies.n_measured))
            missing = [] if done else latencies.missing(some_shortest_path(lattice, bounds, reached), slack)
            if not missing:
                self.proven = prove
                return
            if self._is_spent():
                return
            wanted = latencies.groups_first(missing) if prove and not predicts else missing
            yield SearchRound(wanted, worse_than_us=self._worse_than_us(missing, wanted, best))
            if rounds % _ROUNDS_BETWEEN_TRIMS == 0:
                lattice = within(lattice, lowest, distances(lattice, lowest), best)

    def _worse_than_us(self, missing: Sequence[int], wanted: Sequence[int], best_us: float) -> dict[int, float]:
        """For each wanted stage the latency above which no schedule with it takes less than `best_us`.

        A stage can exceed its bound by the difference of the best known schedule and the bound of all schedules. A
        group that is wanted for the bounds of missing stages matters as long as one of them does.
        """
        if not isinstance(self.latencies.cost, Curtailable) or not math.isfinite(best_us):
            return {}
        bounds = self._expected_us()
        # A little room, since sums in another order differ in the last bits.
        spare_us = best_us * (1 + 1e-9) - bound_us(self.lattice, bounds)
        largest = max(float(bounds[position]) for position in missing)
        return {each: spare_us + (float(bounds[each]) if each in missing else largest) for each in wanted}

    def _is_spent(self) -> bool:
        limit = self.effort.max_measurements
        return limit is not None and self.latencies.n_measured - self.latencies.n_repeated - self._n_alone >= limit

    def _greedy_if_promising(self) -> list[int]:
        order = self.lattice.order
        ready = ready_sets(range(len(order)), lambda index: bits(order.predecessors[index]))
        masks = np.array([sum(1 << index for index in indices) for indices in ready], dtype=np.uint64)
        if not np.isin(masks, self.lattice.stages).all():
            return []
        positions = np.searchsorted(self.lattice.stages, masks)
        bounds = self._expected_us()[positions]
        if bounds.sum() >= self._best_us():
            return []
        return self.latencies.missing(positions.tolist(), self.effort.bound_slack)

    def best_known(self) -> BestKnown | None:
        """The best known schedule; None if the device provably can run none."""
        if not self._ended:
            self.latencies.recall_forgotten()
        weights = self.latencies.known_us()
        if self._only_settled:
            weights, self.proven = np.where(self.latencies.is_settled(), weights, np.inf), False
        self.best_us = total = bound_us(self.lattice, weights)
        lower = min(total, bound_us(self.lattice, self.latencies.bounds_us(self.effort.bound_slack)))
        if math.isfinite(total):
            path = shortest_path(self.lattice, weights)
            stages = tuple(self.latencies.stage(position) for position in path)
            return BestKnown(stages, total, lower, self._predicted_least_us(total))
        if self.proven:
            return None
        alone = tuple(
            Stage(Strategy.CONCURRENT, ((name,),), predicted_us=self.latencies.operator_us(index))
            for index, name in enumerate(self.latencies.names)
        )
        return BestKnown(alone, total, lower)

    def _predicted_least_us(self, total_us: float) -> float | None:
        is_predicting = self.effort.gap and self.latencies.informative
        return min(total_us, bound_us(self.lattice, self._expected_us())) if is_predicting else None


LIKELY, OPTIMISTIC = 0.5, 0.25  # quantiles of the factors
_BEFORE = ((0.93, 0.96, 1.0, 1.03, 1.07), (0.8, 0.92, 1.0, 1.16, 1.3), (0.95, 1.01, 1.1, 1.2, 1.3))
"""Factors of one, two, and three or more groups, counted along with the measured ones. The middle three are quartiles
of Inception V3 on two cores of an AMD EPYC; the outer ones are guesses.
"""


def factors(latencies: KnownLatencies, share: float, least: float) -> Latencies:
    """For each stage a factor on its concurrent bound, the quantile `share` of similar measured stages, at least
    `least`, (M,).

    Independent of the order of measurements. It is `least` for single operators, and for several groups if nothing is
    known of operators on one lane.
    """
    found = np.full(len(latencies.lattice.stages), least)
    value, bound = latencies.value[Strategy.CONCURRENT], latencies.bound[Strategy.CONCURRENT]
    known = np.isfinite(value) & (bound > 0)
    _, first = np.unique(latencies.classes, return_index=True)
    groups = np.minimum(np.sum([each >= 0 for each in latencies.rounds], axis=0), len(_BEFORE))
    groups = np.where(popcount(latencies.lattice.stages) > 1, groups, 0)
    for rounds, before in enumerate(_BEFORE[: None if latencies.knows_work else 1], 1):
        rows = first[known[first] & (groups[first] == rounds)]
        found[groups == rounds] = max(float(np.quantile([*before, *(value[rows] / bound[rows])], share)), least)
    return found
