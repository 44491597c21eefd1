"""Quantiles under load hold for requests that are slow together, and for those without an answer."""

from __future__ import annotations

import math

import numpy as np
import pytest

from iosched.jobs.load_test.latencies import LoadRow, quantile_under_load
from iosched.jobs.load_test.sender import Answer
from iosched.profiler.measuring.statistics import quantile_interval


def row(*latencies_us: float) -> LoadRow:
    return LoadRow("ours", "a", 5.0, 100.0, 2.0, tuple(Answer("a", each, 0.0) for each in latencies_us))


def test_goodput_counts_answers_within_the_deadline() -> None:
    found = row(50.0, 100.0, 101.0, math.inf)
    assert (found.requests, found.unanswered, found.goodput_per_s) == (4, 1, 1.0)


def test_quantiles_need_samples_for_their_intervals() -> None:
    assert row(*[1.0] * 5).quantiles["p50"] is None
    assert row(*[1.0] * 6).quantiles["p50"] is not None
    assert row(*[1.0] * 367).quantiles["p99"] is None
    assert row(*[1.0] * 368).quantiles["p99"] is not None
    assert row(*[1.0] * 36).quantiles["p90"] is not None


def test_requests_without_an_answer_are_the_slowest() -> None:
    half = row(*[10.0] * 6, *[math.inf] * 6).quantiles["p50"]
    assert half is not None
    assert (half.value, half.low, half.high) == (math.inf, 10.0, math.inf)
    few = row(*[10.0] * 390, *[math.inf] * 2).quantiles["p99"]
    assert few is not None
    assert (few.value, few.high) == (10.0, math.inf)


def test_dependent_latencies_have_wider_intervals_than_independent_ones() -> None:
    random = np.random.default_rng(5)
    busy = np.repeat(random.exponential(size=60), 30).tolist()
    mixed = random.permutation(busy).tolist()
    dependent, independent = quantile_under_load(busy, 0.9), quantile_under_load(mixed, 0.9)
    ends = quantile_interval(busy, 0.9)
    assert dependent is not None
    assert independent is not None
    assert ends is not None
    assert dependent.low <= ends[0]
    assert dependent.high >= ends[1]
    assert dependent.high - dependent.low > 1.5 * (independent.high - independent.low)


@pytest.mark.parametrize("fraction", [0.5, 0.9])
def test_intervals_of_dependent_latencies_contain_the_quantile_about_as_often_as_they_say(fraction: float) -> None:
    """Latencies move as a first-order autoregression, whose quantiles are known."""
    hits = 0
    truth = {0.5: 0.0, 0.9: 1.2815515655}[fraction]
    for seed in range(60):
        noise = np.random.default_rng(seed).normal(size=900)
        found, value = [], noise[0]
        for each in noise:
            value = 0.7 * value + math.sqrt(1 - 0.49) * each
            found.append(float(value))
        interval = quantile_under_load(found, fraction)
        hits += interval is not None and truth in interval
    assert hits >= 51
