"""Bootstrap interval of the ratio of two medians that were not interleaved.

B. Efron, R. Tibshirani, An Introduction to the Bootstrap, chapter 13: the percentile interval.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from iosched.profiler.measuring.statistics import CONFIDENCE, LEAST_SAMPLES

RESAMPLES = 10_000
"""Number of resamples."""

_AT_ONCE = 1 << 22


def ratio_interval(
    before: Sequence[float], after: Sequence[float], *, seed: int, confidence: float = CONFIDENCE
) -> tuple[float, float] | None:
    """The interval of median(after) / median(before); None with fewer than `LEAST_SAMPLES` of either.

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
