"""The cost of a model: as `optimize` ships it, from its stages, from the database alone, or analytic."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from host_cuda import needs_compiler
from host_gpu import attach_host, time_by_size
from onnx import TensorProto, helper
from scripted import LATENCIES_US, Asked, fire, model_with, script_models, script_stages

from iosched.jobs.optimize import optimize
from iosched.jobs.optimizing.comparison import Comparison
from iosched.jobs.ranking import model_cost as cost_job
from iosched.jobs.ranking.measures import Measure
from iosched.jobs.ranking.model_cost import LEAST_MODELS, model_cost
from iosched.jobs.settings import OptimizeSettings
from iosched.models.errors import UsageError
from iosched.profiler.store.database import ProfileDatabase
from iosched.profiler.store.tables import WholeRow


@pytest.fixture
def settings(tmp_path: Path) -> OptimizeSettings:
    return OptimizeSettings(device="cpu", threads=2, profile_db=tmp_path / "p.db")


def measured_before(settings: OptimizeSettings, count: int, factor: float) -> None:
    """`count` other whole models were measured, and took `factor` times the sum of their stages."""
    with ProfileDatabase(settings.profile_db) as database:
        own = max((row for row in database.rows() if isinstance(row, WholeRow)), key=lambda row: len(row.key))
        for number in range(count):
            samples_us = (own.sum_us * factor,) * 7
            database.keep_whole(msgspec.structs.replace(own, key=str(number), samples_us=samples_us))


def test_comparing_baselines_before_the_search_is_comparison_time(
    settings: OptimizeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    script_stages(monkeypatch)
    script_models(monkeypatch, LATENCIES_US)
    now, compare, added_s = time.monotonic, Comparison.of, [0.0, 1000.0, 3000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now() + added_s[0])
    monkeypatch.setattr(Comparison, "of", lambda *words: (added_s.pop(0), compare(*words))[1])
    found = model_cost(fire(), "models", settings)
    assert (found.search_seconds // 1000, found.comparison_seconds // 1000) == (0, 3)


def test_a_measured_cost_is_that_of_the_plan_that_optimize_ships(
    settings: OptimizeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    script_stages(monkeypatch)
    script_models(monkeypatch, {**LATENCIES_US, "reference": 5.0})
    found = model_cost(fire(), "models", settings)
    assert found.result is not None
    assert (found.cost, found.shipped, found.latency_us) == ("measured", "reference", 5.0)
    assert (found.low_us, found.high_us, found.level) == (5.0, 5.0, 0.95)
    assert found.sequential_us == LATENCIES_US["sequential"]
    assert found.hit_rate == 0
    assert 0 < found.search_seconds <= found.result.seconds
    assert found.search_seconds + found.comparison_seconds == pytest.approx(found.result.seconds)
    again = model_cost(fire(), "models", settings)
    assert again.latency_us == 5.0
    assert again.hit_rate == 1


@pytest.mark.parametrize(("budget_s", "interval"), [(0.0, (None, None, None)), (None, (100.0, 100.0, 0.95))])
def test_a_few_runs_that_agree_by_chance_make_no_interval(
    settings: OptimizeSettings, monkeypatch: pytest.MonkeyPatch, budget_s: float | None, interval: tuple[float, ...]
) -> None:
    """As when `--budget` ends after the first runs of a slow model."""
    script_stages(monkeypatch)
    script_models(monkeypatch, dict.fromkeys(LATENCIES_US, 100.0))
    found = model_cost(fire(), "models", replace(settings, budget_s=budget_s))
    assert (found.cost, found.latency_us) == ("measured", 100.0)
    assert (found.low_us, found.high_us, found.level) == interval


def test_a_sum_of_stages_is_the_prediction_of_optimize_without_whole_models(
    settings: OptimizeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    script_stages(monkeypatch)
    calls = script_models(monkeypatch, LATENCIES_US)
    found = model_cost(fire(), "stages", settings)
    assert calls == []
    assert found.cost == "estimated"
    assert (found.low_us, found.high_us, found.level) == (None, None, None)
    assert found.latency_us == found.sum_us == optimize(fire(), settings).predicted_us
    assert f"0 of the {LEAST_MODELS} whole models" in found.notes[0]
    assert model_cost(fire(), "stages", settings).hit_rate == 1


@pytest.mark.parametrize("after", [1, 5, 6, 12])
def test_a_sum_of_stages_measures_nothing_once_the_search_is_over(
    after: int, settings: OptimizeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt = Asked(answer=True)

    def come(count: int) -> None:
        interrupt.came = interrupt.came or count + 1 == after

    measured = script_stages(monkeypatch, come)
    if after < 6:  # operators
        with pytest.raises(UsageError, match="no time was left to measure stages: use a larger --budget"):
            model_cost(fire(), "stages", settings, interrupt=interrupt)
    else:
        found = model_cost(fire(), "stages", settings, interrupt=interrupt)
        assert found.latency_us <= (found.sequential_us or 0)
    assert len(measured) == after


def test_an_estimate_is_corrected_by_other_models_and_has_their_error(
    settings: OptimizeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    script_stages(monkeypatch)
    script_models(monkeypatch, LATENCIES_US)
    optimize(fire(), settings)
    measured_before(settings, LEAST_MODELS - 1, 0.5)
    few = model_cost(fire(), "stages", settings)
    assert few.low_us is None  # its own measurement does not count for the error of estimates
    measured_before(settings, LEAST_MODELS, 0.5)
    found = model_cost(fire(), "stages", settings)
    assert found.sum_us == few.sum_us
    assert found.latency_us == pytest.approx(0.5 * (found.sum_us or 0))
    assert (found.low_us, found.high_us) == pytest.approx((found.latency_us, found.latency_us))
    assert found.level == 0.9


def test_without_measuring_the_stored_latency_of_the_whole_model_is_used(
    settings: OptimizeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    stages = script_stages(monkeypatch)
    script_models(monkeypatch, LATENCIES_US)
    before = model_cost(fire(), "models", settings)
    count = len(stages)
    found = model_cost(fire(), "none", settings)
    assert len(stages) == count
    assert (found.cost, found.shipped, found.hit_rate) == ("measured", before.shipped, 1)
    assert (found.latency_us, found.low_us, found.high_us) == (before.latency_us, before.low_us, before.high_us)
    assert found.sequential_us == before.sequential_us
    with pytest.raises(UsageError, match="has no latency"):
        model_cost(fire(), "none", replace(settings, resume=False))


def test_without_measuring_known_stages_give_an_estimate(
    settings: OptimizeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    stages = script_stages(monkeypatch)
    script_models(monkeypatch, LATENCIES_US)
    model_cost(fire(), "stages", settings)
    count = len(stages)
    found = model_cost(fire(), "none", settings)
    assert len(stages) == count
    assert (found.cost, found.hit_rate) == ("estimated", 1)
    assert found.sequential_us is not None
    assert found.latency_us <= found.sequential_us


def test_without_measuring_missing_latencies_are_an_error_with_their_count(
    settings: OptimizeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    stages = script_stages(monkeypatch)
    opening = cost_job.opened
    may_time: list[bool] = []

    def noted(device, model, opening_settings, *rest, **more):
        may_time.append(opening_settings.may_time)
        return opening(device, model, opening_settings, *rest, **more)

    monkeypatch.setattr(cost_job, "opened", noted)
    with pytest.raises(
        UsageError, match=r"no latency on this device for (\d+) of \1 distinct operators.*--measure stages"
    ):
        model_cost(fire(), "none", settings)
    assert not stages
    assert settings.profile_db is not None
    assert not settings.profile_db.exists()
    model_cost(fire(), "stages", settings)
    assert may_time == [False, True]
    with pytest.raises(UsageError, match="has no latency"):
        model_cost(fire(), "none", replace(settings, resume=False))


@pytest.mark.parametrize("measure", ["none", "stages", "models"])
def test_a_simulated_gpu_always_uses_the_analytic_model(measure: Measure) -> None:
    settings = OptimizeSettings(device="v100")
    found, result = model_cost(fire(), measure, settings), optimize(fire(), settings)
    assert result.intervals is not None
    known = result.intervals.latency_us["iosched"]
    assert (found.cost, found.device, found.latency_us) == ("analytic", "v100", result.shipped_us)
    assert (found.low_us, found.high_us, found.level) == (known.low, known.high, 0.9)
    assert found.sequential_us == result.sequential_us
    assert found.hit_rate is None
    flops = sum(operator.flops for operator in fire().graph.operators)
    assert found.share_of_peak == pytest.approx(flops / found.latency_us / 1e6 / 15.7, rel=0.01)


@needs_compiler
def test_an_attached_gpu_is_measured_like_a_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attach_host(monkeypatch)
    time_by_size(monkeypatch)
    settings = OptimizeSettings(device="cuda", profile_db=tmp_path / "p.db")
    with pytest.raises(UsageError, match="has no latency"):
        model_cost(fire(), "none", settings)
    alone = model_cost(fire(), "stages", settings)
    known = model_cost(fire(), "none", settings)
    assert (alone.cost, known.cost) == ("estimated", "estimated")
    assert known.latency_us == pytest.approx(alone.latency_us)
    whole = model_cost(fire(), "models", settings)
    again = model_cost(fire(), "none", settings)
    assert (whole.cost, again.cost, again.latency_us) == ("measured", "measured", whole.latency_us)


@pytest.mark.parametrize("measure", ["none", "stages", "models"])
def test_a_model_that_no_schedule_runs_has_no_cost(measure: Measure, settings: OptimizeSettings) -> None:
    model = model_with([helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT)], TensorProto.STRING)
    with pytest.raises(UsageError, match="without a fixed size"):
        model_cost(model, measure, settings)


def test_a_precision_without_schedules_is_refused_for_stages(
    settings: OptimizeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("iosched.profiler.devices.cpu.device.check_precision", lambda precision: None)
    with pytest.raises(UsageError, match="no schedule runs in bf16 on this device: use --measure models"):
        model_cost(fire(), "stages", replace(settings, precision="bf16"))


def test_a_whole_model_measured_without_a_library_is_unknown(
    settings: OptimizeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    script_stages(monkeypatch)
    script_models(monkeypatch, LATENCIES_US)
    model_cost(fire(), "models", settings)
    script_models(monkeypatch, {**LATENCIES_US, "openvino": 1.0})
    assert model_cost(fire(), "none", settings).cost == "estimated"
