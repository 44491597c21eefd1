"""Measurements of whole models are interleaved: each runs once after a rest and then in a row."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace

import pytest

from iosched.profiler.measuring import interleaved_models
from iosched.profiler.measuring import interleaved_models as in_turn
from iosched.profiler.measuring.interleaved_models import (
    MOST_IN_A_ROW,
    RATE_SECONDS,
    WARMUP_ROUNDS,
    Budget,
    fastest_setting,
    interference_notes,
    measure_interleaved,
    measure_rates,
    runs_to_choose,
    turn_seconds,
)
from iosched.profiler.measuring.statistics import Measurement
from iosched.runtime.executor import Candidate


@dataclass
class Waking:
    """A model whose first run after a pause takes longer; every run is a microsecond slower than the one before."""

    latency_us: float
    waking_us: float
    counts: list[int] = field(default_factory=list)

    def time(self, repeats: int) -> tuple[float, ...]:
        self.counts.append(repeats)
        slower = float(len(self.counts))
        return (self.latency_us + self.waking_us + slower, *([self.latency_us + slower] * (repeats - 1)))


@pytest.fixture(autouse=True)
def rests(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    waits: list[str] = []
    monkeypatch.setattr(in_turn, "wait_until_idle", lambda: waits.append("rest"))
    return waits


def test_the_run_after_a_rest_is_separate_from_the_runs_in_a_row(rests: list[str]) -> None:
    models = {"small": Waking(1000.0, 500.0), "large": Waking(40_000.0, 10.0)}
    found = measure_interleaved({name: Candidate(model.time) for name, model in models.items()}, Budget(rounds=3))
    kept = range(WARMUP_ROUNDS + 1, WARMUP_ROUNDS + 4)
    for name, (in_a_row_us, rested_us) in {"small": (1000.0, 1500.0), "large": (40_000.0, 40_010.0)}.items():
        assert found[name].samples_us == tuple(in_a_row_us + turn for turn in kept)
        runs = models[name].counts[-1] - 1
        assert found[name].runs_us == tuple(in_a_row_us + turn for turn in kept for _ in range(runs))
        assert found[name].rested_us == tuple(rested_us + turn for turn in kept)
        assert found[name].rested is not None
        assert found[name].rested.median_us == rested_us + kept[1]
    assert len(rests) == 2 * (WARMUP_ROUNDS + 3)


def test_another_rest_can_be_asked_for(rests: list[str]) -> None:
    taken: list[str] = []
    measure_interleaved({"a": Candidate(Waking(1.0, 1.0).time)}, Budget(rounds=3), rest=lambda: taken.append("other"))
    assert (rests, taken) == ([], ["other"] * (WARMUP_ROUNDS + 3))


@pytest.mark.parametrize(("latency_us", "in_a_row"), [(10.0, MOST_IN_A_ROW), (2500.0, 3), (9000.0, 1), (90_000.0, 1)])
def test_short_runs_are_repeated_for_ten_milliseconds(latency_us: float, in_a_row: int) -> None:
    model = Waking(latency_us, 0.0)
    measure_interleaved({"a": Candidate(model.time)}, Budget(rounds=2))
    assert model.counts == [2, *[1 + in_a_row] * (WARMUP_ROUNDS + 1)]


def test_the_planned_time_of_a_turn_covers_the_rest_and_all_runs() -> None:
    """A turn is a rest, a run after it, and the runs in a row."""
    assert turn_seconds(1.0) == pytest.approx(2.0 + in_turn.REST_SECONDS)
    assert turn_seconds(0.0) == pytest.approx(in_turn.IN_A_ROW_SECONDS + in_turn.REST_SECONDS)


def test_time_allowed_counts_the_runs_after_a_rest_too() -> None:
    found = measure_interleaved(
        {"a": Candidate(Waking(1e6, 0.0).time)}, Budget(rounds=9, max_seconds=12.0, least_rounds=1)
    )
    assert len(found["a"].samples_us) == 4


def in_rounds(disturbed: Collection[int], budget: Budget) -> Measurement:
    """Measures a model whose samples are the round numbers; other processes interfere with these rounds."""
    numbers = itertools.count(1)
    found = measure_interleaved(
        {"a": Candidate(Waking(100_000.0, 0.0).time)},
        budget,
        is_quiet=lambda: next(numbers) - WARMUP_ROUNDS not in disturbed,
    )["a"]
    shifted = (sample_us - 100_000.0 - WARMUP_ROUNDS for sample_us in found.samples_us)
    return replace(found, samples_us=tuple(shifted))


def test_disturbed_rounds_are_repeated() -> None:
    found = in_rounds({2, 3}, Budget(rounds=8, repeats=4))
    assert found.samples_us == (1, 4, 5, 6, 7, 8, 9, 10)
    assert (len(found.rested_us), found.disturbed_by) == (8, ())


def test_disturbed_rounds_are_left_out_where_no_repeats_are_allowed() -> None:
    found = in_rounds({2, 3}, Budget(rounds=8))
    assert (found.samples_us, found.disturbed_by) == ((1, 4, 5, 6, 7, 8), ())


@pytest.mark.parametrize(
    ("budget", "most"),
    [
        (Budget(rounds=8, repeats=99), 12),  # half of the rounds that are wanted
        (Budget(rounds=8, repeats=3), 11),
        (Budget(rounds=8, repeats=99, max_seconds=0.1), 9),  # late: 6 rounds are wanted
    ],
)
def test_at_most_half_of_the_rounds_are_repeated_and_then_all_are_kept(budget: Budget, most: int) -> None:
    found = in_rounds(range(99), budget)
    assert found.samples_us == tuple(range(1, most + 1))
    assert found.disturbed_by == (f"other processes interfered with {most} of {most} rounds",)
    assert interference_notes({"a": found, "b": found}) == (
        f"Other processes interfered with {most} of {most} rounds of whole models: repeat this on an idle machine.",
    )


def test_under_a_load_of_our_own_no_round_is_disturbed(rests: list[str]) -> None:
    taken = Waking(40_000.0, 10.0)
    budget = Budget(rounds=8, repeats=4, is_loaded=True)
    found = measure_interleaved({"one": Candidate(taken.time)}, budget, is_quiet=lambda: False)
    assert (len(found["one"].samples_us), found["one"].disturbed_by) == (8, ())
    assert len(taken.counts) == WARMUP_ROUNDS + 8


def test_warm_up_may_be_disturbed() -> None:
    assert in_rounds({0, -1}, Budget(rounds=8, repeats=4)).samples_us == tuple(range(1, 9))
    assert interference_notes({"a": in_rounds((), Budget(rounds=1))}) == ()


@dataclass
class Scripted:
    """A setting whose latency depends on the turn."""

    latency_us: Callable[[int], float]
    turns: int = 0

    def time(self, repeats: int) -> tuple[float, ...]:
        self.turns += repeats == 1
        return (self.latency_us(self.turns),) * repeats


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interleaved_models, "wait_until_idle", lambda: None)


def steady(latency_us: float) -> Scripted:
    return Scripted(lambda turn: latency_us)


def chosen(*settings: Scripted) -> int:
    return fastest_setting([Candidate(each.time) for each in settings])


@pytest.mark.parametrize(
    ("latencies_us", "place"),
    [((500.0,), 0), ((500.0, 500.0), 0), ((500.0, 490.0, 480.0), 2), ((500.0, 900.0, 499.0), 2)],
)
def test_the_fastest_of_steady_settings_is_chosen_and_the_first_of_equal_ones(
    latencies_us: tuple[float, ...], place: int
) -> None:
    assert chosen(*map(steady, latencies_us)) == place


def test_a_setting_faster_in_only_some_rounds_does_not_replace_the_first() -> None:
    """Its median and its minimum are lower, but two rounds of nine say otherwise."""
    fast = Scripted(lambda turn: 520.0 if turn in (5, 9) else 480.0)
    assert chosen(steady(500.0), fast) == 0


def test_one_round_that_was_disturbed_does_not_hide_a_faster_one() -> None:
    fast = Scripted(lambda turn: 5000.0 if turn == 7 else 480.0)
    assert chosen(steady(500.0), fast) == 1


def test_a_clearly_slower_setting_is_dropped_early_but_never_the_first() -> None:
    usual, near, slow = steady(600.0), steady(500.0), steady(560.0)
    assert chosen(usual, near, slow) == 1
    assert usual.turns == near.turns > slow.turns
    assert usual.turns + near.turns + slow.turns == runs_to_choose(3)


def test_where_all_others_are_dropped_nothing_more_is_measured() -> None:
    usual, slow = steady(500.0), steady(800.0)
    assert chosen(usual, slow) == 0
    assert usual.turns == slow.turns


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


def test_rates_use_the_wall_clock_and_count_runs_in_flight(clock: Clock) -> None:
    candidates = {"alone": clock.candidate(1000.0), "four": clock.candidate(1000.0, in_flight=4)}
    found = measure_rates(candidates, Budget(rounds=3), rest=lambda: None)
    assert found["alone"].samples_us == pytest.approx((1000.0,) * 3)
    assert found["four"].samples_us == pytest.approx((250.0,) * 3)


def test_a_turn_is_one_run_and_then_runs_for_a_fixed_time(clock: Clock) -> None:
    measure_rates({"some": clock.candidate(1000.0)}, Budget(rounds=1), rest=lambda: None)
    assert clock.counts == [1, int(RATE_SECONDS / 500e-6)] * 2


def test_a_long_run_is_measured_once_in_a_turn(clock: Clock) -> None:
    measure_rates({"long": clock.candidate(3e6)}, Budget(rounds=1), rest=lambda: None)
    assert clock.counts == [1, 1] * 2


def test_after_the_time_limit_only_the_minimum_of_rounds_is_taken(clock: Clock) -> None:
    found = measure_rates(
        {"long": clock.candidate(3e6)}, Budget(rounds=50, max_seconds=1.0, least_rounds=6), rest=lambda: None
    )
    assert len(found["long"].samples_us) == 6
