"""`optimize` ships a schedule that is faster than plain onnxruntime, or plain onnxruntime, whatever happens before."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import pytest
from onnx import TensorProto, helper
from scripted import (
    LATENCIES_US,
    fire,
    model_with,
    script_models,
    script_stages,
    scripted_round,
    without_openvino,
)

from iosched.jobs import optimize as optimize_module
from iosched.jobs import time_budget
from iosched.jobs.optimize import OptimizeResult, OptimizeSettings, optimize
from iosched.jobs.run import open_executor
from iosched.models.errors import DeviceError, UsageError
from iosched.profiler.baselines.onnxruntime import OnnxruntimeBaseline
from iosched.profiler.devices.cpu import open as cpu_open
from iosched.profiler.devices.cpu.measured_cost import CpuStageCost
from iosched.profiler.measuring import disturbance
from iosched.profiler.measuring.disturbance import Load
from iosched.profiler.measuring.interleaved_models import Round, TakeRound
from iosched.profiler.measuring.statistics import Interval
from iosched.profiler.store.database import ProfileDatabase
from iosched.profiler.store.tables import CalibrationRow, ComparisonRow, StageRow, WholeRow
from iosched.runtime.compare import compare
from iosched.runtime.inputs import random_inputs
from iosched.runtime.reference import Reference
from iosched.scheduler.document import ScheduleDocument, check_operators
from iosched.scheduler.schedule import Stage, structure_text
from iosched.scheduler.search import SearchResult

measured_taken = disturbance.interference  # other tests do without, see conftest.py

FASTEST = {
    "iosched": LATENCIES_US,
    "sequential": {"iosched": 20.0, "sequential": 10.0, "greedy": 15.0, "reference": 40.0},
    "reference": {"iosched": 20.0, "sequential": 20.0, "greedy": 30.0, "reference": 10.0},
}


@pytest.fixture
def settings(tmp_path: Path) -> OptimizeSettings:
    return OptimizeSettings(threads=2, profile_db=tmp_path / "p.db")


@dataclass
class Sampled:
    """Scripts whole models for `factor` times the latencies, with noise and with interference by `others`."""

    monkeypatch: pytest.MonkeyPatch
    iosched: float = 10.0
    noise: float = 0.0
    others: float = 0.0
    factor: float = 1.0
    compared: int = 0

    def __post_init__(self) -> None:
        without_openvino(self.monkeypatch)
        self.monkeypatch.setattr(time_budget, "MOST_DECIDING_S", 0.0)
        self.monkeypatch.setattr(cpu_open, "rounds_of", self._rounds_of)
        self.monkeypatch.setattr(OnnxruntimeBaseline, "best", lambda plain, _: plain.settings[0])

    def _rounds_of(self, candidates: Mapping[str, object], *_: object) -> TakeRound:
        """Rounds in which the schedule found is slower every second time, by the noise."""
        self.compared += "iosched" in candidates
        signs = itertools.cycle((-1, 1))

        def take(names: Sequence[str]) -> Round:
            found_us = self.iosched * (1 + self.noise * next(signs))
            usual_us = {
                **dict.fromkeys(("sequential", "session", "lanes", "greedy"), 60.0),
                "iosched": found_us,
                "reference": 40.0,
            }
            return scripted_round({name: self.factor * usual_us[name] for name in names}, others=self.others)

        return take


def check_runs(result: OptimizeResult) -> None:
    """Checks that the file can be read, fits the model, and that its schedule computes what onnxruntime computes."""
    model = fire()
    again = ScheduleDocument.from_json(result.document.to_json())
    again.validate_for(model.graph, model.digest, model.bindings)
    covered = [name for stage in again.schedule.stages for name in stage.operators]
    assert sorted(covered) == sorted(operator.name for operator in model.graph.operators)
    inputs = random_inputs(model.graph.inputs)
    executor = open_executor(model, again, threads=2)
    with Reference(model) as reference:
        assert compare(executor.run(inputs), reference.run(inputs)).passed
    executor.close()


@pytest.mark.parametrize("shipped", list(FASTEST))
def test_the_fastest_is_shipped(shipped: str, settings: OptimizeSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    script_stages(monkeypatch)
    script_models(monkeypatch, FASTEST[shipped])
    result = optimize(fire(), settings)
    assert result.shipped == result.document.shipped == shipped
    assert result.measured_us == FASTEST[shipped]["iosched"]
    assert result.sequential_us == FASTEST[shipped]["sequential"]
    assert result.greedy_us == FASTEST[shipped]["greedy"]
    assert result.reference_us == FASTEST[shipped]["reference"]
    weighed = "iosched" if shipped == "reference" else shipped
    speedup = FASTEST[shipped]["reference"] / FASTEST[shipped][weighed]
    assert result.ratio == Interval(speedup, speedup, speedup, f"reference/{weighed}")
    assert f"{speedup:.3f}x" in result.reason
    check_runs(result)


@pytest.mark.parametrize(("strategy", "shipped", "proven"), [
    ("both", "iosched", "blocks"), ("both", "reference", "blocks"), ("dos", "iosched", "whole"),
    ("merge", "iosched", "whole"), ("both", "sequential", None), ("greedy", "iosched", None),
])  # fmt: skip
def test_measured_schedules_are_proven_by_block_if_groups_may_cross_cuts(
    strategy: str, shipped: str, proven: str | None, settings: OptimizeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is proven of the sequential schedule that ran faster than the one found, nor of any other baseline."""
    script_stages(monkeypatch)
    script_models(monkeypatch, FASTEST[shipped])
    result = optimize(fire(), replace(settings, strategy=strategy, exhaustive=True))
    assert result.shipped == shipped
    assert (result.proven, result.document.proven, result.optimal) == (proven, proven, proven == "whole")
    assert {block.optimal for block in result.schedule.blocks} == {proven is not None}
    assert result.gap == (None if strategy == "greedy" else 0)


