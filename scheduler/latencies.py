"""Measured latencies and lower bounds of a block's stages during a search."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from iosched.scheduler.cost import (
    ConcurrentBounds,
    CostModel,
    CostQuestion,
    Curtailable,
    Disturbable,
    OperatorBounds,
    Remeasurable,
    ask,
    operator_question,
)
from iosched.scheduler.lattice import Flags, Indices, Latencies, Lattice, Masks, Relation, bits, popcount
from iosched.scheduler.schedule import Stage, Strategy
from iosched.scheduler.strategies import STAGE_RULES


@dataclass(eq=False)
class KnownLatencies:
    """Latencies of the M stages of one block by strategy; all arrays are (M,), by position in `lattice.stages`.

    Attributes:
        strategies: in order of preference for equal latencies (thesis, algorithm 1).
        bound: lower bounds in microseconds.
        value: measured latencies in microseconds: NaN if not measured, infinite if the stage cannot run so.
        settled: which stages were measured a second time.
        low: lower bound of stages measured with interference (`Disturbable`); 0 for others.
        forgotten: latencies that are requested again because of interference; else NaN.
        classes: the number of each stage's class; stages of a class are equally fast.
        rounds: the k-th array has for each stage the position of its k-th group as a stage, or -1. Empty unless the
            cost model has `OperatorBounds`.
        n_repeated: number of measurements repeated because of interference.
    """

    cost: CostModel
    names: tuple[str, ...]
    lattice: Lattice
    strategies: tuple[Strategy, ...]
    bound: dict[Strategy, Latencies]
    value: dict[Strategy, Latencies]
    settled: dict[Strategy, Flags]
    low: dict[Strategy, Latencies]
    forgotten: dict[Strategy, Latencies]
    classes: Indices
    rounds: list[Indices] = field(default_factory=list)
    n_measured: int = 0
    n_repeated: int = 0
    n_remeasured: int = 0
    _alone_us: list[float] = field(default_factory=list)
    _work_us: list[float] = field(default_factory=list)

    @classmethod
    def start(
        cls,
        cost: CostModel,
        names: tuple[str, ...],
        lattice: Lattice,
        masks: Mapping[Strategy, Sequence[int]],
        classes: Indices | None = None,
    ) -> KnownLatencies:
        """The latencies of a block without measurements or bounds.

        `masks` are the largest sets of operators by strategy (`strategies.masks_of`), `classes` the number of each
        stage's class, by default its own.
        """
        n_stages = len(lattice.stages)
        single = popcount(lattice.stages) == 1
        runs = {}
        for strategy, sets in masks.items():
            can = single if strategy is Strategy.CONCURRENT else np.zeros(n_stages, dtype=np.bool_)
            for mask in sets:
                can = can | (((lattice.stages & ~np.uint64(mask)) == 0) & ~single)
            if can.any():
                runs[strategy] = can
        value = {strategy: np.where(can, np.nan, np.inf) for strategy, can in runs.items()}
        bound = {strategy: np.where(can, 0.0, np.inf) for strategy, can in runs.items()}
        settled = {each: np.zeros(n_stages, dtype=np.bool_) for each in runs}
        low = {each: np.zeros(n_stages) for each in runs}
        forgotten = {each: np.full(n_stages, np.nan) for each in runs}
        alike = np.arange(n_stages, dtype=np.int64) if classes is None else classes
        return cls(cost, names, lattice, tuple(runs), bound, value, settled, low, forgotten, alike)

    def fill_bounds(self, deadline: Callable[[], bool]) -> bool:
        """Requests all bounds; False if the deadline passed first, which leaves them at zero."""
        asked = list(self.strategies)
        if isinstance(self.cost, OperatorBounds):
            asked.remove(Strategy.CONCURRENT)
            if not self._fill_operator_bounds(self.cost, deadline):
                return False
        elif isinstance(self.cost, ConcurrentBounds):
            asked.remove(Strategy.CONCURRENT)
            self._bound_concurrent(self.cost.concurrent_bounds_us(self.names, self.lattice))
        for strategy in asked:
            self._ask_bounds(strategy)
        return True

    def _ask_bounds(self, strategy: Strategy) -> None:
        unknown = np.flatnonzero(np.isnan(self.value[strategy]))
        _, first, members = np.unique(self.classes[unknown], return_index=True, return_inverse=True)
        bounds = [self.cost.lower_bound_us(self.stage_by(position, strategy)) for position in unknown[first].tolist()]
        self.bound[strategy][unknown] = np.maximum(np.array(bounds, dtype=np.float64), 0.0)[members]

    def bound_questions(self) -> list[CostQuestion]:
        """The questions about operators of `fill_bounds` and `refill_bounds`."""
        if not isinstance(self.cost, OperatorBounds):
            return []
        return [question for name in self.names for question in _of_bounds(name)]

    def _ask_operators(self, deadline: Callable[[], bool]) -> bool:
        found: list[tuple[float, float]] = []
        for name in self.names:
            if deadline():
                return False
            alone, work = (ask(self.cost, question) for question in _of_bounds(name))
            found.append((alone, work))
        self._alone_us, self._work_us = (list(values) for values in zip(*found, strict=True))
        return True

    def _fill_operator_bounds(self, cost: OperatorBounds, deadline: Callable[[], bool]) -> bool:
        if not self._ask_operators(deadline):
            return False
        stages = self.lattice.stages
        for where, groups in self.lattice.groups:
            positions = np.full(len(stages), -1, dtype=np.int64)
            positions[where] = np.searchsorted(stages, groups)
            self.rounds.append(positions)
        self._bound_by_operators(cost)
        return True

    def _bound_by_operators(self, cost: OperatorBounds) -> None:
        stages = self.lattice.stages
        rounds = [(where, stages[groups[where]]) for groups in self.rounds for where in [np.flatnonzero(groups >= 0)]]
        self._bound_concurrent(concurrent_bounds(stages, rounds, self._alone_us, self._work_us, cost.lanes))

    @property
    def knows_work(self) -> bool:
        """Whether the work of operators on one lane is known, so that bounds of several groups predict them."""
        return any(self._work_us)

    def _bound_concurrent(self, bounds_us: Latencies) -> None:
        possible = np.isfinite(self.bound[Strategy.CONCURRENT])
        self.bound[Strategy.CONCURRENT] = np.where(possible, bounds_us, np.inf)

    @property
    def informative(self) -> bool:
        """Whether any bound is above zero, so that a lazy search can skip stages."""
        return any(bool(np.any((bound > 0) & np.isfinite(bound))) for bound in self.bound.values())

    def known_us(self) -> Latencies:
        """For each stage its latency by the best measured strategy; infinite if unmeasured."""
        return _least([np.where(np.isnan(value), np.inf, value) for value in self.value.values()])

    def bounds_us(self, slack: float = 1.0, factors: Latencies | None = None) -> Latencies:
        """For each stage its measured latency, else its bound times `slack`.

        With `factors`, unmeasured concurrent stages count as predicted: their bounds times these.
        """
        predicted = slack if factors is None else factors
        scales = (predicted if strategy is Strategy.CONCURRENT else slack for strategy in self.strategies)
        return _least([self._least_by(*each, slack) for each in zip(self.strategies, scales, strict=True)])

    def _least_by(self, strategy: Strategy, scale: float | Latencies, slack: float) -> Latencies:
        bound = np.maximum(self.bound[strategy] * scale, self.low[strategy])
        if strategy is Strategy.CONCURRENT and self.rounds:
            measured = np.append(np.nan_to_num(self.value[strategy], nan=0.0, posinf=np.inf) * slack, 0.0)
            for positions in self.rounds:
                bound = np.maximum(bound, measured[positions])
        return np.where(np.isnan(self.value[strategy]), bound, self.value[strategy])

    def least_us(self, position: int, strategy: Strategy) -> float:
        """The bound of one stage by a strategy, including those of its groups."""
        groups = self.rounds if strategy is Strategy.CONCURRENT else []
        alone = [float(self.value[strategy][group[position]]) for group in groups if group[position] >= 0]
        return max([float(self.bound[strategy][position]), *(us for us in alone if not math.isnan(us))])

    def missing(self, positions: Iterable[int], slack: float = 1.0) -> list[int]:
        """The positions of stages that an unmeasured strategy may be best for; one stage of each class."""
        return self.one_of_each(position for position in positions if self._open_strategies(position, slack))

    def one_of_each(self, positions: Iterable[int]) -> list[int]:
        """The first of these stages of each class."""
        found: dict[int, int] = {}
        for position in positions:
            found.setdefault(int(self.classes[position]), position)
        return list(found.values())

    def groups_first(self, positions: Sequence[int]) -> list[int]:
        """The stages to measure to raise the bounds of these: their unmeasured groups, else the stages themselves.

        A group is also a separate stage, which bounds every stage that contains the group (`OperatorBounds`).
        """
        if not self.rounds:
            return list(positions)
        found: dict[int, None] = {}
        for position in positions:
            groups = [int(group[position]) for group in self.rounds if group[position] >= 0]
            unknown = [group for group in groups if np.isnan(self.value[Strategy.CONCURRENT][group])]
            found.update(dict.fromkeys(unknown or [position]))
        return self.one_of_each(found)

    def single_operators(self) -> list[int]:
        """The stages of one operator, in topological order."""
        return [int(position) for position in np.flatnonzero(popcount(self.lattice.stages) == 1)]

    def questions(self, position: int, slack: float = 1.0, worse_than_us: float = math.inf) -> list[CostQuestion]:
        """The questions of `measure`; an answer may rule out later ones."""
        open_ones = self._open_strategies(position, slack)
        return [self._question(position, strategy, worse_than_us) for strategy in open_ones]

    def measure(self, position: int, slack: float = 1.0, worse_than_us: float = math.inf) -> int:
        """Requests a stage by every strategy that may be its best; returns the number of requests.

        The exact value does not matter above `worse_than_us`. Raises a ValueError for NaN or a negative answer.
        """
        asked = 0
        while strategies := self._open_strategies(position, slack):
            self._measure_by(position, strategies[0], worse_than_us)
            asked += 1
        return asked

    def _open_strategies(self, position: int, slack: float = 1.0) -> list[Strategy]:
        """Unmeasured strategies that bounds do not rule out as the best, lowest bound first."""
        best = self._best_us(position)
        least_us = {
            strategy: max(float(bound[position]) * slack, float(self.low[strategy][position]))
            for strategy, bound in self.bound.items()
            if np.isnan(self.value[strategy][position])
        }
        last = self.strategies[-1]
        found = [each for each, us in least_us.items() if us < best or (us == best and each is not last)]
        return sorted(found, key=lambda each: float(self.bound[each][position]))

    def _best_us(self, position: int) -> float:
        measured = [float(value[position]) for value in self.value.values()]  # numpy is slow on single numbers
        return min(math.inf if math.isnan(us) else min(us, sys.float_info.max) for us in measured)

    def _measure_by(self, position: int, strategy: Strategy, worse_than_us: float) -> None:
        question = self._question(position, strategy, worse_than_us)
        latency = _checked(ask(self.cost, question), question.stage)
        alike = (self.classes == self.classes[position]) & np.isnan(self.value[strategy])
        self.value[strategy][alike] = latency
        low_us = self.cost.disturbed_low_us(question.stage) if isinstance(self.cost, Disturbable) else None
        self.low[strategy][alike] = low_us or 0.0
        self.n_repeated += not math.isnan(self.forgotten[strategy][position])
        self.forgotten[strategy][alike] = np.nan
        self.n_measured += 1

    def _question(self, position: int, strategy: Strategy, worse_than_us: float) -> CostQuestion:
        limit_us = min(worse_than_us, self._best_us(position)) if isinstance(self.cost, Curtailable) else math.inf
        return CostQuestion(self.stage_by(position, strategy), worse_than_us=limit_us)

    def disturbed(self) -> dict[Strategy, Flags]:
        """For each strategy, which stages have a latency with interference."""
        return {strategy: (low > 0) & ~np.isnan(self.value[strategy]) for strategy, low in self.low.items()}

    def forget_disturbed(self) -> None:
        """Forgets latencies with interference except for their low ends, so that they are requested again.

        Bounds stay until `refill_bounds`.
        """
        if isinstance(self.cost, Disturbable):
            self.cost.try_again()
        for strategy, flags in self.disturbed().items():
            self.forgotten[strategy][flags] = self.value[strategy][flags]
            self.value[strategy][flags] = np.nan

    def recall_forgotten(self) -> None:
        """Restores the forgotten latencies that were not requested again."""
        for strategy, value in self.value.items():
            self.value[strategy] = np.where(np.isnan(value), self.forgotten[strategy], value)

    def refill_bounds(self, deadline: Callable[[], bool]) -> None:
        """Requests the operators' latencies again; bounds stay if the deadline passes first."""
        if self.rounds and isinstance(self.cost, OperatorBounds) and self._ask_operators(deadline):
            self._bound_by_operators(self.cost)

    def questions_again(self, position: int) -> list[CostQuestion]:
        """The questions of `remeasure`."""
        strategy = self._best_strategy(position)
        if not isinstance(self.cost, Remeasurable) or self.settled[strategy][position]:
            return []
        return [CostQuestion(self.stage_by(position, strategy), "again")]

    def remeasure(self, position: int) -> None:
        """Requests a stage again, by its best measured strategy; raises a ValueError for NaN or a negative answer."""
        strategy = self._best_strategy(position)
        for question in self.questions_again(position):
            latency = _checked(ask(self.cost, question), question.stage)
            alike = (self.classes == self.classes[position]) & np.isfinite(self.value[strategy])
            self.value[strategy][alike] = latency
            self.settled[strategy][alike] = True
            self.n_remeasured += 1

    def is_settled(self) -> Flags:
        """For each stage, whether its latency by the best measured strategy was measured twice."""
        best, found = self.known_us(), np.zeros(len(self.lattice.stages), dtype=np.bool_)
        for strategy in reversed(self.strategies):
            found = np.where(self.value[strategy] == best, self.settled[strategy], found)
        return found

    def refresh_bounds(self) -> None:
        """Updates the bounds by operators after second measurements of single operators."""
        if not self.rounds or not isinstance(self.cost, OperatorBounds):
            return
        for index, position in enumerate(self.single_operators()):
            if self.settled[Strategy.CONCURRENT][position]:
                alone = float(self.value[Strategy.CONCURRENT][position])
                self._alone_us[index] = alone
                self._work_us[index] = min(self._work_us[index], alone * self.cost.lanes)
        self._bound_by_operators(self.cost)

    def operator_us(self, index: int) -> float | None:
        """Latency of operator `index` alone; None if unmeasured or infinite."""
        position = self.position(1 << index)
        latency = float(self.value[Strategy.CONCURRENT][position])
        return latency if math.isfinite(latency) else None

    def position(self, mask: int) -> int:
        """The position of the stage of these operators."""
        return int(np.searchsorted(self.lattice.stages, np.uint64(mask)))

    def positions(self, stages: Iterable[Iterable[str]]) -> Iterator[int]:
        """The positions of the stages of these operators, without those that are not in the lattice."""
        bit = {name: 1 << index for index, name in enumerate(self.names)}
        for operators in stages:
            bits = [bit.get(name, 0) for name in operators]
            position = self.position(sum(bits))
            if all(bits) and position < len(self.lattice.stages) and self.lattice.stages[position] == sum(bits):
                yield position

    def stage(self, position: int) -> Stage:
        """The stage by its best strategy measured, with that latency as the predicted one."""
        strategy = self._best_strategy(position)
        plain = self.stage_by(position, strategy)
        return Stage(plain.strategy, plain.groups, predicted_us=float(self.value[strategy][position]))

    def _best_strategy(self, position: int) -> Strategy:

        def rank(strategy: Strategy) -> tuple[float, bool]:
            latency = float(self.value[strategy][position])
            return (math.inf if math.isnan(latency) else latency, math.isinf(latency))

        return min(self.strategies, key=rank)

    def stage_by(self, position: int, strategy: Strategy) -> Stage:
        """The stage by this strategy, even if it cannot run so."""
        mask = int(self.lattice.stages[position])
        separate = STAGE_RULES[strategy].is_one_operator
        groups = [1 << index for index in bits(mask)] if separate else self.lattice.order.groups(mask)
        return Stage(strategy, tuple(tuple(self.names[index] for index in bits(group)) for group in groups))


