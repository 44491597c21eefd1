"""A budget is divided among the steps for a cluster of models; an accepted interruption uses it up."""

from __future__ import annotations

import time
from math import isfinite, isinf
from pathlib import Path

import pytest
from scripted import Asked
from small_models import chains

from iosched.jobs.batching.model_clusters import composed
from iosched.jobs.open_model import opened
from iosched.jobs.time_budget import CHOSEN, TimeBudget
from iosched.profiler.devices.open_settings import OpenSettings
from iosched.profiler.devices.resolve import resolve
from iosched.profiler.measuring.interleaved_models import Budget

FEW = Budget(rounds=3, max_seconds=6.0, least_rounds=1)


@pytest.fixture
def at_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time now, to be changed by the test."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_without_a_limit_time_never_runs_out_and_all_rounds_are_taken(at_s: list[float]) -> None:
    time_budget = TimeBudget(None, 0.0)
    at_s[0] = 1e6
    assert isinf(time_budget.remaining_s())
    assert not time_budget.is_over(0.1)()
    assert time_budget.choice(FEW, [1e6]) == FEW
    assert time_budget.comparison_of(Budget(), [1e6]) == Budget()


def test_parts_of_the_budget_end_one_after_another(at_s: list[float]) -> None:
    time_budget = TimeBudget(10.0, 0.0)
    at_s[0] = 4.0
    assert isfinite(time_budget.remaining_s())
    assert [time_budget.is_over(part)() for part in (0.3, 0.4, 0.5)] == [True, True, False]


@pytest.mark.parametrize(("latency_us", "is_chosen"), [(1e3, True), (1e5, False)])
def test_ways_are_chosen_in_rounds_where_their_runs_leave_time_for_it(
    latency_us: float, is_chosen: bool, at_s: list[float]
) -> None:
    time_budget = TimeBudget(10.0, 0.0)
    at_s[0] = 1.0
    found = time_budget.choice(FEW, [latency_us] * 10)
    assert (found is not None) == is_chosen
    if found is not None:
        assert found.max_seconds <= 10.0 * CHOSEN - 1.0


def test_slower_models_are_run_in_fewer_rounds_but_not_in_too_few(at_s: list[float]) -> None:
    time_budget = TimeBudget(10.0, 0.0)
    rounds = [time_budget.comparison_of(Budget(rounds=100), [latency_us] * 4).rounds for latency_us in (1e3, 3e4, 1e7)]
    assert rounds == sorted(rounds, reverse=True)
    assert rounds[0] > rounds[1] > rounds[2] == Budget().least_rounds


def test_an_accepted_interruption_uses_up_the_budget(at_s: list[float]) -> None:
    interrupt = Asked(answer=True)
    time_budget = TimeBudget(None, 0.0, interrupt)
    time_budget.ask()
    assert not interrupt.times_asked
    interrupt.came = True
    assert time_budget.is_over(1.0)()
    time_budget.ask()
    assert interrupt.times_asked == 1
    assert time_budget.is_over(1.0)()
    assert time_budget.choice(FEW, [1.0]) is None
    assert time_budget.comparison_of(Budget(), [1e3]).rounds == Budget().least_rounds


def test_time_is_kept_for_comparing_slow_models(at_s: list[float], tmp_path: Path) -> None:
    whole = composed(chains(2)).model
    with opened(resolve("cpu", whole), whole, OpenSettings(threads=2), tmp_path / "db") as model:
        assert model.baselines.onnxruntime is not None
        vars(model.baselines.onnxruntime)["opening_and_run_s"] = (0.0, 0.4)
        time_budget = TimeBudget(100.0, 0.0).reserving(model)
        assert TimeBudget(None, 0.0).reserving(model).reserved_s == 0.0
    at_s[0] = 100.0 - time_budget.reserved_s
    assert 3 * 8 * 0.8 < time_budget.reserved_s < 50.0
    assert time_budget.is_over(1.0)()
    assert isfinite(time_budget.remaining_s())
    assert time_budget.comparison_of(Budget(), [4e5] * 3).rounds == Budget().least_rounds
