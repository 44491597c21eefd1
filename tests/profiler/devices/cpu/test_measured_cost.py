"""Stages are measured once for each signature, which does not depend on names, and are kept in the database."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from faulty_plans import fail_where, has, is_side_by_side
from scripted import LATENCIES_US, fire, script_models, script_stages

from iosched.jobs.optimize import OptimizeSettings, optimize
from iosched.models.errors import PlanError
from iosched.profiler.devices.cpu import measured_cost as cpu_cost
from iosched.profiler.devices.cpu.cache_flush import flushed_nbytes_of
from iosched.profiler.devices.cpu.measured_cost import STAGE_SETTINGS, CpuStageCost
from iosched.profiler.devices.measured_costs import known_us
from iosched.profiler.measuring import disturbance
from iosched.profiler.measuring.statistics import Measurement, measure, summarize
from iosched.profiler.store.database import ProfileDatabase
from iosched.profiler.store.tables import StageRow
from iosched.runtime.cpu.backend import CompiledStage, CpuBackend
from iosched.scheduler.cost import Curtailable, Disturbable, OperatorBounds
from iosched.scheduler.schedule import Stage, Strategy


def alone(*names: str) -> Stage:
    return Stage(Strategy.CONCURRENT, tuple((name,) for name in names))


def merged(*names: str) -> Stage:
    return Stage(Strategy.MERGE, tuple((name,) for name in names))


def test_a_stage_is_measured_once_for_each_signature(monkeypatch: pytest.MonkeyPatch) -> None:
    """The operators f1 and g1 differ only in their names; f3 has another kernel."""
    measured = script_stages(monkeypatch)
    with ProfileDatabase(":memory:") as database, CpuBackend(fire(), lanes=2) as backend:
        cost = CpuStageCost(backend, database)
        assert cost.stage_latency_us(alone("f1")) == cost.stage_latency_us(alone("f1"))
        assert cost.stage_latency_us(alone("f1")) == cost.stage_latency_us(alone("g1"))
        assert (len(measured), cost.measurements, cost.signatures, cost.cache_hits) == (1, 1, 1, 0)
        assert cost.stage_latency_us(alone("f3")) != cost.stage_latency_us(alone("f1"))
        assert len(measured) == 2
        together = cost.stage_latency_us(alone("f1", "f3"))
        assert together != cost.stage_latency_us(merged("f1", "f3"))
        assert together == cost.stage_latency_us(alone("g3", "g1"))
        assert len(measured) == 4


def test_a_stage_that_fails_is_infinitely_slow_and_not_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    measured = script_stages(monkeypatch)
    with ProfileDatabase(tmp_path / "p.db") as database, CpuBackend(fire(), lanes=2) as backend:
        cost = CpuStageCost(backend, database)
        with monkeypatch.context() as patch:
            fail_where(patch, is_side_by_side, KeyError("k"))
            for _ in range(2):
                assert cost.stage_latency_us(alone("f1", "f3")) == math.inf
            assert cost.remeasure(alone("f1", "f3")) == math.inf
            fail_where(patch, has("g3"), KeyError("k"))
            with pytest.raises(PlanError, match="iosched's plan fails at Conv 'g3': KeyError: 'k'"):
                cost.stage_latency_us(alone("g3"))
        assert (len(measured), cost.measurements) == (0, 0)
        assert list(cost.faults.found) == ["the stage of Conv 'f1', Conv 'f3'"]
        assert [row for row in database.rows() if isinstance(row, StageRow)] == []
        assert CpuStageCost(backend, database).stage_latency_us(alone("f1", "f3")) < math.inf


def test_a_stage_in_the_database_is_not_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = script_stages(monkeypatch)
    reported = []
    for _ in range(2):
        with ProfileDatabase(tmp_path / "p.db") as database, CpuBackend(fire(), lanes=2) as backend:
            cost = CpuStageCost(backend, database, on_measured=lambda: reported.append(1))
            latency = cost.stage_latency_us(alone("f1", "f3"))
    assert latency == cost.stage_latency_us(alone("f1", "f3"))
    assert (len(measured), len(reported), cost.measurements, cost.cache_hits) == (1, 1, 0, 1)


def test_other_lanes_are_another_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = script_stages(monkeypatch)
    for lanes in (1, 2):
        with ProfileDatabase(tmp_path / "p.db") as database, CpuBackend(fire(), lanes=lanes) as backend:
            CpuStageCost(backend, database).stage_latency_us(alone("f1"))
    assert len(measured) == 2


def test_other_shapes_are_another_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = script_stages(monkeypatch)
    for batch in (1, 2):
        with ProfileDatabase(tmp_path / "p.db") as database, CpuBackend(fire(batch), lanes=2) as backend:
            CpuStageCost(backend, database).stage_latency_us(alone("f1"))
    assert len(measured) == 2


def test_a_stage_that_cannot_merge_is_infinite_and_stays_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = script_stages(monkeypatch)
    monkeypatch.setattr("iosched.runtime.cpu.backend._AS_ONE", {Strategy.MERGE: lambda *_: None})
    for _ in range(2):
        with ProfileDatabase(tmp_path / "p.db") as database, CpuBackend(fire(), lanes=2) as backend:
            cost = CpuStageCost(backend, database)
            assert cost.stage_latency_us(merged("f1", "f3")) == math.inf
    assert measured == []
    assert cost.cache_hits == 1


def test_the_bounds_of_a_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The work of a unit is its time on one lane, or on all lanes together if that is less."""
    script_stages(monkeypatch)
    with ProfileDatabase(":memory:") as database, CpuBackend(fire(), lanes=2) as backend:
        cost = CpuStageCost(backend, database)
        assert isinstance(cost, OperatorBounds)
        work, latency = cost.operator_work_us("f3"), cost.operator_latency_us("f3")
        assert 0 < work <= 2 * latency
        assert cost.lower_bound_us(merged("f1", "f3")) == 0.0
        assert cost.lanes == 2


