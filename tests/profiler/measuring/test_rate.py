"""Rates are of the wall clock over the runs of a turn, and count all runs that go on at the same time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from iosched.profiler.measuring import interleaved_models
from iosched.profiler.measuring.interleaved_models import RATE_SECONDS, Budget, measure_rates
from iosched.runtime.executor import Candidate


@dataclass
class Clock:
    """Time that only runs of candidates take."""

    now_us: float = 0.0
    counts: list[int] = field(default_factory=list)

    def candidate(self, run_us: float, in_flight: int = 1) -> Candidate:
        """Takes `run_us` for a run, or for `in_flight` of them together; says that a run takes less."""

        def timed(count: int) -> tuple[float, ...]:
            self.now_us += run_us * count
            self.counts.append(count)
            return (run_us / 2,) * count

        return Candidate(timed, in_flight=in_flight)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    found = Clock()
    monkeypatch.setattr(interleaved_models.time, "perf_counter_ns", lambda: int(found.now_us * 1000))
    monkeypatch.setattr(interleaved_models.time, "monotonic", lambda: found.now_us / 1e6)
    return found


def test_the_wall_clock_counts_and_what_goes_on_at_the_same_time(clock: Clock) -> None:
    candidates = {"alone": clock.candidate(1000.0), "four": clock.candidate(1000.0, in_flight=4)}
    found = measure_rates(candidates, Budget(rounds=3), rest=lambda: None)
    assert found["alone"].samples_us == pytest.approx((1000.0,) * 3)
    assert found["four"].samples_us == pytest.approx((250.0,) * 3)


def test_a_turn_is_a_run_and_then_as_many_as_take_a_while(clock: Clock) -> None:
    measure_rates({"some": clock.candidate(1000.0)}, Budget(rounds=1), rest=lambda: None)
    assert clock.counts == [1, int(RATE_SECONDS / 500e-6)] * 2


def test_a_long_run_is_measured_once_in_a_turn(clock: Clock) -> None:
    measure_rates({"long": clock.candidate(3e6)}, Budget(rounds=1), rest=lambda: None)
    assert clock.counts == [1, 1] * 2


def test_when_time_is_up_no_further_round_begins_but_the_least(clock: Clock) -> None:
    found = measure_rates(
        {"long": clock.candidate(3e6)}, Budget(rounds=50, max_seconds=1.0, least_rounds=6), rest=lambda: None
    )
    assert len(found["long"].samples_us) == 6