def stages_within(order: Relation, masks: Mapping[Strategy, Sequence[int]]) -> tuple[int, ...] | None:
    """Masks that contain every stage of several operators; None if all stages are allowed. See `lattice.build`."""
    sets = tuple(mask for found in masks.values() for mask in found)
    return None if order.full in sets else sets


def _of_bounds(name: str) -> tuple[CostQuestion, CostQuestion]:
    return operator_question(name, "operator"), operator_question(name, "work")


def _checked(latency_us: float, stage: Stage) -> float:
    if math.isnan(latency_us) or latency_us < 0:
        raise ValueError(f"the cost model returned {latency_us} us for {stage.operators}")
    return latency_us


def _least(latencies: Sequence[Latencies]) -> Latencies:
    least: Latencies = np.minimum.reduce(latencies)
    return least


Rounds = Sequence[tuple[Indices, Masks]]

_ROWS = 1 << 15  # stages whose splits over two lanes are tried at once
_TRIED = 8  # largest groups of a stage that are split over two lanes in every way


def concurrent_bounds(
    masks: Masks, rounds: Rounds, alone_us: Sequence[float], work_us: Sequence[float], lanes: int
) -> Latencies:
    """Lower bounds of stages under the promises of `cost.OperatorBounds`, in microseconds, (M,).

    `masks` are the operators of each stage, and `rounds` their groups as `lattice.components` returns them. `alone_us`
    and `work_us` are each operator's latency on all lanes and on one. Complexity: O(M * (operators + groups * lanes)),
    with two lanes O(M * 2^7) more.
    """
    groups = np.zeros((len(masks), max(len(rounds), 1)))
    n_groups = np.zeros(len(masks), dtype=np.int64)
    slowest = np.zeros(len(masks))
    for number, (where, group) in enumerate(rounds):
        groups[where, number] = sums(group, work_us)
        n_groups[where] += 1
        slowest[where] = np.maximum(slowest[where], sums(group, alone_us))
    spread = n_groups >= lanes
    found: Latencies = np.maximum(slowest, groups.sum(axis=1) / lanes)
    found[spread] = np.maximum(found[spread], makespans(groups[spread], lanes))
    return found