def test_real_measurements_of_a_stage_keep_their_samples(tmp_path: Path) -> None:
    with ProfileDatabase(tmp_path / "p.db") as database, CpuBackend(fire(), lanes=2) as backend:
        cost = CpuStageCost(backend, database)
        for stage in (alone("f1"), alone("f1", "f3"), merged("f1", "f3"), alone("fs")):
            assert 0 < cost.stage_latency_us(stage) < 1e6
        assert database.stats().measurements == 5  # with the calibration kernel


def test_measuring_again_gives_one_new_latency_and_keeps_the_first_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = script_stages(monkeypatch)
    answers = []
    for _ in range(2):
        with ProfileDatabase(tmp_path / "p.db") as database, CpuBackend(fire(), lanes=2) as backend:
            cost = CpuStageCost(backend, database)
            stage = alone("f1", "f3")
            answers.append((cost.stage_latency_us(stage), cost.remeasure(stage), cost.stage_latency_us(stage)))
    first, again, still = answers[0]
    assert first == still != again
    assert answers[0] == answers[1]
    assert len(measured) == 2


def test_the_cache_flush_before_a_stage_is_about_the_size_of_the_weights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A given number is used as it is."""
    asked: list[int] = []
    whole = CompiledStage.time

    def watched(self: CompiledStage, repeats: int, *, flush_nbytes: int = 0) -> tuple[float, ...]:
        asked.append(flush_nbytes)
        return whole(self, repeats, flush_nbytes=flush_nbytes)

    with ProfileDatabase(":memory:") as database, CpuBackend(fire(), lanes=2) as backend:
        monkeypatch.setattr(CompiledStage, "time", watched)
        for given, wanted in ((None, flushed_nbytes_of(backend)), (0, 0), (1 << 20, 1 << 20)):
            asked.clear()
            cost = CpuStageCost(backend, database, flush_nbytes=given)
            cost.stage_latency_us(alone("f1"))
            assert set(asked) == {0, wanted}  # the calibration kernel is always in the caches
            assert cost.measurements == 1  # and another flush is another measurement


def test_the_calibration_kernel_runs_only_around_kept_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    whole = CompiledStage.time

    def watched(self: CompiledStage, repeats: int, *, flush_nbytes: int = 0) -> tuple[float, ...]:
        asked.append("stage" if flush_nbytes else "yardstick")
        return whole(self, repeats, flush_nbytes=flush_nbytes)

    with ProfileDatabase(":memory:") as database, CpuBackend(fire(), lanes=2) as backend:
        cost = CpuStageCost(backend, database)
        cost.stage_latency_us(alone("f3"))  # and the reference
        monkeypatch.setattr(CompiledStage, "time", watched)
        cost.stage_latency_us(alone("f1"))
    warm_ups, kept = asked[: STAGE_SETTINGS.warmup], asked[STAGE_SETTINGS.warmup :]
    assert warm_ups == ["stage"] * STAGE_SETTINGS.warmup
    assert kept[::2] == ["yardstick"] * (len(kept) // 2 + 1)
    assert set(kept[1::2]) == {"stage"}


class Slow:
    """Makes all stages take 120 us, with samples that differ by up to a quarter, and counts the samples."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.samples: list[int] = []
        self._turn = itertools.count()
        monkeypatch.setattr(cpu_cost, "measure", self._measure)
        monkeypatch.setattr(CpuStageCost, "_steadied", lambda *_: self._run)

    def _run(self, count: int) -> list[float]:
        return [90.0 + 20.0 * (next(self._turn) % 4) for _ in range(count)]

    def _measure(self, run_batch: Callable[[int], Sequence[float]], *words: Any, **options: Any) -> Measurement:
        self._turn = itertools.count()
        found = measure(run_batch, *words, **options | {"warm_up": None})
        self.samples.append(len(found.samples_us))
        return found


