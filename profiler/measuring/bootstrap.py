"""How well the ratio of two medians is known that were not measured in turn: a bootstrap over the samples of each.

B. Efron, R. Tibshirani, An Introduction to the Bootstrap, chapter 13: the percentile interval.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from iosched.profiler.measuring.statistics import CONFIDENCE, LEAST_SAMPLES

RESAMPLES = 10_000
"""How often the samples are drawn anew."""

_AT_ONCE = 1 << 22


def ratio_interval(
    before: Sequence[float], after: Sequence[float], *, seed: int, confidence: float = CONFIDENCE
) -> tuple[float, float] | None:
    """Ends of the interval of median(after) / median(before); None with fewer than `LEAST_SAMPLES` of either.

    Each of the two is drawn anew from its own samples, since sample k of one has nothing to do with sample k of the
    other. It knows of no difference that was there all the while, such as a slower clock of the machine.

    Args:
        before: positive samples of the first.
        after: samples of the second, as many or another number.
        seed: of the draws; equal samples and seeds give equal intervals.
        confidence: probability that the interval contains the true ratio, of independent samples.
    """
    if min(len(before), len(after)) < LEAST_SAMPLES:
        return None
    random = np.random.default_rng(seed)
    ratios = _medians(after, random) / _medians(before, random)
    low, high = np.quantile(ratios, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def _medians(samples: Sequence[float], random: np.random.Generator) -> NDArray[np.float64]:
    """The median of each of `RESAMPLES` draws; a part of them at a time, for the sake of memory."""
    values = np.asarray(samples, dtype=np.float64)
    part = max(1, _AT_ONCE // len(values))
    counts = [min(part, RESAMPLES - start) for start in range(0, RESAMPLES, part)]
    draws = (values[random.integers(0, len(values), (count, len(values)))] for count in counts)
    return np.concatenate([np.median(drawn, axis=1) for drawn in draws])
