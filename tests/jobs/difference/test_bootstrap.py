"""How well the ratio of two medians is known that were measured at different times."""

from __future__ import annotations

import numpy as np
import pytest

from iosched.jobs.difference import results
from iosched.jobs.difference.results import ratio_interval
from iosched.profiler.measuring.statistics import LEAST_SAMPLES


def drawn(seed: int, count: int = 30, scale: float = 1.0) -> list[float]:
    """Latencies with a heavy tail, as shared machines have them; their true median is `scale`."""
    return list(scale * np.random.default_rng(seed).lognormal(0.0, 0.1, count))


def test_the_interval_has_the_ratio_of_the_medians() -> None:
    before, after = drawn(1), drawn(2, scale=1.5)
    found = ratio_interval(before, after, seed=0)
    assert found is not None
    low, high = found
    assert low < np.median(after) / np.median(before) < high
    assert low > 1.3


def test_equal_samples_and_seeds_give_equal_intervals() -> None:
    assert ratio_interval(drawn(1), drawn(2), seed=3) == ratio_interval(drawn(1), drawn(2), seed=3)
    assert ratio_interval(drawn(1), drawn(2), seed=3) != ratio_interval(drawn(1), drawn(2), seed=4)


def test_latencies_that_never_vary_leave_no_doubt() -> None:
    assert ratio_interval([2.0] * 9, [3.0] * 7, seed=0) == (1.5, 1.5)


@pytest.mark.parametrize("few", [(LEAST_SAMPLES - 1, LEAST_SAMPLES), (LEAST_SAMPLES, LEAST_SAMPLES - 1)])
def test_from_too_few_samples_nothing_is_known(few: tuple[int, int]) -> None:
    assert ratio_interval([1.0] * few[0], [1.0] * few[1], seed=0) is None
    assert ratio_interval([1.0] * LEAST_SAMPLES, [1.0] * LEAST_SAMPLES, seed=0) is not None


def test_drawing_a_part_at_a_time_draws_as_many(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = ratio_interval(drawn(1), drawn(2), seed=0)
    monkeypatch.setattr(results, "_AT_ONCE", 30 * 777)
    parts = ratio_interval(drawn(1), drawn(2), seed=0)
    assert whole is not None
    assert parts is not None
    assert parts == pytest.approx(whole, rel=0.01)


@pytest.mark.parametrize("count", [10, 50])
def test_the_interval_has_the_true_ratio_as_often_as_it_says(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "RESAMPLES", 500)
    hits = 0
    for seed in range(200):
        found = ratio_interval(drawn(2 * seed, count), drawn(2 * seed + 1, count), seed=seed)
        assert found is not None
        hits += found[0] <= 1.0 <= found[1]
    assert hits >= 0.92 * 200
