"""Statistics of latencies: the interval of the median, and when a measurement stops."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate, cycle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iosched.profiler.measuring.statistics import (
    UNRUNNABLE,
    Measurement,
    MeasureSettings,
    interval_coverage,
    least_samples,
    measure,
    median_interval,
    quantile,
    quantile_interval,
    summarize,
)


class Script:
    """Plays back latencies and remembers the batches that were asked for."""

    def __init__(self, latencies: Sequence[float]) -> None:
        self.latencies = list(latencies)
        self.batches: list[int] = []

    def __call__(self, count: int) -> list[float]:
        self.batches.append(count)
        taken, self.latencies = self.latencies[:count], self.latencies[count:]
        return taken


def test_quantiles_interpolate_between_order_statistics() -> None:
    assert quantile([4.0, 1.0, 3.0, 2.0], 0.5) == 2.5
    assert quantile([1.0, 2.0, 3.0], 0.0) == 1.0
    assert quantile([1.0, 2.0, 3.0], 1.0) == 3.0
    assert quantile(range(11), 0.9) == 9.0
    with pytest.raises(ValueError, match="no samples"):
        quantile([], 0.5)


# 95 % two-sided intervals for the median, ranks counted from 1, as in tables of the sign test.
@pytest.mark.parametrize(
    ("count", "low", "high"), [(6, 1, 6), (8, 1, 8), (9, 2, 8), (12, 3, 10), (20, 6, 15), (25, 8, 18), (50, 18, 33)]
)
def test_the_interval_takes_the_tabulated_order_statistics(count: int, low: int, high: int) -> None:
    samples = [float(rank) for rank in range(1, count + 1)]
    random.Random(count).shuffle(samples)
    assert median_interval(samples) == (low, high)
    assert interval_coverage(count) >= 0.95


def test_fewer_than_six_samples_span_all_and_do_not_claim_the_confidence() -> None:
    assert median_interval([3.0, 1.0, 2.0]) == (1.0, 3.0)
    assert interval_coverage(5) == pytest.approx(1 - 2 / 32)
    assert interval_coverage(1) == 0.0
    assert summarize([2.0, 2.0, 2.0]).relative_width == math.inf
    with pytest.raises(ValueError, match="no samples"):
        median_interval([])


def test_the_interval_has_its_coverage_under_a_heavy_tail() -> None:
    source = random.Random(0)
    true_median = math.exp(0.0) * 100
    contained = sum(
        low <= true_median <= high
        for low, high in (
            median_interval([100 * source.lognormvariate(0.0, 2.0) for _ in range(15)]) for _ in range(2000)
        )
    )
    assert contained / 2000 == pytest.approx(interval_coverage(15), abs=0.015)


@given(st.integers(1, 500), st.sampled_from([1, 10, 25, 50, 90, 99]), st.sampled_from([80, 95, 99]))
def test_the_interval_of_a_quantile_is_the_narrowest_with_its_confidence_on_each_side(
    count: int, percent: int, confidence: int
) -> None:
    """By exact sums: an end is on the wrong side of the true quantile with at most half of the error."""
    chances = [math.comb(count, k) * percent**k * (100 - percent) ** (count - k) for k in range(count + 1)]
    below = [0, *accumulate(chances)]  # both in units of 100 ** -count
    allowed = (100 - confidence) * below[-1] // 200
    low = max(k for k in range(count + 1) if below[k] <= allowed)
    high = min(k for k in range(1, count + 2) if below[-1] - below[k] <= allowed)
    found = quantile_interval(range(1, count + 1), percent / 100, confidence / 100)
    assert found == (None if low == 0 or high > count else (low, high))


@pytest.mark.parametrize(("fraction", "least"), [(0.5, 6), (0.9, 36), (0.1, 36), (0.99, 368)])
def test_a_quantile_needs_a_minimum_of_samples(fraction: float, least: int) -> None:
    assert least_samples(fraction) == least
    assert quantile_interval(range(least), fraction) is not None
    assert quantile_interval(range(least - 1), fraction) is None


def test_the_interval_of_the_median_is_that_of_the_half_quantile() -> None:
    for count in range(6, 80):
        assert quantile_interval(range(count), 0.5) == median_interval(range(count))


def test_quantiles_are_of_single_runs_where_samples_are_medians_of_several() -> None:
    """The median of a turn hides a run that took long."""
    found = replace(summarize([1.0, 1.0, 1.0]), runs_us=(1.0, 1.0, 9.0, 1.0, 1.0, 0.5, 1.0, 1.0, 9.0))
    assert (found.min_us, found.p10_us, found.median_us, found.p90_us) == (1.0, 0.9, 1.0, 9.0)
    assert summarize([1.0, 2.0]).every_run_us == (1.0, 2.0)


def test_a_measurement_keeps_every_sample_in_order() -> None:
    found = summarize([30.0, 10.0, 20.0])
    assert found == Measurement(20.0, 10.0, 30.0, (30.0, 10.0, 20.0))
    assert (found.min_us, found.p10_us, found.p90_us) == (10.0, 12.0, 28.0)


@pytest.mark.parametrize("samples", [[], [-1.0], [math.nan], [math.inf]])
def test_impossible_samples_are_refused(samples: list[float]) -> None:
    with pytest.raises(ValueError, match=r"no samples|must be finite"):
        summarize(samples)


def test_an_unrunnable_measurement_is_infinitely_slow() -> None:
    assert UNRUNNABLE.median_us == UNRUNNABLE.min_us == UNRUNNABLE.p90_us == math.inf


def test_steady_latencies_stop_after_the_least_number_of_samples_and_drop_the_warm_up() -> None:
    script = Script([900.0, 500.0, 300.0, *[100.0] * 100])
    assert measure(script, MeasureSettings()).samples_us == (100.0,) * 7
    assert sum(script.batches) == 3 + 7


def test_noisy_latencies_are_measured_until_the_interval_is_narrow() -> None:
    source = random.Random(1)
    found = measure(lambda n: [source.uniform(90, 110) for _ in range(n)], MeasureSettings(relative_width=0.08))
    assert 7 < len(found.samples_us) < 60
    assert found.relative_width <= 0.08


def test_hopeless_noise_stops_at_the_largest_number_of_samples() -> None:
    source = random.Random(1)
    found = measure(lambda n: [source.uniform(1, 1000) for _ in range(n)], MeasureSettings(max_samples=23))
    assert len(found.samples_us) == 23


def test_a_heavy_right_tail_neither_moves_the_median_nor_prolongs_the_measurement() -> None:
    samples = [
        100.0,
        101.0,
        100.0,
        9000.0,
        100.0,
        101.0,
        100.0,
        100.0,
        101.0,
        50000.0,
        100.0,
        100.0,
        101.0,
        100.0,
        100.0,
    ]
    script = Script([100.0] * 3 + samples + [100.0] * 60)
    found = measure(script, MeasureSettings())
    assert found.median_us == 100.0
    assert len(found.samples_us) <= 15


def test_a_candidate_that_is_clearly_worse_is_given_up_early() -> None:
    def noisy() -> Callable[[int], list[float]]:
        source = random.Random(2)
        return lambda count: [source.uniform(150, 250) for _ in range(count)]

    assert len(measure(noisy(), MeasureSettings(), worse_than_us=140.0).samples_us) == 7
    assert len(measure(noisy(), MeasureSettings(), worse_than_us=195.0).samples_us) == 60


@pytest.mark.parametrize(("is_hopeless", "samples"), [(True, 6), (False, 24)])
def test_a_hopeless_measurement_takes_the_minimum_of_samples(is_hopeless: bool, samples: int) -> None:
    noisy = MeasureSettings(warmup=0, min_samples=6, max_samples=24, relative_width=0.01)
    latencies = cycle([100.0, 200.0])
    found = measure(lambda count: [next(latencies) for _ in range(count)], noisy, is_hopeless=lambda: is_hopeless)
    assert len(found.samples_us) == samples


def test_time_spent_bounds_a_slow_candidate() -> None:
    slow = Script([400_000.0] * 100)
    found = measure(slow, MeasureSettings(max_seconds=2.0))
    assert sum(slow.batches) == 5
    assert len(found.samples_us) == 5 - 3


def test_a_candidate_slower_than_the_time_limit_has_one_sample() -> None:
    slow = Script([9e6, 9e6, 9e6])
    assert measure(slow, MeasureSettings(max_seconds=1.0)).samples_us == (9e6,)
    assert slow.batches == [1, 1]


def test_a_separate_warm_up_runner_takes_no_samples() -> None:
    warm_up, run = Script([9.0] * 3), Script([5.0] * 7)
    assert measure(run, MeasureSettings(), warm_up=warm_up).samples_us == (5.0,) * 7
    assert (warm_up.batches, run.batches) == ([1, 2], [7])


def test_no_warm_up_takes_the_first_run_for_a_sample() -> None:
    assert measure(Script([5.0] * 7), MeasureSettings(warmup=0)).samples_us == (5.0,) * 7


def test_a_runner_that_returns_a_wrong_number_of_latencies_is_refused() -> None:
    with pytest.raises(ValueError, match="asked for 1 latencies, got 2"):
        measure(lambda _: [1.0, 1.0], MeasureSettings())


@pytest.mark.parametrize("wrong", [{"warmup": -1}, {"min_samples": 0}, {"min_samples": 9, "max_samples": 8}])
def test_settings_that_cannot_be_met_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="a measurement needs"):
        MeasureSettings(**wrong)  # type: ignore[arg-type]