@pytest.mark.parametrize("shipped", list(FASTEST))
def test_the_file_has_the_other_schedules_that_were_compared(
    shipped: str, settings: OptimizeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    script_stages(monkeypatch)
    script_models(monkeypatch, FASTEST[shipped])
    document = ScheduleDocument.from_json(optimize(fire(), settings).document.to_json())
    first = "iosched" if shipped == "sequential" else "sequential"
    assert [(each.name, each.measured_us) for each in document.alternatives] == [
        (name, FASTEST[shipped][name]) for name in (first, "greedy")
    ]
    for each in document.alternatives:
        check_operators(each.schedule, fire().graph)
        assert structure_text(each.schedule) != structure_text(document.schedule)


def test_a_smaller_median_alone_is_no_reason_to_ship(
    settings: OptimizeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In every second round the schedule found is slower."""
    script_stages(monkeypatch)
    Sampled(monkeypatch, iosched=39.0, noise=0.1)
    result = optimize(fire(), settings)
    assert (result.shipped, result.verdict, result.candidate) == ("reference", "undecided", "iosched")
    assert result.reason.startswith("undecided: the schedule found runs at ")
    assert result.reason.endswith("the speed of plain onnxruntime, too noisy to tell; repeat the command to continue")
    assert result.ratio is not None
    assert result.ratio.low < 1 < result.ratio.value <= result.ratio.high


@pytest.mark.parametrize(("name", "candidate"), [("greedy", "greedy"), ("session", "session"), ("sequential", None)])
def test_a_schedule_that_needs_no_search_ships_if_it_is_fastest(
    name: str, candidate: str | None, settings: OptimizeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ships as our schedule: the file contains it, and a key names it."""
    script_stages(monkeypatch)
    ours = dict.fromkeys(("iosched", "sequential", "session", "lanes", "greedy"), 30.0)
    script_models(monkeypatch, {**ours, name: 20.0, "reference": 40.0})
    result = optimize(fire(), settings)
    assert (result.shipped, result.candidate) == ("iosched" if candidate else "sequential", name)
    assert (result.verdict, result.shipped_us) == ("faster", 20.0)
    assert result.ratio == Interval(2.0, 2.0, 2.0, f"reference/{name}")
    assert result.proven is None
    check_runs(result)


def test_schedules_that_need_no_search_are_compared_before_it(
    settings: OptimizeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    stages = script_stages(monkeypatch)
    compared: list[tuple[int, tuple[str, ...]]] = []

    def rounds_of(candidates: Mapping[str, object], *_: object) -> TakeRound:
        compared.append((len(stages), tuple(candidates)))
        return lambda names: scripted_round({name: LATENCIES_US.get(name, 20.0) for name in names})

    script_models(monkeypatch, LATENCIES_US)
    monkeypatch.setattr(cpu_open, "rounds_of", rounds_of)
    optimize(fire(), settings)
    (before, unsearched), (after, found) = compared
    assert before == 0
    assert {*unsearched} == {"sequential", "session", "greedy", "reference"}
    assert after > 0
    assert "iosched" in found


@pytest.mark.parametrize(("best", "n_first"), [("greedy", 2), ("sequential", 0)])
def test_a_search_begins_with_the_stages_of_the_best_unsearched_schedule(
    best: str, n_first: int, settings: OptimizeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The greedy schedule of the model has two stages of several groups."""
    script_stages(monkeypatch)
    script_models(monkeypatch, {**dict.fromkeys(LATENCIES_US, 30.0), "session": 30.0, best: 20.0})
    begun: list[tuple[Stage, ...]] = []
    asked_for = optimize_module.schedule_asked_for

    def noted(*arguments: object) -> SearchResult:
        *_, first = arguments
        begun.append(tuple(first))  # type: ignore[arg-type]
        return asked_for(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(optimize_module, "schedule_asked_for", noted)
    optimize(fire(), settings)
    (first,) = begun
    assert len(first) == n_first
    assert all(len(stage.groups) > 1 for stage in first)


def test_a_search_by_another_strategy_does_not_change_earlier_results(
    settings: OptimizeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other search compares the same sequential schedule and onnxruntime, but measures them at another time."""
    script_stages(monkeypatch)
    models = Sampled(monkeypatch)
    first = optimize(fire(), settings)
    models.factor = 1.1
    optimize(fire(), replace(settings, strategy="greedy"))
    again = optimize(fire(), settings)
    assert (again.ratio, again.document.to_json()) == (first.ratio, first.document.to_json())


def test_a_tie_goes_to_plain_onnxruntime(settings: OptimizeSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    script_stages(monkeypatch)
    script_models(monkeypatch, dict.fromkeys(FASTEST["iosched"], 10.0))
    result = optimize(fire(), settings)
    assert result.shipped == "reference"
    assert result.reason.startswith("no difference found: the schedule found runs at 1.000x (1.000 to 1.000) the speed")


VERDICTS = {"faster": 10.0, "slower": 50.0, "equal": 40.0}
"""Latencies of the schedule found, compared with 40 us of plain onnxruntime."""


@pytest.mark.parametrize("latency_us", VERDICTS.values(), ids=VERDICTS)
def test_a_second_call_measures_nothing_and_gives_the_same_bytes(
    latency_us: float, settings: OptimizeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the first comparison decided what ships."""
    script_stages(monkeypatch)
    models = Sampled(monkeypatch, iosched=latency_us)
    first = optimize(fire(), settings)
    assert first.measurements > 0
    models.factor = 1.1  # another speed of the machine, which would show in the file
    second = optimize(fire(), settings)
    assert second.measurements == 0
    assert second.cache_hits > 0
    assert models.compared == 1
    assert second.document.to_json() == first.document.to_json()
    check_runs(first)


def test_an_undecided_comparison_is_measured_again_until_it_decides(
    settings: OptimizeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    script_stages(monkeypatch)
    models = Sampled(monkeypatch, iosched=39.0, noise=0.2)
    assert optimize(fire(), settings).reason.startswith("undecided: ")
    models.noise = 0.0
    monkeypatch.setattr(time_budget, "MOST_DECIDING_S", 10.0)
    decided = optimize(fire(), settings)
    assert (decided.measurements, decided.verdict, models.compared) == (0, "faster", 2)
    models.noise = 0.2
    again = optimize(fire(), settings)
    assert (again.document.to_json(), models.compared) == (decided.document.to_json(), 2)


def test_a_budget_too_short_to_compare_again_takes_the_undecided_one(
    settings: OptimizeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    script_stages(monkeypatch)
    models = Sampled(monkeypatch, iosched=39.0, noise=0.2)
    first = optimize(fire(), replace(settings, strategy="greedy"))
    assert optimize(fire(), replace(settings, strategy="greedy", budget_s=0.0)).ratio == first.ratio
    assert models.compared == 1


def test_disturbed_rounds_decide_nothing(settings: OptimizeSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are kept with the load under which they were measured, and the next call ignores them."""
    script_stages(monkeypatch)
    models = Sampled(monkeypatch, others=0.5)
    first = optimize(fire(), settings)
    assert (first.shipped, first.verdict, first.ratio) == ("reference", "undecided", None)
    assert "rounds of whole models: repeat this on an idle machine" in first.notes[0]
    with ProfileDatabase(settings.profile_db) as database:
        rounds = [row for row in database.rows() if isinstance(row, ComparisonRow)]
        assert {share for row in rounds for share in row.others} == {0.5}
        assert not [row for row in database.rows() if isinstance(row, WholeRow)]
    models.others = 0.0
    second = optimize(fire(), settings)
    assert (second.shipped, second.notes) == ("iosched", ())
    assert (optimize(fire(), settings).ratio, models.compared) == (second.ratio, 2)


@pytest.mark.parametrize("strategy", ["concurrent", "merge", "both", "sequential", "greedy"])
def test_every_strategy_gives_a_schedule_that_runs(
    strategy: str, settings: OptimizeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    script_stages(monkeypatch)
    script_models(monkeypatch, FASTEST["iosched"])
    result = optimize(fire(), replace(settings, strategy=strategy))
    assert result.shipped == result.document.shipped != "reference"
    check_runs(result)
    strategies = {str(stage.strategy) for stage in result.schedule.stages}
    assert strategy in ("merge", "both") or strategies == {"concurrent"}


@pytest.mark.parametrize("after", [0, 1, 3, 7])
def test_ctrl_c_keeps_completed_measurements(
    after: int, settings: OptimizeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(count: int) -> None:
        if count == after:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        script_stages(patch, interrupt)
        script_models(patch, FASTEST["iosched"])
        with pytest.raises(KeyboardInterrupt):
            optimize(fire(), settings)
    with ProfileDatabase(settings.profile_db) as database:
        assert sum(isinstance(row, StageRow | CalibrationRow) for row in database.rows()) == after
    script_stages(monkeypatch)
    script_models(monkeypatch, FASTEST["iosched"])
    result = optimize(fire(), settings)
    assert result.cache_hits >= after
    check_runs(result)


@pytest.mark.parametrize("budget_s", [0.0, 0.05, 0.6])
def test_any_budget_ends_with_a_file_that_runs(budget_s: float, settings: OptimizeSettings) -> None:
    result = optimize(fire(), replace(settings, budget_s=budget_s))
    assert result.shipped in FASTEST
    check_runs(result)


def test_with_a_spent_budget_fewer_stages_are_measured(
    settings: OptimizeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    unlimited = script_stages(monkeypatch)
    script_models(monkeypatch, FASTEST["iosched"])
    optimize(fire(), settings)
    spent = script_stages(monkeypatch)
    result = optimize(fire(), replace(settings, budget_s=0.0, profile_db=settings.profile_db.with_name("q.db")))
    assert len(spent) < len(unlimited)
    check_runs(result)


@pytest.mark.parametrize(("kind", "cast"), [(TensorProto.STRING, TensorProto.FLOAT)], ids=["text"])
def test_a_model_that_cannot_be_planned_ships_plain_onnxruntime(
    kind: int, cast: int, settings: OptimizeSettings
) -> None:
    model = model_with([helper.make_node("Cast", ["x"], ["y"], to=cast)], kind)
    result = optimize(model, settings)
    assert result.shipped == "reference"
    assert result.measured_us is None
    assert "nothing to schedule" in result.reason
    executor = open_executor(model, ScheduleDocument.from_json(result.document.to_json()), threads=2)
    executor.close()


def test_progress_stays_between_zero_and_the_total(settings: OptimizeSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    script_stages(monkeypatch)
    script_models(monkeypatch, FASTEST["iosched"])
    said: list[tuple[int, int | None, str]] = []

    class Recorder:
        def progress(self, done: int, total: int | None, text: str) -> None:
            said.append((done, total, text))

    optimize(fire(), settings, Recorder())
    assert said
    assert all(done >= 0 and (total is None or done <= total) and text for done, total, text in said)


def test_wrong_settings_are_refused(settings: OptimizeSettings) -> None:
    with pytest.raises(UsageError, match="strategy"):
        optimize(fire(), replace(settings, strategy="fastest"))
    with pytest.raises(UsageError, match="did you mean v100"):
        optimize(fire(), replace(settings, device="v101"))
    with pytest.raises(DeviceError, match=r"CuPy is not installed|no GPU"):
        optimize(fire(), replace(settings, device="cuda:99"))
    with pytest.raises(UsageError, match="--precision"):
        optimize(fire(), replace(settings, precision="tf32"))


def test_every_count_is_reported(settings: OptimizeSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    script_stages(monkeypatch)
    script_models(monkeypatch, FASTEST["iosched"])
    result = optimize(fire(), settings)
    for field in fields(result):
        if field.name in ("states", "transitions", "stages", "signatures", "kernels_before", "kernels_after"):
            assert getattr(result, field.name) > 0
    assert result.cost == "measured"
    assert result.device_kind == "cpu"


@pytest.mark.parametrize(("rested", "is_said"), [(35.0, False), (60.0, True)])
def test_a_schedule_that_is_slower_after_idle_ships_with_a_note(
    rested: float, is_said: bool, settings: OptimizeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Consecutive runs decide; a second call, which measures nothing, gives the same result."""
    rested_us = {"iosched": rested, "sequential": 50.0, "greedy": 50.0, "reference": 50.0}

    def rounds_of(candidates: Mapping[str, object], *_: object) -> TakeRound:
        del candidates
        return lambda names: scripted_round({name: LATENCIES_US.get(name, 99.0) for name in names}, rested_us)

    script_stages(monkeypatch)
    script_models(monkeypatch, LATENCIES_US)
    monkeypatch.setattr(cpu_open, "rounds_of", rounds_of)
    for _ in range(2):
        result = optimize(fire(), settings)
        assert (result.shipped, result.measured_us) == ("iosched", 10.0)
        assert result.rested_us == {"iosched": rested, "sequential": 50.0, "greedy": 50.0, "reference": 50.0}
        assert any("After idle, the schedule found runs at 0.833x" in note for note in result.notes) == is_said


def test_rounds_of_whole_models_are_checked_for_other_processes(
    settings: OptimizeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real models and a scripted load: the next call, without load, compares them again and keeps the result."""
    script_stages(monkeypatch)
    without_openvino(monkeypatch)
    monkeypatch.setattr(CpuStageCost, "watched_cpus", (0, 1))
    monkeypatch.setattr(OnnxruntimeBaseline, "best", lambda plain, _: plain.settings[0])
    busy_s = itertools.count(0, 1_000)
    with monkeypatch.context() as others:
        others.setattr(disturbance, "interference", measured_taken)
        others.setattr(disturbance, "read_load", lambda _: Load(time.monotonic(), 0.0, next(busy_s), 0.0))
        first = optimize(fire(), replace(settings, strategy="greedy"))
    assert any("rounds of whole models: repeat this" in note for note in first.notes)
    assert first.verdict == "undecided"
    second = optimize(fire(), replace(settings, strategy="greedy"))
    assert not any("interfered" in note for note in second.notes)
    assert second.ratio is not None
