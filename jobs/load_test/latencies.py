"""Quantiles of latencies under load, and a row of the table for each alternative and model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from iosched.jobs.load_test.sender import Answer
from iosched.profiler.measuring.statistics import CONFIDENCE, Interval, least_samples, quantile_interval

QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
_RESAMPLES = 200


@dataclass(frozen=True)
class LoadRow:
    """The requests for one model that an alternative got.

    Attributes:
        rate_per_s: planned requests per second.
        deadline_us: the latency within which an answer is useful.
        seconds: the time in which the requests arrived.
        answers: the requests in order of arrival.
    """

    name: str
    model: str
    rate_per_s: float
    deadline_us: float
    seconds: float
    answers: tuple[Answer, ...]

    @cached_property
    def latencies_us(self) -> tuple[float, ...]:
        """Latencies in order of arrival; infinite without an answer."""
        return tuple(each.latency_us for each in self.answers)

    @property
    def requests(self) -> int:
        """The number of requests."""
        return len(self.answers)

    @property
    def unanswered(self) -> int:
        """The number of requests that were refused, failed or never began."""
        return sum(math.isinf(each) for each in self.latencies_us)

    @property
    def goodput_per_s(self) -> float:
        """Requests per second that were answered within the deadline."""
        return sum(each <= self.deadline_us for each in self.latencies_us) / self.seconds

    @cached_property
    def quantiles(self) -> Mapping[str, Interval | None]:
        """The latencies of `QUANTILES`; None with too few requests for an interval."""
        return {name: quantile_under_load(self.latencies_us, fraction) for name, fraction in QUANTILES.items()}


def quantile_under_load(latencies_us: Sequence[float], fraction: float) -> Interval | None:
    """A quantile of latencies in order of arrival, which may be infinite; None with too few for its interval.

    Requests that wait for the same one are slow together. The interval is therefore the wider of that for independent
    samples and of a circular block bootstrap with blocks of sqrt(n) consecutive requests (D. N. Politis, J. P. Romano,
    1992).
    """
    if len(latencies_us) < least_samples(fraction):
        return None
    samples = np.asarray(latencies_us)
    ends = quantile_interval(latencies_us, fraction) or (-math.inf, math.inf)
    low, high = np.quantile(
        _resampled(samples, fraction), [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2], method="nearest"
    )
    value = float(np.quantile(samples, fraction, method="higher"))
    return Interval(value, min(value, float(low), ends[0]), max(value, float(high), ends[1]))


def _resampled(samples: np.ndarray, fraction: float) -> np.ndarray:
    """The quantile of each resample."""
    length = math.isqrt(len(samples))
    random, offsets = np.random.default_rng(0), np.arange(length)
    starts = random.integers(len(samples), size=(_RESAMPLES, len(samples) // length))
    blocks = ((each[:, None] + offsets) % len(samples) for each in starts)
    return np.array([np.quantile(samples[each], fraction, method="higher") for each in blocks])
