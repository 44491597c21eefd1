"""The latency of a schedule on a device that it was not made for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest
from networks import zoo_model
from scripted import fire

from iosched.jobs.matrix_cells import schedule_latency_us
from iosched.jobs.schedules import priced
from iosched.profiler.devices.analytic.device import SimulatedGpu
from iosched.profiler.devices.cpu import open as cpu_open
from iosched.profiler.devices.cpu.device import CpuDevice
from iosched.profiler.devices.cpu.measured_cost import CpuStageCost
from iosched.profiler.devices.gpus import gpu_named
from iosched.profiler.devices.open_settings import OpenSettings
from iosched.profiler.store.database import ProfileDatabase
from iosched.scheduler.baselines import sequential
from iosched.scheduler.cost import CostQuestion
from iosched.scheduler.schedule import Block, Schedule, Stage, Strategy


def test_a_merge_that_only_the_cpu_supports_runs_side_by_side_on_a_gpu() -> None:
    model = zoo_model("squeezenet", 1)
    gpu = gpu_named("v100")
    assert gpu is not None
    simulated = SimulatedGpu(gpu).open(model, OpenSettings())
    names = ("fire2/expand1x1", "fire2/bypass")  # of unlike inputs
    before, after = list(sequential(model.graph).stages)[:4], list(sequential(model.graph).stages)[4:]
    after = [stage for stage in after if not {*stage.operators}.intersection(names)]
    merge, concurrent = (
        Stage(strategy, tuple((name,) for name in names)) for strategy in (Strategy.MERGE, Strategy.CONCURRENT)
    )
    expected = sum(map(simulated.cost.stage_latency_us, [*before, concurrent, *after]))
    assert schedule_latency_us(simulated, _one(*before, merge, *after)) == expected


def test_a_merge_that_this_cpu_cannot_do_is_costed_side_by_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        CpuStageCost, "remeasure", lambda self, stage: math.inf if stage.strategy is Strategy.MERGE else 7.0
    )
    with (
        ProfileDatabase(tmp_path / "p.db") as database,
        closing(CpuDevice().open(fire(), OpenSettings(threads=2), database)) as there,
    ):
        names = [operator.name for operator in there.graph.operators]
        stages = (Stage(Strategy.CONCURRENT, ((names[0],),)), Stage(Strategy.MERGE, tuple((n,) for n in names[1:3])))
        rest = tuple(Stage(Strategy.CONCURRENT, ((name,),)) for name in names[3:])
        assert schedule_latency_us(there, _one(*stages, *rest)) == 7.0 * (2 + len(rest))


def test_exactly_the_stages_asked_for_are_prefetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    handed: list[list[CostQuestion]] = []
    asked: list[CostQuestion] = []

    class Prefetching(CpuStageCost):
        def prefetch(self, questions: Sequence[CostQuestion]) -> None:
            handed.append(list(questions))

        def stage_latency_us(self, stage: Stage) -> float:
            asked.append(CostQuestion(stage))
            return 7.0

        def remeasure(self, stage: Stage) -> float:
            asked.append(CostQuestion(stage, "again"))
            return 7.0

    monkeypatch.setattr(cpu_open, "CpuStageCost", Prefetching)
    with (
        ProfileDatabase(tmp_path / "p.db") as database,
        closing(CpuDevice().open(fire(), OpenSettings(threads=2), database)) as there,
    ):
        schedule = sequential(there.graph)
        assert schedule_latency_us(there, schedule) == priced(there, schedule).predicted_us
    n_stages = len(tuple(schedule.stages))
    assert [len(each) for each in handed] == [n_stages] * 2
    assert [question for each in handed for question in each] == asked


def _one(*stages: Stage) -> Schedule:
    return Schedule((Block(0, stages),))
