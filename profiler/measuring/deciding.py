"""Decides from interleaved rounds which alternative is faster, and what to measure next.

Rounds of several sessions, possibly of different days, are pooled: each compares alternatives with each other, so the
machine's speed on that day does not matter. Rounds with interference do not count.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Literal

from iosched.profiler.measuring.disturbance import Interference
from iosched.profiler.measuring.interleaved_models import Round, TakeRound, turn_seconds
from iosched.profiler.measuring.statistics import (
    LEAST_SAMPLES,
    Interval,
    Measurement,
    median_interval,
    quantile,
    summarize,
)


def lasting_interval(samples: Sequence[float], error: float) -> tuple[float, float]:
    """An interval of the median that holds at every look; infinite with too few samples.

    Samples are independent. The median is ever below the lower end with probability `error` between 0 and 1, else a
    ValueError, and ever above the upper end with the same.
    """
    if not 0 < error < 1:
        raise ValueError(f"error must be a probability between 0 and 1, not {error}")
    count = len(samples)
    above = _least_above(count, error)
    if above > count:
        return -math.inf, math.inf
    ordered = sorted(samples)
    return ordered[count - above], ordered[above - 1]


def least_lasting(error: float) -> int:
    """The least number of samples with such an interval."""
    return next(count for count in itertools.count(1) if _least_above(count, error) <= count)


@lru_cache(maxsize=4096)
def _least_above(count: int, error: float) -> int:
    """Number of `count` samples that must exceed x for x to be below the median; more than `count` if none suffices.

    Found by bisection, since the capital grows with the number of samples above x.
    """
    low, high = count // 2, count + 1
    while low + 1 < high:
        middle = (low + high) // 2
        low, high = (low, middle) if _log_capital(count, middle) >= -math.log(error) else (middle, high)
    return high


def _log_capital(count: int, above: int) -> float:
    """Logarithm of the capital after bets on `count` samples, of which `above` exceeded x.

    It is the mean of (2 p)^above (2 (1 - p))^(count - above) over p from 1/2 to 1. Over p from 0 to 1 that integral is
    a beta function; the share of it above 1/2 is the chance of at most `above` heads in `count` + 1 tosses.
    """
    tosses = count + 1
    heads = math.fsum(_binomial(tosses, k) for k in range(above + 1))
    return (tosses + 1) * math.log(2) - math.log(tosses) - _log_ways(count, above) + math.log(heads) - math.log(2)


def _binomial(tosses: int, heads: int) -> float:
    return math.exp(_log_ways(tosses, heads) - tosses * math.log(2))


def _log_ways(count: int, chosen: int) -> float:
    return math.lgamma(count + 1) - math.lgamma(chosen + 1) - math.lgamma(count - chosen + 1)


Decision = Literal["faster", "slower", "equal", "undecided"]
"""Comparison of our best candidate with the fastest baseline."""

ERROR = 0.05
"""The probability that any of ours is falsely called faster, over all rounds and sessions of one model."""

EQUAL = 0.02
"""Two are equal if the interval of their ratio is within this distance from 1."""

CLEARLY = 0.03
"""Candidates slower than another by more than this share, beyond the noise of a few rounds, are dropped."""

NARROWED = 8
"""Number of rounds after which only our leader is measured, with the baselines; another may become the leader."""


LEAST_ROUNDS = least_lasting(ERROR * 0.5 / 4)
"""Minimum rounds to decide whether one of ours is faster, found or one of four baseline schedules."""


@dataclass(frozen=True)
class SampledRounds:
    """Rounds of the same alternatives; sample k of each is of round k.

    Attributes:
        samples_us: latencies in a row, by alternative.
        rested_us: latencies after idle in the same rounds.
        load: the interference in each round.
        slowness: of the machine in each round, see `Round`; empty if unknown.
    """

    samples_us: Mapping[str, tuple[float, ...]]
    rested_us: Mapping[str, tuple[float, ...]]
    load: tuple[Interference, ...]
    slowness: tuple[float | None, ...] = ()

    @property
    def rested(self) -> SampledRounds:
        """The same rounds with the latencies after idle."""
        return replace(self, samples_us=self.rested_us)

    def quiet_us(self, name: str) -> list[float]:
        """The latencies of an alternative in rounds without interference."""
        samples_us = self.samples_us.get(name, ())
        return [us for us, taken in zip(samples_us, self.load, strict=False) if not taken.disturbs]


@dataclass(frozen=True)
class Trial:
    """All rounds of ways to run one model: ours, and baselines to beat.

    Attributes:
        sessions: the rounds, earliest session first.
        ours: the share of `ERROR` of each of ours, in order of preference.
        baselines: their names, the usual one first.
        others: alternatives that are shown and do not affect the decision.
    """

    sessions: tuple[SampledRounds, ...]
    ours: Mapping[str, float]
    baselines: tuple[str, ...]
    others: tuple[str, ...] = ()

    @property
    def least_rounds(self) -> int:
        """Minimum rounds until each of ours can be faster within its share of the error."""
        return least_lasting(ERROR * min(self.ours.values()))

    @property
    def compared_s(self) -> float:
        """About how many seconds the rounds without interference took."""
        quiet = (us for each in self.sessions for name in each.samples_us for us in each.quiet_us(name))
        return sum(turn_seconds(us / 1e6) for us in quiet)

    def adding(self, session: SampledRounds) -> Trial:
        """The same with more rounds."""
        return replace(self, sessions=(*self.sessions, session))

    def without(self, names: Collection[str]) -> Trial:
        """The same without those that do not run."""
        kept = {name: share for name, share in self.ours.items() if name not in names}
        return replace(self, ours=kept, others=tuple(name for name in self.others if name not in names))

    def has(self, name: str) -> bool:
        """Whether it was measured at all."""
        return any(name in each.samples_us for each in self.sessions)

    def measured(self, name: str) -> Measurement | None:
        """Its latency in rounds without interference, or in all if too few; None if unmeasured."""
        samples = [us for each in self.sessions for us in each.quiet_us(name)]
        rested = [us for each in self.sessions for us in each.rested.quiet_us(name)]
        if len(samples) >= LEAST_SAMPLES:
            return replace(summarize(samples), rested_us=tuple(rested), slowness=self._slowness(name))
        samples = [us for each in self.sessions for us in each.samples_us.get(name, ())]
        rested = [us for each in self.sessions for us in each.rested_us.get(name, ())]
        found = summarize(samples) if samples else None
        return found and replace(found, rested_us=tuple(rested), disturbed_by=self._disturbed_by)

    def in_common(self, names: Sequence[str]) -> Mapping[str, Measurement]:
        """The latencies of these in the rounds without interference that have all of them."""
        sessions = [each for each in self.sessions if each.samples_us.keys() >= {*names}]
        samples_us = {name: [us for each in sessions for us in each.quiet_us(name)] for name in names}
        return {name: summarize(each) for name, each in samples_us.items() if each}

    def _slowness(self, name: str) -> float | None:
        sessions = [each for each in self.sessions if name in each.samples_us]
        known = [slowness for each in sessions for slowness in each.slowness if slowness is not None]
        return quantile(known, 0.5) if known else None

    @cached_property
    def _disturbed_by(self) -> tuple[str, ...]:
        disturbed = sum(taken.disturbs for each in self.sessions for taken in each.load)
        total = sum(len(each.load) for each in self.sessions)
        return (f"other processes interfered with {disturbed} of {total} rounds",) if disturbed else ()

    def ratios(self, of: str, over: str) -> list[float]:
        """The latency of `of` over that of `over`, for each round without interference that has both."""
        return [first / second for first, second in self._pairs(of, over)]

    def speedup(self, plain: str, ours: str) -> Interval | None:
        """The speedup of `ours` over `plain`, a quotient of medians, with an interval that holds at every look.

        Its low end has ours' share of the error, and its high end the rest. The interval is that of the median ratio,
        extended to the quotient if that is outside, as on a drifting machine. None with too few rounds.
        """
        pairs = [*self._pairs(plain, ours)]
        ratios, share = [first / second for first, second in pairs], self.ours.get(ours)
        low, _ = lasting_interval(ratios, ERROR if share is None else ERROR * share)
        _, high = lasting_interval(ratios, ERROR if share is None else ERROR * (1 - share))
        if math.isinf(low) or math.isinf(high):
            return None
        before, after = zip(*pairs, strict=True)
        value = quantile(before, 0.5) / quantile(after, 0.5)
        return Interval(value, min(value, low), max(value, high), f"{plain}/{ours}")

    @cached_property
    def fastest_baseline(self) -> str:
        """The baseline of least latency; the usual one while nothing is known."""
        return self.best(self.baselines)

    @cached_property
    def leader(self) -> str:
        """The fastest of ours over the fastest baseline in all rounds, regardless of noise."""
        return self.best([*self.ours], self.fastest_baseline)

    @cached_property
    def candidate(self) -> str:
        """The fastest of ours that beats every baseline beyond the noise; the leader if none does."""
        faster = [name for name in self.ours if self.is_faster(name)]
        return self.leader if self.leader in faster or not faster else self.best(faster, self.fastest_baseline)

    @cached_property
    def chosen_baseline(self) -> str:
        """The usual baseline, or another one that is faster beyond the noise."""
        found = self.baselines[0]
        for other in self.baselines[1:]:
            if self._is_clearly_slower(found, other) or self._beats(other, found):
                found = other
        return found

    @property
    def chosen(self) -> str:
        """The alternative that ships: one of ours only if it is faster."""
        return self.candidate if self.verdict == "faster" else self.chosen_baseline

    def chosen_without(self, other: str) -> str:
        """The alternative that would ship without one of the baselines."""
        left = [name for name in self.baselines if name != other]
        beats = all(self._is_clearly_slower(name, self.leader) or self._beats(self.leader, name) for name in left)
        return self.leader if beats else left[0]

    @property
    def verdict(self) -> Decision:
        """Comparison of `candidate` with `fastest_baseline`."""
        return self._decision(self.candidate)

    @property
    def is_settled(self) -> bool:
        """Whether the comparison of the fastest of ours is decided, and all others were measured."""
        return self.has_all and self._decision(self.leader) != "undecided"

    @property
    def has_all(self) -> bool:
        """Whether the latency of each has an interval."""
        has_ours = all(self.n_rounds(name) >= LEAST_SAMPLES for name in (*self.ours, *self.others))
        return has_ours and all(map(self._is_compared_to_leader, self.baselines))

    def _decision(self, ours: str) -> Decision:
        if self.is_faster(ours):
            return "faster"
        found = self.speedup(self.fastest_baseline, ours)
        if found is None:
            return "undecided"
        if found.high < 1:
            return "slower"
        return "equal" if found.low >= 1 - EQUAL and found.high <= 1 + EQUAL else "undecided"

    @cached_property
    def wanted(self) -> tuple[str, ...]:
        """The alternatives to measure next: any that may be the best of ours or the fastest baseline."""
        ours = [name for name in self.ours if self._is_wanted(name)]
        ours += [name for name in self.others if self.n_rounds(name) < LEAST_SAMPLES]
        plain = [name for name in self.baselines if name in self._contenders or not self._is_compared_to_leader(name)]
        return (*ours, *plain)

    def is_faster(self, ours: str) -> bool:
        """Whether one of ours beats, beyond the noise, every baseline that may be the fastest."""
        return all(self._beats(ours, plain) for plain in self._contenders)

    def speedup_after_idle(self, plain: str, ours: str) -> Interval | None:
        """`speedup` after idle; None with too few measurements."""
        return replace(self, sessions=tuple(each.rested for each in self.sessions)).speedup(plain, ours)

    def n_rounds(self, name: str) -> int:
        """The number of its rounds without interference that have the fastest baseline."""
        return len(self.ratios(name, self.fastest_baseline))

    def _beats(self, name: str, plain: str) -> bool:
        found = self.speedup(plain, name)
        return found is not None and found.low > 1

    @cached_property
    def _contenders(self) -> tuple[str, ...]:
        return tuple(name for name in self.baselines if not self._is_clearly_slower(name, self.fastest_baseline))

    def _is_compared_to_leader(self, plain: str) -> bool:
        return len(self.ratios(plain, self.leader)) >= LEAST_SAMPLES

    def _is_wanted(self, name: str) -> bool:
        n_rounds = self.n_rounds(name)
        if n_rounds < LEAST_SAMPLES or name == self.leader:
            return True
        return n_rounds < NARROWED and not self._is_clearly_slower(name, self.leader)

    def _is_clearly_slower(self, name: str, other: str) -> bool:
        found = self.ratios(name, other)
        return len(found) >= LEAST_SAMPLES and median_interval(found)[0] > 1 + CLEARLY

    def best(self, names: Sequence[str], over: str | None = None) -> str:
        """The first of the names, or a later one that was faster in most rounds than the one it replaces.

        With `over`, they are compared by their ratios over it in all of its rounds, also in those with one of them.
        """
        found, *others = names
        for other in others:
            if self._median_ratio(found, other, over) > 1:
                found = other
        return found

    def _median_ratio(self, of: str, by: str, over: str | None) -> float:
        if over is None:
            ratios = self.ratios(of, by)
            return quantile(ratios, 0.5) if ratios else 1.0
        both = self.ratios(of, over), self.ratios(by, over)
        return quantile(both[0], 0.5) / quantile(both[1], 0.5) if all(both) else 1.0

    def _pairs(self, first: str, second: str) -> Iterator[tuple[float, float]]:
        for each in self.sessions:
            both = zip(each.quiet_us(first), each.quiet_us(second), strict=False)
            yield from ((one, other) for one, other in both if one > 0 and other > 0)


def until_settled(
    trial: Trial,
    take: TakeRound,
    measured_as: Mapping[str, str],
    is_over: Callable[[int], bool],
    order: random.Random,
) -> Trial:
    """Adds rounds in random order until the trial is settled, wants ways not in `measured_as`, or time is over.

    Args:
        take: measures ways once each, in the given order.
        measured_as: for each way the name by which it is measured; several ways may have one name.
        is_over: whether time is over, given the number of rounds of this call.
    """
    done = 0
    while not trial.is_settled and measured_as.keys() >= {*trial.wanted} and not is_over(done):
        wanted, rounds, more = trial.wanted, list[Round](), trial
        while more.wanted == wanted and not more.is_settled and not (rounds and is_over(done)):
            names = list(dict.fromkeys(measured_as[name] for name in wanted))
            rounds.append(take(order.sample(names, len(names))))
            more, done = trial.adding(_session(rounds, {name: measured_as[name] for name in wanted})), done + 1
        trial = more
    return trial


def _session(rounds: Sequence[Round], measured_as: Mapping[str, str]) -> SampledRounds:
    return SampledRounds(
        {name: tuple(each.samples_us[once] for each in rounds) for name, once in measured_as.items()},
        {name: tuple(each.rested_us[once] for each in rounds) for name, once in measured_as.items()},
        tuple(each.load for each in rounds),
        tuple(each.slowness for each in rounds),
    )


def shares(found: Iterable[str], earlier: int, baselines: Iterable[str]) -> dict[str, float]:
    """The share of the error of each of ours: half for found schedules, half for baseline schedules.

    All shares are at most one in total, however many schedules are found over time; `earlier` counts previous ones.
    """
    numbered = {name: number for number, name in enumerate(found, earlier + 1)}
    others = [name for name in baselines if name not in numbered]
    return {
        **{name: 0.5 / (number * (number + 1)) for name, number in numbered.items()},
        **{name: 0.5 / len(others) for name in others},
    }
