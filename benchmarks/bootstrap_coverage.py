"""Coverage of the interval of `iosched diff`, for samples of one distribution.

Run as `python benchmarks/bootstrap_coverage.py [--pairs N]`; it takes minutes, simulates and measures nothing. The
samples are independent and log-normal with a standard deviation of a tenth; the true ratio of their medians is 1.
"""

from __future__ import annotations

import numpy as np
from command_line import read_options

from iosched.jobs.difference.results import ratio_interval

COUNTS = (6, 10, 30, 50)
SPREAD = 0.1


def coverage(count: int, pairs: int) -> tuple[float, float]:
    """Shares of intervals that contain the true ratio, and that lie above it, from `count` samples of each."""
    covered = above = 0
    for seed in range(pairs):
        draw = np.random.default_rng(seed)
        before, after = (list(draw.lognormal(0.0, SPREAD, count)) for _ in range(2))
        found = ratio_interval(before, after, seed=seed)
        assert found is not None
        covered += found[0] <= 1 <= found[1]
        above += found[0] > 1
    return covered / pairs, above / pairs


def main() -> None:
    pairs = read_options(__file__, pairs=2000).pairs
    for count in COUNTS:
        covered, above = coverage(count, pairs)
        print(f"{count} samples: {covered:.2%} of the intervals have the true ratio, {above:.2%} lie above it")


if __name__ == "__main__":
    main()
