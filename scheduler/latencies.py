"""What is known of the latencies of a block's stages while it is searched: measured values and lower bounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from iosched.scheduler.bounds import Latencies, concurrent_bounds
from iosched.scheduler.cost import CostModel, OperatorBounds
from iosched.scheduler.lattice import Indices, Lattice, bits, components, popcount
from iosched.scheduler.schedule import Stage, Strategy


@dataclass(eq=False)
class KnownLatencies:
    """Latencies of the stages of one block, by position in `lattice.stages`.

    A stage may run in one or two ways (concurrent, merge); each has an array of bounds and one of measured values,
    NaN while unknown. A way that a stage has not is known to be infinite.
    """

    cost: CostModel
    names: tuple[str, ...]
    lattice: Lattice
    ways: tuple[Strategy, ...]
    bound: dict[Strategy, Latencies]
    value: dict[Strategy, Latencies]
    classes: Indices  # stages of one class have one latency
    rounds: list[Indices] = field(default_factory=list)  # k-th group of each stage, as the stage it makes alone, or -1
    n_measured: int = 0

    @classmethod
    def start(
        cls,
        cost: CostModel,
        names: tuple[str, ...],
        lattice: Lattice,
        merge_masks: Sequence[int],
        strategy: str,
        classes: Indices | None = None,
    ) -> KnownLatencies:
        """Nothing measured and nothing bounded yet; without `classes` every stage is one of its own."""
        n_stages = len(lattice.stages)
        single = popcount(lattice.stages) == 1
        merged = np.zeros(n_stages, dtype=np.bool_)
        for mask in merge_masks:
            merged |= ((lattice.stages & ~np.uint64(mask)) == 0) & ~single
        runs = {Strategy.CONCURRENT: single if strategy == "merge" else np.ones(n_stages, dtype=np.bool_)}
        if merged.any():
            runs[Strategy.MERGE] = merged
        value = {way: np.where(can, np.nan, np.inf) for way, can in runs.items()}
        bound = {way: np.where(can, 0.0, np.inf) for way, can in runs.items()}
        alike = np.arange(n_stages, dtype=np.int64) if classes is None else classes
        return cls(cost, names, lattice, tuple(runs), bound, value, alike)

    def fill_bounds(self, deadline: Callable[[], bool]) -> bool:
        """Takes the cost model's bounds; False where the deadline came before, with the bounds left at zero."""
        asked = list(self.ways)
        if isinstance(self.cost, OperatorBounds):
            asked.remove(Strategy.CONCURRENT)
            if not self._fill_operator_bounds(self.cost, deadline):
                return False
        for way in asked:
            for position in np.flatnonzero(np.isnan(self.value[way])).tolist():
                self.bound[way][position] = max(self.cost.lower_bound_us(self._stage(position, way)), 0.0)
        return True

    def _fill_operator_bounds(self, cost: OperatorBounds, deadline: Callable[[], bool]) -> bool:
        alone, work = [], []
        for name in self.names:
            if deadline():
                return False
            alone.append(cost.operator_latency_us(name))
            work.append(cost.operator_work_us(name))
        stages = self.lattice.stages
        rounds = list(components(stages, self.lattice.order))
        for where, groups in rounds:
            positions = np.full(len(stages), -1, dtype=np.int64)
            positions[where] = np.searchsorted(stages, groups)
            self.rounds.append(positions)
        possible = np.isfinite(self.bound[Strategy.CONCURRENT])
        computed = concurrent_bounds(stages, rounds, alone, work, cost.lanes)
        self.bound[Strategy.CONCURRENT] = np.where(possible, computed, np.inf)
        return True

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

    def measure(self, position: int, slack: float = 1.0) -> int:
        """Asks the cost model for the stage, in the way (or ways) that may be the best one; returns how often.

        Raises:
            ValueError: the answer is NaN or negative.
        """
        asked = 0
        while ways := self._open_ways(position, slack):
            self._measure_way(position, ways[0])
            asked += 1
        return asked

    def _open_ways(self, position: int, slack: float = 1.0) -> list[Strategy]:
        """Ways that are not measured and whose bounds leave room for being the best, the most promising first."""
        best = min(float(np.nan_to_num(self.value[way][position], nan=np.inf)) for way in self.ways)
        ways = [
            way
            for way in self.ways
            if np.isnan(self.value[way][position]) and float(self.bound[way][position]) * slack < best
        ]
        return sorted(ways, key=lambda way: float(self.bound[way][position]))

    def _measure_way(self, position: int, way: Strategy) -> None:
        stage = self._stage(position, way)
        latency = self.cost.stage_latency_us(stage)
        if math.isnan(latency) or latency < 0:
            raise ValueError(f"the cost model says {latency} us for {stage.operators}")
        alike = (self.classes == self.classes[position]) & np.isnan(self.value[way])
        self.value[way][alike] = latency
        self.n_measured += 1

    def operator_us(self, index: int) -> float | None:
        """Latency of operator `index` alone, if known and finite."""
        position = int(np.searchsorted(self.lattice.stages, np.uint64(1 << index)))
        latency = float(self.value[Strategy.CONCURRENT][position])
        return latency if math.isfinite(latency) else None

    def stage(self, position: int) -> Stage:
        """The stage in its best measured way, with that latency as its predicted one."""
        known = [(float(np.nan_to_num(self.value[way][position], nan=np.inf)), way) for way in self.ways]
        latency, way = min(known, key=lambda entry: entry[0])
        plain = self._stage(position, way)
        return Stage(plain.strategy, plain.groups, predicted_us=latency)

    def _stage(self, position: int, way: Strategy) -> Stage:
        mask = int(self.lattice.stages[position])
        alone = way is Strategy.MERGE
        groups = [1 << index for index in bits(mask)] if alone else self.lattice.order.groups(mask)
        return Stage(way, tuple(tuple(self.names[index] for index in bits(group)) for group in groups))


def _least(ways: Sequence[Latencies]) -> Latencies:
    least = ways[0]
    for other in ways[1:]:
        least = np.minimum(least, other)
    return least
