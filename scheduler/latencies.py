"""What is known of the latencies of a block's stages while it is searched: measured values and lower bounds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from iosched.scheduler.cost import CostModel, OperatorBounds
from iosched.scheduler.lattice import Lattice, bits, components, popcount
from iosched.scheduler.schedule import Stage, Strategy

Latencies = NDArray[np.float64]


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
    rounds: list[NDArray[np.int64]]  # k-th group of each stage, as the position of the stage it makes alone, or -1
    slack: float
    n_measured: int = 0

    @classmethod
    def start(
        cls,
        cost: CostModel,
        names: tuple[str, ...],
        lattice: Lattice,
        merge_masks: Sequence[int],
        strategy: str,
        slack: float,
    ) -> KnownLatencies:
        """Nothing measured yet; the bounds are the cost model's, times `slack`."""
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
        known = cls(cost, names, lattice, tuple(runs), bound, value, [], slack)
        known._fill_bounds()
        return known

    def _fill_bounds(self) -> None:
        asked = list(self.ways)
        if isinstance(self.cost, OperatorBounds):
            asked.remove(Strategy.CONCURRENT)
            possible = np.isnan(self.value[Strategy.CONCURRENT])
            computed = self._operator_bounds(self.cost) * self.slack
            self.bound[Strategy.CONCURRENT] = np.where(possible, computed, np.inf)
        for way in asked:
            for position in np.flatnonzero(np.isnan(self.value[way])).tolist():
                bound = self.cost.lower_bound_us(self._stage(position, way)) * self.slack
                self.bound[way][position] = max(bound, 0.0)

    def _operator_bounds(self, cost: OperatorBounds) -> Latencies:
        """Slowest group, its operators one after another; and total work over all lanes. Vectorised over stages.

        A group has all lanes to itself at best, and one lane where there are at least as many groups as lanes.
        """
        stages = self.lattice.stages
        alone = [cost.operator_latency_us(name) for name in self.names]
        work = [cost.operator_work_us(name) for name in self.names]
        found = _sums(stages, work) / cost.lanes
        rounds = list(components(stages, self.lattice.order))
        n_groups = np.zeros(len(stages), dtype=np.int64)
        for where, _ in rounds:
            n_groups[where] += 1
        for where, groups in rounds:
            slowest = np.where(n_groups[where] >= cost.lanes, _sums(groups, work), _sums(groups, alone))
            found[where] = np.maximum(found[where], slowest)
            positions = np.full(len(stages), -1, dtype=np.int64)
            positions[where] = np.searchsorted(stages, groups)
            self.rounds.append(positions)
        return found

    @property
    def informative(self) -> bool:
        """Whether any bound says more than that latencies are positive."""
        return any(bool(np.any((bound > 0) & np.isfinite(bound))) for bound in self.bound.values())

    def known_us(self) -> Latencies:
        """For each stage the latency of its best measured way; infinite where none is measured."""
        return _least([np.where(np.isnan(self.value[way]), np.inf, self.value[way]) for way in self.ways])

    def bounds_us(self) -> Latencies:
        """For each stage the least that it can take, as far as known: measured, or bounded."""
        return _least([self._way_us(way) for way in self.ways])

    def _way_us(self, way: Strategy) -> Latencies:
        bound = self.bound[way]
        if way is Strategy.CONCURRENT and self.rounds:
            measured = np.append(np.nan_to_num(self.value[way], nan=0.0, posinf=np.inf) * self.slack, 0.0)
            for positions in self.rounds:
                bound = np.maximum(bound, measured[positions])
        return np.where(np.isnan(self.value[way]), bound, self.value[way])

    def missing(self, positions: Iterable[int]) -> list[int]:
        """Those stages whose weight in `bounds_us` still is a bound."""
        undecided = self.known_us() > self.bounds_us()
        return [position for position in positions if undecided[position]]

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

    def measure(self, position: int) -> None:
        """Asks the cost model for the stage, in the way (or ways) that may be the best one.

        Raises:
            ValueError: the answer is NaN or negative.
        """
        for way in sorted(self.ways, key=lambda way: float(self.bound[way][position])):
            best = min(float(np.nan_to_num(self.value[other][position], nan=np.inf)) for other in self.ways)
            if not np.isnan(self.value[way][position]) or self.bound[way][position] >= best:
                continue
            stage = self._stage(position, way)
            latency = self.cost.stage_latency_us(stage)
            if math.isnan(latency) or latency < 0:
                raise ValueError(f"the cost model says {latency} us for {stage.operators}")
            self.value[way][position] = latency
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


def _sums(masks: NDArray[np.uint64], values: Sequence[float]) -> Latencies:
    """Sum of `values` over the operators of each mask."""
    total = np.zeros(len(masks))
    for index, value in enumerate(values):
        total += value * ((masks >> np.uint64(index)) & np.uint64(1))
    return total
