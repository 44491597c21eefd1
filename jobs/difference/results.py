"""Compares two results of `bench`, and decides whether the second one is too slow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from iosched.jobs.difference.bench_file import BenchFile, BenchLine
from iosched.jobs.difference.conditions import unlike_places
from iosched.models.errors import MismatchError, UsageError
from iosched.profiler.measuring.interleave import speedup_text
from iosched.profiler.measuring.statistics import CONFIDENCE, LEAST_SAMPLES, Interval, quantile

RESAMPLES = 10_000
"""Number of resamples of the bootstrap."""

_AT_ONCE = 1 << 22

USUAL_ROW = "iosched"
"""The row that a gate checks by default."""

_MOST_NAMED = 4


@dataclass(frozen=True)
class RowDifference:
    """The latencies of a row before and after.

    Attributes:
        before: median in microseconds, or its ratio to the median of the row that latencies are relative to.
        after: the same in the second result.
        ratio: `after` over `before`; above 1 the second is slower.
        interval: of `ratio`; None with fewer than `LEAST_SAMPLES` samples of either. Relative to another row, it is
            that of the ratios within rounds, extended to `ratio` if that is outside.
        samples: the numbers of samples.
    """

    batch_size: int | None
    name: str
    before: float
    after: float
    ratio: float
    interval: Interval | None
    samples: tuple[int, int]

    @property
    def verdict(self) -> str | None:
        """ "slower", "faster" or "no difference"; None with too few samples."""
        if self.interval is None:
            return None
        return "slower" if self.interval.low > 1 else "faster" if self.interval.high < 1 else "no difference"


@dataclass(frozen=True)
class ResultsDifference:
    """Differences of two results of `bench`.

    Attributes:
        rows: the rows that both have, by batch size.
        only_before: rows, as pairs of a batch size and a name, that the second one does not have.
        only_after: rows that the first one does not have.
        remarks: notes on differing conditions.
    """

    rows: tuple[RowDifference, ...]
    only_before: tuple[tuple[int | None, str], ...]
    only_after: tuple[tuple[int | None, str], ...]
    remarks: tuple[str, ...]


@dataclass(frozen=True)
class Gate:
    """The result of a gate.

    Attributes:
        max_regression: how much slower rows may be: 0.03 for 3 %.
        rows: the rows that it looked at.
    """

    max_regression: float
    rows: tuple[RowDifference, ...]

    @property
    def failed(self) -> tuple[RowDifference, ...]:
        """The rows whose whole interval lies above the limit."""
        least = 1 + self.max_regression
        return tuple(row for row in self.rows if row.interval is not None and row.interval.low > least)

    @property
    def failure(self) -> MismatchError | None:
        """The error to end with; None if all rows passed."""
        if not self.failed:
            return None
        rows = [f"{row.name} {speedup_text(row.interval)}" for row in self.failed[:_MOST_NAMED] if row.interval]
        more = f" and {len(self.failed) - _MOST_NAMED} more" if len(self.failed) > _MOST_NAMED else ""
        return MismatchError(f"slower by more than {100 * self.max_regression:g} %: {', '.join(rows)}{more}")


def compare_results(
    before: BenchFile, after: BenchFile, *, seed: int = 0, relative_to: str | None = None, anyway: bool = False
) -> ResultsDifference:
    """Compares the rows that two results have in common.

    Args:
        seed: of the bootstrap.
        relative_to: a row by which others are divided, round by round, to cancel changes of the whole machine.
        anyway: whether to compare results of different models, devices and batch sizes.

    Raises:
        UsageError: the two are not of one model, device and batch size, or have no row in common.
    """
    pairs = _pairs(before, after, anyway)
    remarks = tuple(dict.fromkeys(text for one, other in pairs for text in _unlike(one, other)))
    if remarks and not anyway:
        raise UsageError(f"{before.place} and {after.place} are {'; '.join(remarks)}: use --anyway to compare them")
    places = (text for one, other in pairs for text in unlike_places(one.provenance, other.provenance))
    remarks = (*remarks, *dict.fromkeys(places))
    rows = tuple(row for one, other in pairs for row in _rows(one, other, seed, relative_to))
    if not rows:
        raise UsageError(f"{before.place} and {after.place} have no row in common")
    only = [
        tuple((one.batch_size, name) for one, other in order for name in one.names if name not in other.names)
        for order in (pairs, [(other, one) for one, other in pairs])
    ]
    return ResultsDifference(rows, only[0], only[1], remarks)


def gate(found: ResultsDifference, max_regression: float, names: Sequence[str] = ()) -> Gate:
    """Finds rows whose whole interval is above `1 + max_regression`.

    Args:
        max_regression: how much slower they may be: 0.03 for 3 %.
        names: the rows to look at; by default `USUAL_ROW`.

    Raises:
        UsageError: there is no such row, or one has too few samples to tell.
    """
    wanted = tuple(names) or (USUAL_ROW,)
    for name in wanted:
        if all(row.name != name for row in found.rows):
            known = ", ".join(dict.fromkeys(row.name for row in found.rows))
            raise UsageError(f"row {name!r} is not in both results: select one with --row; both have {known}")
    rows = tuple(row for row in found.rows if row.name in wanted)
    few = [row for row in rows if row.interval is None]
    if few:
        raise UsageError(
            f"{few[0].name!r} has too few samples for a gate ({min(few[0].samples)} of at least {LEAST_SAMPLES}):"
            " measure with more --rounds"
        )
    return Gate(max_regression, rows)


def _pairs(before: BenchFile, after: BenchFile, anyway: bool) -> list[tuple[BenchLine, BenchLine]]:
    """Results of equal batch sizes, or the only ones of both files."""
    if anyway and len(before.lines) == len(after.lines) == 1:
        return [(before.lines[0], after.lines[0])]
    others = {line.batch_size: line for line in after.lines}
    pairs = [(line, others[line.batch_size]) for line in before.lines if line.batch_size in others]
    if not pairs:
        sizes = (", ".join(str(line.batch_size) for line in each.lines) for each in (before, after))
        raise UsageError(
            f"{before.place} and {after.place} are of different batch sizes ({' and '.join(sizes)}): measure both with"
            " the same --batch-size"
        )
    return pairs


def _unlike(one: BenchLine, other: BenchLine) -> Iterator[str]:
    if one.model != other.model:
        yield f"of different models ({one.model} and {other.model})"
    if one.device != other.device:
        yield f"of different devices ({one.device} and {other.device})"
    if one.batch_size != other.batch_size:
        yield f"of different batch sizes ({one.batch_size} and {other.batch_size})"


def _rows(one: BenchLine, other: BenchLine, seed: int, relative_to: str | None) -> Iterator[RowDifference]:
    if relative_to is not None and not (relative_to in one.names and relative_to in other.names):
        raise UsageError(f"row {relative_to!r} is not in both results: select another one with --relative-to")
    for name in one.names:
        if name in other.names and name != relative_to:
            first, second = _relative(one, name, relative_to), _relative(other, name, relative_to)
            before, after = _median(one, name, relative_to), _median(other, name, relative_to)
            ratio, ends = after / before, ratio_interval(first, second, seed=seed)
            interval = None if ends is None else Interval(ratio, min(ratio, *ends), max(ratio, *ends))
            counts = len(first), len(second)
            yield RowDifference(one.batch_size, name, before, after, ratio, interval, counts)


def _median(line: BenchLine, name: str, relative_to: str | None) -> float:
    median_us = quantile(line.samples(name), 0.5)
    return median_us if relative_to is None else median_us / quantile(line.samples(relative_to), 0.5)


def _relative(line: BenchLine, name: str, relative_to: str | None) -> Sequence[float]:
    samples = line.samples(name)
    if relative_to is None:
        return samples
    return [each / base for each, base in zip(samples, line.samples(relative_to), strict=False)]


def ratio_interval(
    before: Sequence[float], after: Sequence[float], *, seed: int, confidence: float = CONFIDENCE
) -> tuple[float, float] | None:
    """The interval of median(after) / median(before); None with fewer than `LEAST_SAMPLES` of either.

    The percentile interval of the bootstrap (B. Efron, R. Tibshirani, An Introduction to the Bootstrap, chapter 13).
    Both are resampled independently. A constant difference, such as a slower clock, is not detected. Equal samples and
    seeds give equal intervals.
    """
    if min(len(before), len(after)) < LEAST_SAMPLES:
        return None
    random = np.random.default_rng(seed)
    ratios = _medians(after, random) / _medians(before, random)
    low, high = np.quantile(ratios, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def _medians(samples: Sequence[float], random: np.random.Generator) -> NDArray[np.float64]:
    values = np.asarray(samples, dtype=np.float64)
    part = max(1, _AT_ONCE // len(values))
    counts = [min(part, RESAMPLES - start) for start in range(0, RESAMPLES, part)]
    draws = (values[random.integers(0, len(values), (count, len(values)))] for count in counts)
    return np.concatenate([np.median(drawn, axis=1) for drawn in draws])
