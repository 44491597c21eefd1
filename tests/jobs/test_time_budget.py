"""A budget of time is divided between the search and comparing whole models, and is not exceeded."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from scripted import (
    LATENCIES_US,
    OPENVINO_OPENED,
    fire,
    script_models,
    script_openvino,
    script_stages,
    scripted_round,
    without_openvino,
)

from iosched.jobs import time_budget
from iosched.jobs.optimize import OptimizeSettings, optimize
from iosched.jobs.time_budget import TimeBudget, share_s
from iosched.profiler.baselines.onnxruntime import OnnxruntimeBaseline
from iosched.profiler.devices.cpu import open as cpu_open
from iosched.profiler.measuring.deciding import LEAST_ROUNDS
from iosched.profiler.measuring.interleave import interleave
from iosched.profiler.measuring.interleaved_models import Budget, Round, TakeRound, runs_to_choose, turn_seconds


@pytest.fixture
def settings(tmp_path: Path) -> OptimizeSettings:
    return OptimizeSettings(threads=2, profile_db=tmp_path / "p.db")


def test_parts_share_the_rest_of_a_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 40.0)
    assert share_s(100.0, 20.0, 4) == 20.0
    assert share_s(10.0, 20.0, 4) == 0.0
    assert share_s(None, 20.0, 4) is None


def test_a_comparison_lasts_at_least_as_long_as_all_earlier_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_budget, "MOST_DECIDING_S", 120.0)
    deciding_s = TimeBudget(None, 0.0).deciding_s
    assert (deciding_s(60, 1), deciding_s(0, 40), deciding_s(60, 400)) == (30, 40, 120)


@pytest.mark.parametrize("budget_s", [None, 1000.0])
def test_an_interruption_accepted_before_a_search_ends_it_too(budget_s: float | None) -> None:
    interrupt = SimpleNamespace(can_come=True, came=False, accepted=False)
    deadline = TimeBudget(budget_s, time.monotonic(), interrupt, None, None).deadline()  # type: ignore[arg-type]
    assert deadline is not None
    assert not deadline()
    interrupt.came = True
    assert deadline()
    interrupt.came, interrupt.accepted = False, True
    assert deadline()


def test_rounds_of_a_hurried_comparison_are_kept_and_the_next_call_continues(
    settings: OptimizeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    script_stages(monkeypatch)
    script_models(monkeypatch, LATENCIES_US)
    hurried = optimize(fire(), replace(settings, budget_s=1e-9))
    assert (hurried.shipped, hurried.verdict) == ("reference", "undecided")
    assert "after 1 usable round of whole models, too few" in hurried.notes[0]
    assert len(hurried.wholes["iosched"].samples_us) == 1
    assert hurried.predicted_us is None
    found = optimize(fire(), settings)
    assert (found.shipped, found.verdict, found.notes) == ("iosched", "faster", ())
    assert len(found.wholes["reference"].samples_us) > LEAST_ROUNDS


def chosen_by(measured: Callable[..., object], settings: Sequence[object]) -> int:
    """The default setting, after the runs that choosing one takes."""
    names = [str(place) for place in range(len(settings))]
    rounds = runs_to_choose(len(names)) // len(names)
    measured(dict.fromkeys(names), Budget(rounds=rounds - 1, max_seconds=math.inf))
    return 0


@pytest.mark.parametrize("budget_s", [0.0, 0.3, 1.0, 2.0, 5.0])
def test_the_whole_job_stays_within_the_budget(
    budget_s: float, settings: OptimizeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock advances only when something is measured: by 0.1 s for a stage, by 20 ms for a run of a whole model."""
    now = [1000.0]

    def stage(count: int) -> None:
        now[0] += 0.1

    def compared(runnables: Mapping[str, object], budget: Budget, *_: object) -> object:
        def run() -> float:
            now[0] += 0.02
            return 20_000.0

        return interleave(dict.fromkeys(runnables, run), budget.rounds, max_seconds=budget.max_seconds)

    def rounds_of(*_: object) -> TakeRound:
        def take(names: Sequence[str]) -> Round:
            now[0] += 0.02 * len(names)
            return scripted_round(dict.fromkeys(names, 20_000.0))

        return take

    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    script_stages(monkeypatch, stage)
    monkeypatch.setattr(cpu_open, "rounds_of", rounds_of)
    monkeypatch.setattr("iosched.profiler.baselines.onnxruntime.fastest_setting", partial(chosen_by, compared))
    result = optimize(fire(), replace(settings, budget_s=budget_s))
    shortest_comparison_s = 4 * 3 * 0.02
    assert now[0] - 1000.0 < budget_s + 0.1 + shortest_comparison_s + 1e-6
    assert result.measured_us is not None
    assert result.gap is not None


