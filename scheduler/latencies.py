"""What is known of the latencies of a block's stages while it is searched: measured values and lower bounds."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from iosched.scheduler.bounds import Latencies, concurrent_bounds
from iosched.scheduler.cost import CostModel, Curtailable, OperatorBounds, Remeasurable
from iosched.scheduler.lattice import Indices, Lattice, Relation, bits, components, popcount
from iosched.scheduler.schedule import Stage, Strategy
from iosched.scheduler.strategies import STAGES

Flags = NDArray[np.bool_]


@dataclass(eq=False)
class KnownLatencies:
    """Latencies of the stages of one block, by position in `lattice.stages`.

    A stage may run in several ways, by each strategy that allows its operators; each has an array of bounds and one of
    measured values, NaN while unknown. Where a stage cannot run in a way, its latency in that way is known to be
    infinite. `settled` are those that were measured again.
    `ways` are in order of preference: of two that take equally long a stage runs in the first (thesis, algorithm 1).
    """

    cost: CostModel
    names: tuple[str, ...]
    lattice: Lattice
    ways: tuple[Strategy, ...]
    bound: dict[Strategy, Latencies]
    value: dict[Strategy, Latencies]
    settled: dict[Strategy, Flags]
    classes: Indices  # stages of one class have one latency
    rounds: list[Indices] = field(default_factory=list)  # k-th group of each stage, as the stage it makes alone, or -1
    n_measured: int = 0
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
        """Nothing measured and nothing bounded yet.

        Args:
            cost: the device.
            names: the operators of the block, in topological order.
            lattice: its states and stages.
            masks: for each strategy the largest sets of operators that may run so (`strategies.masks_of`).
            classes: for each stage the number of its class; without them every stage is one of its own.
        """
        n_stages = len(lattice.stages)
        single = popcount(lattice.stages) == 1
        runs = {}
        for way, sets in masks.items():
            can = single if way is Strategy.CONCURRENT else np.zeros(n_stages, dtype=np.bool_)
            for mask in sets:
                can = can | (((lattice.stages & ~np.uint64(mask)) == 0) & ~single)
            if can.any():
                runs[way] = can
        value = {way: np.where(can, np.nan, np.inf) for way, can in runs.items()}
        bound = {way: np.where(can, 0.0, np.inf) for way, can in runs.items()}
        settled = {way: np.zeros(n_stages, dtype=np.bool_) for way in runs}
        alike = np.arange(n_stages, dtype=np.int64) if classes is None else classes
        return cls(cost, names, lattice, tuple(runs), bound, value, settled, alike)

    def fill_bounds(self, deadline: Callable[[], bool]) -> bool:
        """Takes the cost model's bounds; False where the deadline came before, with the bounds left at zero."""
        asked = list(self.ways)
        if isinstance(self.cost, OperatorBounds):
            asked.remove(Strategy.CONCURRENT)
            if not self._fill_operator_bounds(self.cost, deadline):
                return False
        for way in asked:
            self._ask_bounds(way)
        return True

    def _ask_bounds(self, way: Strategy) -> None:
        """One question for each class of stages: what takes equally long has the same bounds."""
        unknown = np.flatnonzero(np.isnan(self.value[way]))
        _, first, members = np.unique(self.classes[unknown], return_index=True, return_inverse=True)
        bounds = [self.cost.lower_bound_us(self.stage_by(position, way)) for position in unknown[first].tolist()]
        self.bound[way][unknown] = np.maximum(np.array(bounds, dtype=np.float64), 0.0)[members]

    def _fill_operator_bounds(self, cost: OperatorBounds, deadline: Callable[[], bool]) -> bool:
        for name in self.names:
            if deadline():
                return False
            self._alone_us.append(cost.operator_latency_us(name))
            self._work_us.append(cost.operator_work_us(name))
        stages = self.lattice.stages
        for where, groups in components(stages, self.lattice.order):
            positions = np.full(len(stages), -1, dtype=np.int64)
            positions[where] = np.searchsorted(stages, groups)
            self.rounds.append(positions)
        self._bound_by_operators(cost)
        return True

    def _bound_by_operators(self, cost: OperatorBounds) -> None:
        stages = self.lattice.stages
        rounds = [(where, stages[groups[where]]) for groups in self.rounds for where in [np.flatnonzero(groups >= 0)]]
        possible = np.isfinite(self.bound[Strategy.CONCURRENT])
        computed = concurrent_bounds(stages, rounds, self._alone_us, self._work_us, cost.lanes)
        self.bound[Strategy.CONCURRENT] = np.where(possible, computed, np.inf)

    @property
    def informative(self) -> bool:
        """Whether any bound says more than that latencies are positive."""
        return any(bool(np.any((bound > 0) & np.isfinite(bound))) for bound in self.bound.values())

    def known_us(self) -> Latencies:
        """For each stage the latency of its best measured way; infinite where none is measured."""
        return _least([np.where(np.isnan(self.value[way]), np.inf, self.value[way]) for way in self.ways])

    def bounds_us(self, slack: float = 1.0) -> Latencies:
        """For each stage the least that it can take, as far as known: measured, or its bound times `slack`."""
        return _least([self._way_us(way, slack) for way in self.ways])

    def _way_us(self, way: Strategy, slack: float) -> Latencies:
        bound = self.bound[way] * slack
        if way is Strategy.CONCURRENT and self.rounds:
            measured = np.append(np.nan_to_num(self.value[way], nan=0.0, posinf=np.inf) * slack, 0.0)
            for positions in self.rounds:
                bound = np.maximum(bound, measured[positions])
        return np.where(np.isnan(self.value[way]), bound, self.value[way])

    def missing(self, positions: Iterable[int], slack: float = 1.0) -> list[int]:
        """Those stages with a way that is not measured and may be the best one; one of each class."""
        found: dict[int, int] = {}
        for position in positions:
            if self._open_ways(position, slack):
                found.setdefault(int(self.classes[position]), position)
        return list(found.values())

    def groups_first(self, positions: Sequence[int]) -> list[int]:
        """The unmeasured groups of these stages where groups bound their stages; else the stages themselves."""
        if not self.rounds:
            return list(positions)
        found: dict[int, None] = {}
        for position in positions:
            groups = [int(group[position]) for group in self.rounds if group[position] >= 0]
            unknown = [group for group in groups if np.isnan(self.value[Strategy.CONCURRENT][group])]
            found.update(dict.fromkeys(unknown or [position]))
        return list(found)

    def single_operators(self) -> list[int]:
        """The stages of one operator, in topological order."""
        return [int(position) for position in np.flatnonzero(popcount(self.lattice.stages) == 1)]

    def measure(self, position: int, slack: float = 1.0, worse_than_us: float = math.inf) -> int:
        """Asks the cost model for the stage, in the way (or ways) that may be the best one; returns how often.

        Args:
            position: of the stage.
            slack: factor on bounds.
            worse_than_us: above this, it does not matter what the stage takes.

        Raises:
            ValueError: the answer is NaN or negative.
        """
        asked = 0
        while ways := self._open_ways(position, slack):
            self._measure_way(position, ways[0], min(worse_than_us, self._best_way_us(position)))
            asked += 1
        return asked

    def _open_ways(self, position: int, slack: float = 1.0) -> list[Strategy]:
        """Ways that are not measured and whose bounds leave room for being the best, the most promising first."""
        best = self._best_way_us(position)
        least = {
            way: float(self.bound[way][position]) * slack for way in self.ways if np.isnan(self.value[way][position])
        }
        ways = [way for way, us in least.items() if us < best or (us == best and way is not self.ways[-1])]
        return sorted(ways, key=lambda way: float(self.bound[way][position]))

    def _best_way_us(self, position: int) -> float:
        """Latency of the stage in its best measured way; infinite where none is measured, and only there."""
        measured = [float(self.value[way][position]) for way in self.ways]  # numpy is slow on single numbers
        return min(math.inf if math.isnan(us) else min(us, sys.float_info.max) for us in measured)

    def _measure_way(self, position: int, way: Strategy, worse_than_us: float) -> None:
        stage = self.stage_by(position, way)
        if isinstance(self.cost, Curtailable) and worse_than_us < math.inf:
            latency = _checked(self.cost.latency_unless_worse_us(stage, worse_than_us), stage)
        else:
            latency = _checked(self.cost.stage_latency_us(stage), stage)
        alike = (self.classes == self.classes[position]) & np.isnan(self.value[way])
        self.value[way][alike] = latency
        self.n_measured += 1

    def remeasure(self, position: int) -> None:
        """Asks for the stage once more, in its best measured way.

        Raises:
            ValueError: the answer is NaN or negative.
        """
        way = self._best_way(position)
        if not isinstance(self.cost, Remeasurable) or self.settled[way][position]:
            return
        stage = self.stage_by(position, way)
        latency = _checked(self.cost.remeasure(stage), stage)
        alike = (self.classes == self.classes[position]) & np.isfinite(self.value[way])
        self.value[way][alike] = latency
        self.settled[way][alike] = True
        self.n_remeasured += 1

    def is_settled(self) -> Flags:
        """For each stage, whether its best measured way was measured again."""
        best, found = self.known_us(), np.zeros(len(self.lattice.stages), dtype=np.bool_)
        for way in reversed(self.ways):
            found = np.where(self.value[way] == best, self.settled[way], found)
        return found

    def refresh_bounds(self) -> None:
        """Takes what operators alone take when measured again into the bounds of the stages that hold them."""
        if not self.rounds or not isinstance(self.cost, OperatorBounds):
            return
        for index, position in enumerate(self.single_operators()):
            if self.settled[Strategy.CONCURRENT][position]:
                alone = float(self.value[Strategy.CONCURRENT][position])
                self._alone_us[index] = alone
                self._work_us[index] = min(self._work_us[index], alone * self.cost.lanes)
        self._bound_by_operators(self.cost)

    def operator_us(self, index: int) -> float | None:
        """Latency of operator `index` alone, if known and finite."""
        position = int(np.searchsorted(self.lattice.stages, np.uint64(1 << index)))
        latency = float(self.value[Strategy.CONCURRENT][position])
        return latency if math.isfinite(latency) else None

    def stage(self, position: int) -> Stage:
        """The stage in its best measured way, with that latency as its predicted one."""
        way = self._best_way(position)
        plain = self.stage_by(position, way)
        return Stage(plain.strategy, plain.groups, predicted_us=float(self.value[way][position]))

    def _best_way(self, position: int) -> Strategy:
        """The measured way of least latency; where none is measured, one that the stage has."""

        def rank(way: Strategy) -> tuple[float, bool]:
            latency = float(self.value[way][position])
            return (math.inf if math.isnan(latency) else latency, math.isinf(latency))

        return min(self.ways, key=rank)

    def stage_by(self, position: int, way: Strategy) -> Stage:
        """The stage by this strategy, whether it can run so or not."""
        mask = int(self.lattice.stages[position])
        apart = STAGES[way].is_one_operator
        groups = [1 << index for index in bits(mask)] if apart else self.lattice.order.groups(mask)
        return Stage(way, tuple(tuple(self.names[index] for index in bits(group)) for group in groups))


def stages_within(order: Relation, masks: Mapping[Strategy, Sequence[int]]) -> tuple[int, ...] | None:
    """The sets that hold every stage of several operators that can run at all; None where every stage can."""
    sets = tuple(mask for found in masks.values() for mask in found)
    return None if order.full in sets else sets


def _checked(latency_us: float, stage: Stage) -> float:
    if math.isnan(latency_us) or latency_us < 0:
        raise ValueError(f"the cost model says {latency_us} us for {stage.operators}")
    return latency_us


def _least(ways: Sequence[Latencies]) -> Latencies:
    least = ways[0]
    for other in ways[1:]:
        least = np.minimum(least, other)
    return least
