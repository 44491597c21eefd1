"""Many models on several devices: sorted by latency, stages shared, and a broken one is a row with its reason."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from scripted import LATENCIES_US, fire, script_models, script_stages

from iosched.jobs import rank as rank_job
from iosched.jobs import time_budget
from iosched.jobs.optimize import optimize
from iosched.jobs.pool import local
from iosched.jobs.rank import RankInterruptedError, RankSettings, rank
from iosched.jobs.ranking import rank_task as cost_job
from iosched.jobs.ranking.measures import Measure
from iosched.jobs.settings import OptimizeSettings
from iosched.models.errors import DeviceError, DeviceLostError, InvalidModelError, UsageError
from iosched.models.load import load_model
from iosched.models.model import Model


@pytest.fixture
def settings(tmp_path: Path) -> RankSettings:
    return RankSettings(("cpu",), threads=2, profile_db=tmp_path / "p.db")


def broken() -> Model:
    return load_model(b"no model")


def test_rows_are_sorted_by_device_and_latency_and_match_optimize() -> None:
    models = {"eight": fire(8), "one": fire(1), "four": fire(4)}
    result = rank(models, RankSettings(("k80", "v100")))
    assert [row.device for row in result.rows] == ["k80"] * 3 + ["v100"] * 3
    assert [row.model for row in result.rows[3:]] == ["one", "four", "eight"]
    for row in result.rows:
        assert row.cost is not None
        assert row.latency_us == optimize(models[row.model], OptimizeSettings(device=row.device)).shipped_us
        assert (row.flops, row.params) == (models[row.model].flops, models[row.model].n_parameters)
    assert result.failure is None
    assert result.hit_rate is None
    assert not result.was_interrupted


@pytest.mark.parametrize("measure", ["stages", "models"])
def test_stages_that_models_share_are_measured_once(
    measure: Measure, settings: RankSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    stages = script_stages(monkeypatch)
    script_models(monkeypatch, LATENCIES_US)
    result = rank({"a": fire(), "b": fire()}, replace(settings, measure=measure))
    first, second = sorted(result.rows, key=lambda row: row.model)
    assert first.cost is not None
    assert second.cost is not None
    assert (first.cost.hit_rate, second.cost.hit_rate) == (0, 1)
    assert first.cost.measurements == len(stages)
    assert result.hit_rate == pytest.approx(0.5, abs=0.1)


def test_models_share_stages_also_where_no_database_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    stages = script_stages(monkeypatch)
    settings = RankSettings(("cpu",), measure="stages", threads=2)  # the tests' environment asks for one in memory
    result = rank({"a": fire(), "b": fire()}, settings)
    assert len(stages) == sum(row.cost.measurements for row in result.rows if row.cost is not None)
    assert 0 in [row.cost.measurements for row in result.rows if row.cost is not None]


def test_a_broken_model_is_a_row_with_its_reason_after_the_others() -> None:
    result = rank({"broken": broken, "good": fire()}, RankSettings(("v100", "k80")))
    assert [(row.model, row.device) for row in result.rows] == [
        ("good", "v100"), ("broken", "v100"), ("good", "k80"), ("broken", "k80"),
    ]  # fmt: skip
    row = result.rows[1]
    assert (row.cost, row.flops, row.latency_us) == (None, None, math.inf)
    assert row.error is not None
    assert "\n" not in row.error
    assert result.rows[0].error is None
    assert result.failure is None


def test_if_no_model_has_a_latency_the_first_reason_is_the_failure(settings: RankSettings) -> None:
    result = rank({"a": broken, "b": broken}, RankSettings(("v100",)))
    assert isinstance(result.failure, InvalidModelError)
    nothing = rank({"a": fire()}, replace(settings, measure="none"))
    assert isinstance(nothing.failure, UsageError)
    assert "has no latency" in (nothing.rows[0].error or "")
    assert nothing.rows[0].flops == fire().flops


def test_an_unexpected_error_is_a_row_but_a_lost_gpu_ends_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    cost = cost_job.model_cost

    def fails(model: Model, *rest: object) -> object:
        if model.name == "odd":
            raise ZeroDivisionError("by zero")
        return cost(model, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(cost_job, "model_cost", fails)
    result = rank({"odd": replace(fire(), name="odd"), "good": fire()}, RankSettings(("v100",)))
    assert [row.error for row in result.rows] == [None, "ZeroDivisionError: by zero"]

    def lost(*_: object) -> object:
        raise DeviceLostError("the GPU is gone")

    monkeypatch.setattr(cost_job, "model_cost", lost)
    with pytest.raises(DeviceLostError):
        rank({"a": fire()}, RankSettings(("v100",)))


def test_an_interruption_carries_the_completed_rows_and_marks_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cost, asked = cost_job.model_cost, list[str]()

    def interrupted(model: Model, measure: Measure, settings: OptimizeSettings, *rest: Any) -> object:
        asked.append(settings.device)
        if len(asked) == 4:
            raise KeyboardInterrupt
        return cost(model, measure, settings, *rest)

    monkeypatch.setattr(cost_job, "model_cost", interrupted)
    models = {"eight": fire(8), "one": fire(1), "never": lambda: pytest.fail("it was loaded")}
    with pytest.raises(RankInterruptedError) as raised:
        rank(models, RankSettings(("k80", "v100")))
    result = raised.value.result
    assert [(row.model, row.device, row.error) for row in result.rows] == [
        ("one", "k80", None), ("eight", "k80", None), ("never", "k80", "interrupted"),
        ("eight", "v100", None), ("one", "v100", "interrupted"), ("never", "v100", "interrupted"),
    ]  # fmt: skip
    assert result.rows[0].latency_us < result.rows[1].latency_us
    assert result.was_interrupted
    assert [row.is_unreached for row in result.rows] == [row.error is not None for row in result.rows]


def test_an_interruption_before_the_first_row_carries_none() -> None:
    def interrupted() -> Model:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as raised:
        rank({"a": interrupted, "b": fire()}, RankSettings(("v100",)))
    assert not isinstance(raised.value, RankInterruptedError)


def test_the_budget_is_shared_among_the_rows_that_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []
    cost = cost_job.model_cost

    def noted(model: Model, measure: Measure, settings: OptimizeSettings, *rest: Any) -> object:
        asked.append(settings.budget_s or 0.0)
        return cost(model, measure, settings, *rest)

    monkeypatch.setattr(cost_job, "model_cost", noted)
    left_s = iter([90.0, 60.0, 10.0, 0.0])
    monkeypatch.setattr(rank_job, "share_s", lambda budget_s, started, parts: next(left_s) / parts)
    models = {name: fire() for name in "abcd"}
    result = rank(models, RankSettings(("v100",), budget_s=100.0))
    assert asked == [90 / 4, 60 / 3, 10 / 2]
    assert "no time was left" in (result.rows[-1].error or "")


def test_time_that_a_row_leaves_unused_goes_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, given_s, cost = [0.0], list[float](), cost_job.model_cost

    def slow(model: Model, measure: Measure, settings: OptimizeSettings, *rest: Any) -> object:
        given_s.append(settings.budget_s or 0.0)
        clock[0] += 6.0
        return cost(model, measure, settings, *rest)

    monkeypatch.setattr(cost_job, "model_cost", slow)
    for module in (rank_job, time_budget, local):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    rank({"a": fire()}, RankSettings(("v100", "k80"), budget_s=20.0))
    assert given_s == [10.0, 14.0]


def test_a_device_given_twice_is_one() -> None:
    assert [row.device for row in rank({"a": fire()}, RankSettings(("v100", "V100"))).rows] == ["v100"]


@pytest.mark.parametrize(("settings", "error", "text"), [
    (RankSettings(()), UsageError, "no device"),
    (RankSettings(("nothing",)), UsageError, "unknown device 'nothing'"),
    (RankSettings(("cuda",)), DeviceError, "GPU"),
    (RankSettings(("cpu",), launch="streams"), UsageError, "launch='streams' only applies"),
    (RankSettings(("v100",), measure="all"), UsageError, "unknown measure 'all'"),  # type: ignore[arg-type]
])  # fmt: skip
def test_invalid_settings_are_refused_before_a_model_is_loaded(
    settings: RankSettings, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        rank({"a": lambda: pytest.fail("it was loaded")}, settings)


def test_nothing_is_ranked_where_there_is_no_model() -> None:
    with pytest.raises(UsageError, match="no model"):
        rank({}, RankSettings(("v100",)))
