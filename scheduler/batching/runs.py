"""Matches operators of a new model with those of one in the plan, by a dynamic programme over runs (DPBat's DP).

The models' operators are in one order each, and matches ascend in both. A *run* is a maximal set of matches (i, j),
(i+1, j+1), ...: inside a run, inputs from the run are in place; where it starts and ends, tensors are joined and split.

The paper's recurrence has four states for each pair of operators: whether each is batched. A run continues only if both
are, and the other three states are equivalent. It prices starts and ends by one operator each, as if neighbours in the
order always shared an edge. In a graph, a run has the price of all its outside edges, so this programme chooses among
whole runs. On chains with prices by type the two agree; tests compare them there, and with brute force on small graphs.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf

from iosched.models.batching.ensemble import Group
from iosched.scheduler.batching.plan import Plan

Pair = tuple[int, int]


@dataclass(frozen=True)
class Match:
    """The value, in microseconds, of operator i of the new model joining the group of operator j.

    Attributes:
        gain: the saving of the larger group over the smaller, minus the costs that do not depend on other matches.
        starts: (back, price): paid if the match `back` positions before is not in the run.
        ends: for each output (price, readers); its readers are (ahead, price) positions later in the run. If one of
            them is not in the run, its price and that of the output are paid.
    """

    gain: float
    starts: tuple[tuple[int, float], ...]
    ends: tuple[tuple[float, tuple[tuple[float, float], ...]], ...]

    def end_price(self, remaining: int) -> float:
        """The cost of results if `remaining` matches follow in the run."""
        total = 0.0
        for price, readers in self.ends:
            broken = [own for ahead, own in readers if ahead > remaining]
            if broken:
                total += price + sum(broken)
        return total


@dataclass(frozen=True, eq=False)
class Pairing:
    """A new model and one in the plan.

    Attributes:
        plan: the plan so far; no operator of `new` is in a group.
        new: operators of the new model that no model of the plan has, in order.
        old: all operators of the other model, in order.
        allowed: whether operator i of `new` may join operator j of `old`, if they are equal.
    """

    plan: Plan
    new: Sequence[str]
    old: Sequence[str]
    allowed: Callable[[int, int], bool] = lambda i, j: True

    def best(self) -> tuple[float, tuple[Pair, ...]]:
        """The value of the best set of runs, and its matches; (0, ()) if no run saves more than it costs.

        Row i of the table is the row before it, raised by the matches of operator i. Complexity: O(len(new)
        * len(old) + the sum over all diagonals of matches of their lengths squared).
        """
        matches = dict(self._matches())
        value = [[0.0] * (len(self.old) + 1)]
        taken: dict[Pair, int] = {}
        for i, j in matches:
            while len(value) < i + 2:
                value.append(list(value[-1]))
            row = value[i + 1]
            for length, worth in enumerate(run_values(matches, i, j), start=1):
                total = value[i + 1 - length][j + 1 - length] + worth
                if total > row[j + 1] + 1e-9:
                    _raise(row, j + 1, total)
                    taken[i + 1, j + 1] = length
        value.extend([value[-1]] * (len(self.new) + 1 - len(value)))
        return value[-1][-1], tuple(_path(value, taken))

    def _matches(self) -> Iterator[tuple[Pair, Match]]:
        likeness = self.plan.ensemble.likeness
        positions: dict[str, list[int]] = {}
        for j, name in enumerate(self.old):
            positions.setdefault(likeness[name].key, []).append(j)
        maker = _Maker(self.plan, {n: i for i, n in enumerate(self.new)}, {n: j for j, n in enumerate(self.old)})
        for i, name in enumerate(self.new):
            for j in positions.get(likeness[name].key, ()):
                if self.plan.ensemble.are_alike(name, self.old[j]) and self.allowed(i, j):
                    yield (i, j), maker.match(name, self.old[j])


def run_values(matches: dict[Pair, Match], i: int, j: int) -> Iterator[float]:
    """The value of the run that ends with the match (i, j), for each possible length, from 1 on."""
    total, length = 0.0, 0
    # Savings if the match this number of positions before (i, j) is in the run.
    waiting: dict[int, float] = {}
    while (match := matches.get((i - length, j - length))) is not None:
        total += match.gain - match.end_price(length) + waiting.pop(length, 0.0)
        for back, price in match.starts:
            total -= price
            waiting[length + back] = waiting.get(length + back, 0.0) + price
        length += 1
        yield total


def _raise(row: list[float], start: int, least: float) -> None:
    end = bisect_left(row, least, start)
    row[start:end] = [least] * (end - start)


def _path(value: Sequence[Sequence[float]], taken: dict[Pair, int]) -> Iterator[Pair]:
    i, j = len(value) - 1, len(value[0]) - 1
    while i and j:
        if (i, j) in taken:
            yield from ((i - 1 - step, j - 1 - step) for step in range(taken[i, j]))
            i, j = i - taken[i, j], j - taken[i, j]
        elif value[i][j] == value[i - 1][j]:
            i -= 1
        else:
            j -= 1


@dataclass(frozen=True, eq=False)
class _Maker:
    """Prices matches against a plan; `new` and `old` are the positions of the models' operators."""

    plan: Plan
    new: dict[str, int]
    old: dict[str, int]

    def match(self, x: str, v: str) -> Match:
        plan = self.plan
        group = plan.group(v)
        larger = plan.ensemble.joined(group, x)
        gain, starts, ends = plan.gain_us(larger) - plan.gain_us(group), [], []
        for port in range(len(plan.ensemble.reads[v])):
            back, price = self._start(x, v, group, larger, port)
            if back:
                starts.append((back, price))
            else:
                gain -= price
        for index in range(len(plan.ensemble.graph.by_name[v].outputs)):
            if plan.is_parted(group, index):
                gain -= plan.part_us(larger, index) - plan.part_us(group, index)
            else:
                ends.append((plan.part_us(larger, index), tuple(self._readers(x, v, group, index))))
        return Match(gain, tuple(starts), tuple(ends))

    def _start(self, x: str, v: str, group: Group, larger: Group, port: int) -> tuple[int, float]:
        """Number of positions back to the match that puts the operands of a port in place, else 0; and the price
        without it.
        """
        plan = self.plan
        if plan.ensemble.likeness[v].spreads and len(set(plan.operands(larger, port))) == 1:
            return 0, 0.0
        price = plan.join_us(larger, port)
        if plan.is_joined(group, port):
            return 0, price - plan.join_us(group, port)
        feeder = plan.feeder(group, port)
        if feeder is not None:
            index = plan.ensemble.source[plan.ensemble.reads[group[0]][port]][1]
            if not plan.is_parted(feeder, index):
                price += plan.part_us(feeder, index)
        return self._distance(x, v, port, len(group)), price

    def _distance(self, x: str, v: str, port: int, size: int) -> int:
        """Number of positions before (x, v) at which their sources at a port match; 0 if they cannot."""
        source, reads = self.plan.ensemble.source, self.plan.ensemble.reads
        before, other = source.get(reads[x][port]), source.get(reads[v][port])
        if before is None or other is None or before[1] != other[1] or before[0] not in self.new:
            return 0
        back = self.new[x] - self.new[before[0]]
        is_aligned = other[0] in self.old and self.old[v] - self.old[other[0]] == back
        return back if is_aligned and len(self.plan.group(other[0])) == size else 0

    def _readers(self, x: str, v: str, group: Group, index: int) -> Iterator[tuple[float, float]]:
        """For each reader of an output, the number of positions to its match, and the price of its group without it."""
        plan, ensemble = self.plan, self.plan.ensemble
        ours, theirs = (ensemble.graph.by_name[name].outputs[index] for name in (x, v))
        if not ensemble.returned.isdisjoint((ours, theirs)):
            yield inf, 0.0
        own = {
            (self.new[name] - self.new[x], port) for name, port in ensemble.readers.get(ours, ()) if name in self.new
        }
        if len(own) < len(ensemble.readers.get(ours, ())):
            yield inf, 0.0
        for name, port in ensemble.readers.get(theirs, ()):
            reading = plan.group(name)
            ahead = self.old[name] - self.old[v] if name in self.old and len(reading) == len(group) else 0
            is_matched = (ahead, port) in own
            own.discard((ahead, port))
            broken = plan.join_us(reading, port) if len(group) > 1 else 0.0
            yield (ahead if is_matched else inf), broken
        if own:
            yield inf, 0.0