def makespans(groups_us: Latencies, lanes: int) -> Latencies:
    """Lower bounds of placing whole groups on lanes; (M, k) -> (M,). Exact for two lanes and up to eight groups."""
    groups = -np.sort(-groups_us, axis=1)
    width = groups.shape[1]
    found: Latencies = np.maximum(groups[:, 0], groups.sum(axis=1) / lanes)
    # Of the `lanes * j + 1` longest groups, some lane has j + 1: they take at least as long as the shortest of these.
    for several in range(1, (width - 1) // lanes + 1):
        last = lanes * several
        found = np.maximum(found, groups[:, last - several : last + 1].sum(axis=1))
    if lanes == 2 and width > 3:
        for start in range(0, len(groups), _ROWS):
            rows = slice(start, start + _ROWS)
            found[rows] = np.maximum(found[rows], _best_halves(groups[rows, :_TRIED]))
    return found


def _best_halves(groups: Latencies) -> Latencies:
    """Least time of the busier of two lanes, over all splits of the groups. O(2^(k - 1)) for each row."""
    total = groups.sum(axis=1)
    one_lane = groups[:, :1]  # the first group's lane, for every choice of other groups on it
    for column in range(1, groups.shape[1]):
        one_lane = np.concatenate([one_lane, one_lane + groups[:, column : column + 1]], axis=1)
    best: Latencies = np.maximum(one_lane, total[:, None] - one_lane).min(axis=1)
    return best


def sums(masks: Masks, values: Sequence[float]) -> Latencies:
    """Sum of `values` over the operators of each mask."""
    total = np.zeros(len(masks))
    for index, value in enumerate(values):
        total += value * ((masks >> np.uint64(index)) & np.uint64(1))
    return total
