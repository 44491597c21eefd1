"""Interleaved measurements of whole models, each after idle and in a row."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from iosched.models.errors import SeparateProcessError
from iosched.models.log import logger
from iosched.profiler.measuring.disturbance import Interference
from iosched.profiler.measuring.idle import wait_until_idle
from iosched.profiler.measuring.interleave import compare, interleave
from iosched.profiler.measuring.statistics import LEAST_SAMPLES, Measurement, quantile, summarize
from iosched.runtime.executor import Candidate

RATE_SECONDS = 0.25
"""Approximate duration of the runs of a sample of throughput; there is at least one."""

_log = logger(__name__)
_Name = TypeVar("_Name")

REST_SECONDS = 0.1
"""About how long a candidate waits for an idle process (`wait_until_idle`)."""

WARMUP_ROUNDS = 2

IN_A_ROW_SECONDS, MOST_IN_A_ROW = 0.01, 10
"""Duration of the consecutive runs of one sample, and their maximum number; there is at least one."""


@dataclass(frozen=True)
class Budget:
    """Limits for measuring whole models.

    Attributes:
        rounds: rounds to keep, if there is time.
        max_seconds: no further round starts after this total time of runs.
        least_rounds: rounds in any case; by default enough for an interval.
        repeats: further rounds in place of those with interference, at most half of those wanted.
        is_loaded: whether this process loads cores itself, so that interference does not count.
    """

    rounds: int = 15
    max_seconds: float = 20.0
    least_rounds: int = LEAST_SAMPLES
    repeats: int = 0
    is_loaded: bool = False


def measure_interleaved(
    candidates: Mapping[str, Candidate],
    budget: Budget,
    observer: Callable[[int, int], None] | None = None,
    rest: Callable[[], None] | None = None,
    is_quiet: Callable[[], bool] = lambda: True,
) -> Mapping[str, Measurement]:
    """Measures every candidate in a row and after idle, interleaved; sample k of each is of round k.

    After a pause, a candidate runs once (`Measurement.rested_us`) and then several times in a row
    (`Measurement.runs_us`), whose median is the sample. Rounds with interference are omitted, unless fewer than
    `budget.least_rounds` remain; `Measurement.disturbed_by` then counts them.

    Args:
        observer: called after each round with the rounds done and the total.
        rest: waits until the device is idle; by default for this process.
        is_quiet: whether there was no interference since the last call, see `disturbance.watch`.
    """
    quiet: list[bool] = []

    def was_quiet() -> bool:
        quiet.append(budget.is_loaded or is_quiet())
        return quiet[-1]

    turns = {name: _Turns(name, candidate) for name, candidate in candidates.items()}
    interleave(
        {name: each.take for name, each in turns.items()},
        budget.rounds,
        warmup=WARMUP_ROUNDS,
        max_seconds=budget.max_seconds / 2,  # the runs after idle take about the same time again
        least_rounds=budget.least_rounds,
        rest=rest or wait_until_idle,
        observer=observer,
        is_quiet=was_quiet,
        repeats=budget.repeats,
    )
    rounds = range(WARMUP_ROUNDS, len(quiet))
    kept = [index for index in rounds if quiet[index]]
    disturbed_by: tuple[str, ...] = ()
    if len(kept) < min(budget.least_rounds, budget.rounds):
        disturbed_by = (f"other processes interfered with {len(rounds) - len(kept)} of {len(rounds)} rounds",)
        kept = [*rounds]
    found = {name: replace(each.of(kept), disturbed_by=disturbed_by) for name, each in turns.items()}
    for name, each in found.items():
        interval = each.median_us, each.low_us, each.high_us, len(each.samples_us)
        _log.info("whole model, %s: %.1f us (%.1f to %.1f), %d rounds", name, *interval)
    return found


def interference_notes(measured: Mapping[str, Measurement]) -> tuple[str, ...]:
    """A sentence if other processes interfered with too many rounds; else empty."""
    return tuple(
        f"{text[0].upper()}{text[1:]} of whole models: repeat this on an idle machine."
        for text in dict.fromkeys(text for each in measured.values() for text in each.disturbed_by)
    )


@dataclass(frozen=True)
class Round:
    """One sample of each of some candidates.

    Attributes:
        samples_us: latencies in a row by name, each the median of a few runs.
        rested_us: latencies of the first run after idle.
        load: the interference.
        slowness: of the machine against the speed of stage latencies; None if unknown.
    """

    samples_us: Mapping[str, float]
    rested_us: Mapping[str, float]
    load: Interference
    slowness: float | None = None


TakeRound = Callable[[Sequence[str]], Round]
"""Measures the named candidates once each, in this order."""


def rounds_of(
    candidates: Mapping[str, Candidate],
    rest: Callable[[], None] = wait_until_idle,
    watch: Callable[[], Callable[[], Interference]] = lambda: Interference,
    slowness: Callable[[], float | None] = lambda: None,
) -> TakeRound:
    """A function that measures some of the candidates once each, after idle.

    Args:
        rest: waits until the device is idle.
        watch: starts to watch for interference, and returns a function that returns it.
        slowness: measures the machine's slowness, only after a round without interference: with it, the calibration
            kernel was seen to take 26 times its reference.
    """
    turns = {name: _Turns(name, candidate) for name, candidate in candidates.items()}

    def take(names: Sequence[str]) -> Round:
        load, samples_us = watch(), {}
        for name in names:
            rest()
            samples_us[name] = turns[name].take()
        rested_us, taken = {name: turns[name].rested_us[-1] for name in names}, load()
        if taken.disturbs:
            return Round(samples_us, rested_us, taken)
        rest()
        return Round(samples_us, rested_us, taken, slowness())

    return take


@dataclass(frozen=True)
class _Turns:
    """The samples of one candidate: its first run, and its runs in a row, in microseconds."""

    name: str
    candidate: Candidate
    rested_us: list[float] = field(default_factory=list)
    runs_us: list[Sequence[float]] = field(default_factory=list)

    def take(self) -> float:
        try:
            rested_us, *in_a_row_us = self.candidate.time(1 + self._count())
        except SeparateProcessError as error:
            error.candidate = self.name
            raise
        self.rested_us.append(rested_us)
        self.runs_us.append(in_a_row_us)
        return quantile(in_a_row_us, 0.5)

    def of(self, rounds: Sequence[int]) -> Measurement:
        runs_us = [self.runs_us[index] for index in rounds]
        return replace(
            summarize([quantile(in_a_row_us, 0.5) for in_a_row_us in runs_us]),
            rested_us=tuple(self.rested_us[index] for index in rounds),
            runs_us=tuple(run_us for in_a_row_us in runs_us for run_us in in_a_row_us),
        )

    def _count(self) -> int:
        if not self.rested_us or self.rested_us[-1] <= 0:
            return 1
        return min(max(int(IN_A_ROW_SECONDS * 1e6 / self.rested_us[-1]), 1), MOST_IN_A_ROW)


def turn_seconds(run_s: float) -> float:
    """Approximate seconds of a sample of a candidate whose runs take `run_s` seconds."""
    return REST_SECONDS + run_s + max(run_s, IN_A_ROW_SECONDS)


@contextmanager
def closing_all(candidates: Mapping[Any, Candidate]) -> Iterator[None]:
    """Closes the candidates when the context ends."""
    try:
        yield
    finally:
        close_all(candidates.values())


def close_all(candidates: Iterable[Candidate]) -> None:
    """Closes every candidate."""
    for candidate in candidates:
        candidate.close()


_FEW_ROUNDS, _ROUNDS = 2, 9  # with nine rounds or more, the interval excludes the extreme ones
_CLEARLY_SLOWER = 1.1
_FEW_SECONDS, _SECONDS = 3.0, 1.0
"""Total duration of the samples of the first and the further rounds."""


def runs_to_choose(count: int) -> int:
    """Approximate number of samples of `fastest_setting`: few settings compete with the usual one."""
    return (1 + _FEW_ROUNDS) * count + _ROUNDS * min(count, 2)


def fastest_setting(candidates: Sequence[Candidate]) -> int:
    """The index of the candidate with the lowest interleaved median; the first, unless another is faster beyond the
    noise.

    After two rounds, clearly slower ones are dropped.
    """
    takes = {str(index): partial(_turn_us, each) for index, each in enumerate(candidates)}
    few = interleave(takes, _FEW_ROUNDS, warmup=1, max_seconds=_FEW_SECONDS, rest=wait_until_idle)
    left = {name: takes[name] for name in dict.fromkeys(("0", *contenders(few)))}
    if len(left) == 1:
        return 0
    found = interleave(left, _ROUNDS, warmup=0, max_seconds=_SECONDS, least_rounds=LEAST_SAMPLES, rest=wait_until_idle)
    ratios = {name: compare(found["0"], each) for name, each in found.items()}
    faster = [name for name, ratio in ratios.items() if ratio is not None and ratio.is_faster]
    return int(min(faster, key=lambda name: found[name].median_us, default="0"))


def contenders(measured: Mapping[_Name, Measurement]) -> list[_Name]:
    """The candidates that are not clearly slower than the fastest, by interleaved rounds."""
    limit_us = _CLEARLY_SLOWER * min(each.median_us for each in measured.values())
    return [name for name, each in measured.items() if min(each.samples_us) <= limit_us]


def _turn_us(candidate: Candidate) -> float:
    (rested_us,) = candidate.time(1)
    count = int(IN_A_ROW_SECONDS * 1e6 / max(rested_us, 1.0))
    return quantile(candidate.time(min(max(count, 1), MOST_IN_A_ROW)), 0.5)


def measure_rates(
    candidates: Mapping[str, Candidate],
    budget: Budget,
    observer: Callable[[int, int], None] | None = None,
    rest: Callable[[], None] = wait_until_idle,
) -> Mapping[str, Measurement]:
    """Throughput: microseconds between the ends of consecutive runs of every candidate; sample k is of round k.

    A candidate runs once, since the first run after idle differs, and then for `RATE_SECONDS`. The sample is their mean
    wall-clock time, divided by the number of concurrent runs. The first round is dropped.
    """
    samples: dict[str, list[float]] = {name: [] for name in candidates}
    began = time.monotonic()
    for done in range(1 + budget.rounds):
        for name, candidate in candidates.items():
            rest()
            samples[name].append(_rate_us(candidate))
        if observer is not None:
            observer(done + 1, 1 + budget.rounds)
        if done >= budget.least_rounds and time.monotonic() - began >= budget.max_seconds:
            break
    return {name: summarize(taken[1:]) for name, taken in samples.items()}


def rate_turn_seconds(run_s: float) -> float:
    """Approximate seconds of a sample of `measure_rates`, of a candidate whose runs take `run_s` seconds."""
    return REST_SECONDS + run_s + max(run_s, RATE_SECONDS)


def _rate_us(candidate: Candidate) -> float:
    first_s = candidate.time(1)[0] / 1e6
    count = max(int(RATE_SECONDS / first_s), 1) if first_s > 0 else 1
    began = time.perf_counter_ns()
    candidate.time(count)
    return (time.perf_counter_ns() - began) / 1e3 / count / candidate.in_flight
