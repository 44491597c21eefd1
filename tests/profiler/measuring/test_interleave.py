"""Alternatives are interleaved and compared round by round."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from iosched.profiler.measuring.interleave import compare, interleave
from iosched.profiler.measuring.statistics import LEAST_SAMPLES, summarize


def recorded(log: list[str], name: str, latencies: list[float]) -> Callable[[], float]:
    played = iter(latencies)

    def run() -> float:
        log.append(name)
        return next(played)

    return run


def test_alternatives_are_interleaved_and_keep_their_rounds() -> None:
    log: list[str] = []
    found = interleave(
        {"a": recorded(log, "a", [9, 1, 2]), "b": recorded(log, "b", [9, 3, 4]), "c": recorded(log, "c", [9, 5, 6])},
        rounds=2,
        warmup=1,
    )
    assert "".join(log) == "abcabcabc"
    assert {name: measurement.samples_us for name, measurement in found.items()} == {
        "a": (1.0, 2.0),
        "b": (3.0, 4.0),
        "c": (5.0, 6.0),
    }


def test_time_allowed_ends_the_rounds_but_keeps_one() -> None:
    log: list[str] = []
    found = interleave({"slow": recorded(log, "slow", [3e6] * 9)}, rounds=8, warmup=1, max_seconds=1.0)
    assert found["slow"].samples_us == (3e6,)
    found = interleave({"quick": recorded(log, "quick", [3e5] * 9)}, rounds=8, warmup=1, max_seconds=1.0)
    assert len(found["quick"].samples_us) == 3


def test_the_minimum_of_rounds_is_taken_however_slow() -> None:
    log: list[str] = []
    runs = {"slow": recorded(log, "slow", [3e6] * 9)}
    assert len(interleave(runs, rounds=8, warmup=1, max_seconds=1.0, least_rounds=6)["slow"].samples_us) == 6


def test_progress_is_reported_and_each_run_follows_a_rest() -> None:
    reported: list[tuple[int, int]] = []
    rests: list[str] = []
    interleave(
        {"a": lambda: 1.0, "b": lambda: 1.0},
        rounds=2,
        warmup=1,
        rest=lambda: rests.append("rest"),
        observer=lambda done, total: reported.append((done, total)),
    )
    assert reported == [(1, 3), (2, 3), (3, 3)]
    assert rests == ["rest"] * 6


def test_no_alternatives_or_no_rounds_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one"):
        interleave({}, rounds=3)
    with pytest.raises(ValueError, match="one round"):
        interleave({"a": lambda: 1.0}, rounds=0)


def test_ratios_within_rounds_cancel_the_drift_of_the_machine() -> None:
    weather = [1.0, 1.0, 4.0, 4.0, 9.0, 2.0, 7.0, 1.0, 3.0]
    base = summarize([110.0 * factor for factor in weather])
    candidate = summarize([100.0 * factor for factor in weather])
    found, inverse = compare(base, candidate), compare(candidate, base)
    assert found is not None
    assert inverse is not None
    assert found.value == pytest.approx(1.1)
    assert (found.low, found.high) == (pytest.approx(1.1), pytest.approx(1.1))
    assert found.is_faster
    assert not found.is_slower
    assert inverse.is_slower


def test_within_noise_neither_is_faster() -> None:
    one = summarize([100, 101, 99, 100, 102, 98, 100, 101])
    other = summarize([101, 100, 100, 99, 101, 99, 101, 100])
    found = compare(one, other)
    assert found is not None
    assert found.low <= 1 <= found.high
    assert not found.is_faster
    assert not found.is_slower


def test_measurements_of_different_lengths_cannot_be_compared() -> None:
    with pytest.raises(ValueError, match=r"shorter|longer"):
        compare(summarize([1.0, 2.0]), summarize([1.0]))


def test_no_ratio_without_its_interval() -> None:
    assert compare(summarize([2.0] * 5), summarize([1.0] * 5)) is None
    assert compare(summarize([2.0] * 6), summarize([1.0] * 6)) is not None
    assert compare(summarize([1.0] * 6), summarize([0.0] * 6)) is None


@given(st.lists(st.tuples(st.floats(1.0, 9.0), st.floats(1.0, 9.0)), min_size=LEAST_SAMPLES, max_size=15))
@example([(1.0, 1.0)] * 7 + [(1.0, 9.0)] + [(9.0, 9.0)] * 7)
def test_the_interval_contains_the_quotient_of_the_medians_however_the_machine_drifts(
    rounds: list[tuple[float, float]],
) -> None:
    baseline, candidate = (summarize(samples) for samples in zip(*rounds, strict=True))
    found = compare(baseline, candidate)
    assert found is not None
    assert found.value == baseline.median_us / candidate.median_us
    assert found.low <= found.value <= found.high