@pytest.fixture
def long_search(monkeypatch: pytest.MonkeyPatch) -> Callable[[], float]:
    """A function that returns the number of seconds since the start.

    The clock advances only when something is measured: by 0.5 s for a stage, by 0.11 s for a turn of a whole model.
    Plain onnxruntime is taken to need no time, whatever a run of it takes on a busy machine.
    """
    now = [1000.0]

    def rounds_of(*_: object) -> TakeRound:
        def take(names: Sequence[str]) -> Round:
            now[0] += turn_seconds(0.0) * len(names)
            return scripted_round({name: LATENCIES_US.get(name, 50.0) for name in names})

        return take

    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(OnnxruntimeBaseline, "opening_and_run_s", (0.0, 0.0))
    script_stages(monkeypatch, lambda _: now.__setitem__(0, now[0] + 0.5))
    monkeypatch.setattr(cpu_open, "rounds_of", rounds_of)
    without_openvino(monkeypatch)
    return lambda: now[0] - 1000.0


@pytest.mark.parametrize("budget_s", [4.2, 4.6, 8.0])
def test_a_search_leaves_enough_time_for_the_comparison(
    budget_s: float, settings: OptimizeSettings, long_search: Callable[[], float]
) -> None:
    """Comparing three candidates in twelve turns each takes 3.96 s."""
    result = optimize(fire(), replace(settings, budget_s=budget_s))
    assert result.measurements >= (budget_s - 3.96) // 0.5
    assert result.gap != 0
    assert result.ratio is not None
    assert result.shipped == "iosched"
    assert result.notes == ()
    assert long_search() < budget_s + 0.5 + 0.11


def test_a_budget_too_short_to_compare_ships_plain_onnxruntime_and_suggests_a_longer_one(
    settings: OptimizeSettings, long_search: Callable[[], float]
) -> None:
    result = optimize(fire(), replace(settings, budget_s=2.0))
    assert long_search() < 2.0 + 0.5 + 3 * 0.1
    assert (result.shipped, result.ratio) == ("reference", None)
    assert result.reason.startswith("too few runs to tell")
    (note,) = result.notes
    assert "about 4 s to --budget" in note


@pytest.mark.parametrize(
    ("budget_s", "is_compared", "notes"),
    [(5.0, False, ["OpenVINO was not compared because the time ran out: use a --budget of 8 s"]), (13.0, True, [])],
)
def test_openvino_is_compared_where_the_budget_has_room_for_it(
    budget_s: float,
    is_compared: bool,
    notes: list[str],
    settings: OptimizeSettings,
    monkeypatch: pytest.MonkeyPatch,
    long_search: Callable[[], float],
) -> None:
    script_openvino(monkeypatch, OPENVINO_OPENED)
    result = optimize(fire(), replace(settings, budget_s=budget_s))
    assert (result.openvino_us is not None) == is_compared
    assert all(words in note for words, note in zip(notes, result.notes, strict=True))
    assert long_search() < budget_s + 0.5 + 0.11


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("budget_s", [0.0, 4.0, 16.0, 20.0, 30.0, 60.0])
def test_a_job_for_throughput_stays_within_the_budget(
    batch: int, budget_s: float, settings: OptimizeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock advances only where something is measured: 0.1 s for a stage or to open, 0.36 s for a turn.

    A turn of a setting of onnxruntime takes 0.2 s.
    """
    now = [1000.0]

    def turned(runnables: Mapping[str, object], budget: Budget, *_: object) -> object:
        def run(name: str) -> float:
            now[0] += 0.36
            return LATENCIES_US.get(name, 50.0 if name == "1" else 60.0)

        runs = {name: (lambda name=name: run(name)) for name in runnables}
        now[0] += 0.1 * len(runs)
        return interleave(
            runs, budget.rounds, warmup=1, max_seconds=budget.max_seconds, least_rounds=budget.least_rounds
        )

    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def chosen(settings: Sequence[object]) -> int:
        now[0] += 0.1 * len(settings) + 0.2 * runs_to_choose(len(settings))
        return 0

    monkeypatch.setattr(OnnxruntimeBaseline, "opening_and_run_s", (0.1, 0.005))
    script_stages(monkeypatch, lambda _: now.__setitem__(0, now[0] + 0.1))
    monkeypatch.setattr("iosched.jobs.optimizing.throughput.measure_rates", turned)
    monkeypatch.setattr("iosched.profiler.baselines.onnxruntime.fastest_setting", chosen)
    without_openvino(monkeypatch)
    result = optimize(fire(batch), replace(settings, budget_s=budget_s, objective="throughput"))
    shortest_comparison_s = 3 * (0.1 + 2 * 0.36)
    assert now[0] - 1000.0 < budget_s + 0.2 + shortest_comparison_s
    assert result.measured_us is not None
    assert (result.measurements > 0) == (budget_s >= 20)
    assert any("too few to tell" in note for note in result.notes) == (budget_s < 8)
    assert any("divisions of the cores" in note for note in result.notes) == (budget_s < (20 if batch == 1 else 30))
    one_way = "Plain onnxruntime was compared in one setting only because the time ran out: "
    if budget_s == 16.0:
        assert any(note.startswith(one_way) and "one session" not in note for note in result.notes), "as our teams"
    assert budget_s < 30 or not result.notes