def test_a_stage_that_is_clearly_too_slow_is_measured_roughly(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow(monkeypatch)
    with ProfileDatabase(":memory:") as database, CpuBackend(fire(), lanes=2) as backend:
        cost = CpuStageCost(backend, database)
        assert isinstance(cost, Curtailable)
        assert cost.latency_unless_worse_us(alone("f1"), 50.0) == 130.0  # the median of the first six
        assert cost.latency_unless_worse_us(alone("f3"), 110.0) == cost.stage_latency_us(alone("f3")) == 120.0
        assert slow.samples == [STAGE_SETTINGS.min_samples, STAGE_SETTINGS.max_samples]
        assert (cost.measurements, cost.signatures) == (2, 2)


def test_a_rough_measurement_does_not_count_where_a_better_one_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow(monkeypatch)
    answers = []
    for _ in range(3):  # the first measures, the others ask the same
        with ProfileDatabase(tmp_path / "p.db") as database, CpuBackend(fire(), lanes=2) as backend:
            cost = CpuStageCost(backend, database)
            assert answers or cost.known(alone("f1")) is None
            rough = cost.latency_unless_worse_us(alone("f1"), 50.0)
            assert answers or cost.known(alone("f1")) is None
            enough = cost.latency_unless_worse_us(alone("f1"), 100.0)
            answers.append((rough, enough, cost.stage_latency_us(alone("f1")), cost.remeasure(alone("f1"))))
    assert slow.samples == [STAGE_SETTINGS.min_samples] + [STAGE_SETTINGS.max_samples] * 2
    assert set(answers) == {(130.0, 120.0, 120.0, 120.0)}
    assert cost.measurements == 0


def test_a_stage_measured_in_full_is_not_measured_roughly(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow(monkeypatch)
    with ProfileDatabase(":memory:") as database, CpuBackend(fire(), lanes=2) as backend:
        cost = CpuStageCost(backend, database)
        assert cost.stage_latency_us(alone("f1")) == cost.latency_unless_worse_us(alone("f1"), 50.0) == 120.0
        again = CpuStageCost(backend, database)
        assert again.latency_unless_worse_us(alone("f1"), 50.0) == 120.0
        assert len(slow.samples) == 1


def test_a_stage_that_cannot_merge_is_infinite_for_every_query(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("iosched.runtime.cpu.backend._AS_ONE", {Strategy.MERGE: lambda *_: None})
    with ProfileDatabase(":memory:") as database, CpuBackend(fire(), lanes=2) as backend:
        cost = CpuStageCost(backend, database)
        assert cost.latency_unless_worse_us(merged("f1", "f3"), 50.0) == math.inf
        assert cost.stage_latency_us(merged("f1", "f3")) == math.inf


def test_every_stage_of_a_found_schedule_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stages are looked up by the same keys as those by which they were stored."""
    script_stages(monkeypatch)
    script_models(monkeypatch, {**LATENCIES_US, "greedy": 10.0})  # it is the schedule found
    result = optimize(fire(), OptimizeSettings(threads=2, profile_db=tmp_path / "p.db", strategy="concurrent"))
    with ProfileDatabase(tmp_path / "p.db") as database, CpuBackend(fire(), lanes=2) as backend:
        cost = CpuStageCost(backend, database)
        for stage in result.schedule.stages:
            units = tuple(
                tuple(dict.fromkeys(backend.coarse.units.unit_of[n] for n in group)) for group in stage.groups
            )
            assert known_us(cost, Stage(stage.strategy, units)) == pytest.approx(stage.predicted_us)
        for unit in backend.graph.operators:
            assert cost.known_work_us(unit.name) == cost.operator_work_us(unit.name)
        assert cost.measurements == 0


def test_an_empty_database_knows_no_latency() -> None:
    with ProfileDatabase(None) as database, CpuBackend(fire(), lanes=2) as backend:
        cost = CpuStageCost(backend, database)
        name = backend.graph.operators[0].name
        assert known_us(cost, Stage(Strategy.CONCURRENT, ((name,),))) is None
        assert cost.known_work_us(name) is None


class Burst:
    """While another process uses the cores, stages take twice as long, and the system reports its load."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, lasting: int) -> None:
        self.measured = 0
        self.lasting = lasting
        monkeypatch.setattr(cpu_cost, "measure", self._measure)
        monkeypatch.setattr(disturbance, "disturbances", self._disturbances)

    def _measure(self, run_batch: object, settings: object, **_: object) -> Measurement:
        self.measured += 1
        return summarize([200.0 if self.measured <= self.lasting else 100.0] * 7)

    def _disturbances(self, *_: object) -> tuple[str, ...]:
        return ("other processes used 50% of the cores",) if self.measured <= self.lasting else ()


def test_a_disturbed_stage_is_kept_as_disturbed_and_measured_again_on_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    burst = Burst(monkeypatch, lasting=2)
    with ProfileDatabase(tmp_path / "p.db") as database, CpuBackend(fire(), lanes=2) as backend:
        cost = CpuStageCost(backend, database)
        assert isinstance(cost, Disturbable)
        assert cost.stage_latency_us(alone("f1")) == 200.0
        assert cost.stage_latency_us(alone("f1")) == 200.0
        assert cost.disturbed_low_us(alone("f1")) == 80.0
        known = cost.known(alone("f1"))
        assert known is not None
        assert (known.low_us, known.high_us) == (80.0, 500.0)
        (row,) = (row for row in database.rows() if isinstance(row, StageRow))
        assert row.disturbed_by == "other processes used 50% of the cores"
        assert "1 of 1 stages" in cost.remarks[0]
    with ProfileDatabase(tmp_path / "p.db") as database, CpuBackend(fire(), lanes=2) as backend:
        later = CpuStageCost(backend, database)
        assert later.stage_latency_us(alone("f1")) == 200.0, "known"
        later.try_again()
        assert later.stage_latency_us(alone("f1")) == 200.0, "measured again, and disturbed once more"
        later.try_again()
        assert later.stage_latency_us(alone("f1")) == 100.0
        assert later.disturbed_low_us(alone("f1")) is None
        assert later.remarks == ()
    assert burst.measured == 3


def test_a_disturbed_stage_counts_once_for_all_its_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stage that was measured roughly, in full and again is one stage."""
    Burst(monkeypatch, lasting=99)
    with ProfileDatabase(None) as database, CpuBackend(fire(), lanes=2) as backend:
        cost = CpuStageCost(backend, database)
        for name in ("f1", "f3"):
            cost.latency_unless_worse_us(alone(name), 10.0)
            cost.remeasure(alone(name))
        assert {row.turn for row in database.rows() if isinstance(row, StageRow)} == {"rough", "first", "again"}
        assert "2 of 2 stages" in cost.remarks[0]


def test_a_disturbed_stage_gets_only_the_minimum_of_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow(monkeypatch)
    with ProfileDatabase(None) as database, CpuBackend(fire(), lanes=2) as backend:
        cost = CpuStageCost(backend, database)
        cost.stage_latency_us(alone("f1"))
        monkeypatch.setattr(disturbance, "disturbances", lambda *_: ("other processes used 50% of the cores",))
        cost.stage_latency_us(alone("f3"))
        assert slow.samples == [STAGE_SETTINGS.max_samples, STAGE_SETTINGS.min_samples]
        assert cost.disturbed == 1


def test_the_deciding_measurement_is_taken_until_undisturbed_or_three_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for lasting, latency_us, taken in ((0, 100.0, 1), (1, 100.0, 2), (2, 100.0, 3), (9, 200.0, 3)):
        with ProfileDatabase(None) as database, CpuBackend(fire(), lanes=2) as backend:
            cost = CpuStageCost(backend, database)
            Burst(monkeypatch, lasting=0)
            assert cost.stage_latency_us(alone("f1")) == 100.0
            burst = Burst(monkeypatch, lasting)
            assert [cost.remeasure(alone("f1")) for _ in range(2)] == [latency_us] * 2
            assert burst.measured == taken


def test_a_disturbed_rough_measurement_rules_no_stage_out_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    Burst(monkeypatch, lasting=1)
    monkeypatch.setattr(cpu_cost, "is_thorough", lambda *_: False)
    with ProfileDatabase(None) as database, CpuBackend(fire(), lanes=2) as backend:
        cost = CpuStageCost(backend, database)
        assert cost.latency_unless_worse_us(alone("f1"), 150.0) == 200.0
        assert cost.disturbed_low_us(alone("f1")) == 80.0
        cost.try_again()
        assert cost.latency_unless_worse_us(alone("f1"), 150.0) == 100.0
