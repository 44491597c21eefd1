"""The analytic model beside measured stages; those of the CPU here stand in for those of a GPU elsewhere."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from scripted import fire

from iosched.profiler.devices.analytic.cost import AnalyticCost
from iosched.profiler.devices.analytic.scaled import ScaledCost
from iosched.profiler.devices.cost import known_us
from iosched.profiler.devices.cpu.device import CpuDevice
from iosched.profiler.devices.device import OpenModelHere, OpenSettings
from iosched.profiler.devices.elsewhere import MeasuredElsewhere
from iosched.profiler.devices.gpus import gpu_named
from iosched.profiler.store.database import ProfileDatabase
from iosched.scheduler.baselines import greedy, sequential
from iosched.scheduler.schedule import Stage, Strategy
from iosched.scheduler.search import search
from iosched.scheduler.signature import stage_signature


def analytic() -> AnalyticCost:
    gpu = gpu_named("v100")
    assert gpu is not None
    return AnalyticCost(fire().graph, gpu)


def scaled(known: Callable[[Stage], float | None], *stages: Stage) -> ScaledCost:
    """The model of `fire` on a V100, where these stages, and what is like them, were measured."""
    cost = analytic()
    latency_us = {signature(stage): us for stage in stages if (us := known(stage)) is not None}
    return ScaledCost(cost, MeasuredElsewhere("a V100", latency_us, signature, cost.operator_key))


def signature(stage: Stage) -> str:
    return stage_signature(fire().graph, stage)


def alone(name: str) -> Stage:
    return Stage(Strategy.CONCURRENT, ((name,),))


PAIR = Stage(Strategy.CONCURRENT, (("f1",), ("f3",)))
MERGED = Stage(Strategy.MERGE, (("f1",), ("f3",)))


@contextmanager
def on_cpu(folder: Path) -> Iterator[OpenModelHere]:
    with (
        ProfileDatabase(folder / "p.db") as database,
        closing(CpuDevice().open(fire(), OpenSettings(threads=2), database)) as opened,
    ):
        yield opened


def test_schedules_measured_on_a_cpu_take_what_they_took_there(tmp_path: Path) -> None:
    stages = [*sequential(fire().graph).stages, *greedy(fire().graph).stages]
    with on_cpu(tmp_path) as there:
        took = {signature(stage): there.cost.stage_latency_us(stage) for stage in stages}
        cost = scaled(lambda stage: known_us(there.cost, stage), *stages)
    assert cost.measured.share(stages, cost.stage_latency_us) == pytest.approx(1)
    for stage in stages:
        assert cost.lower_bound_us(stage) == cost.stage_latency_us(stage) == took[signature(stage)]
        assert cost.stage_latency_us(stage) != analytic().stage_latency_us(stage)


def test_an_operator_that_was_not_measured_is_scaled_by_the_median_of_those_that_were() -> None:
    factors, plain = {"gs": 2.0, "f1": 3.0, "f3": 7.0}, analytic()
    cost = scaled(lambda each: factors[each.operators[0]] * plain.stage_latency_us(each), *map(alone, factors))
    assert cost.factor == pytest.approx(3)
    assert cost.stage_latency_us(alone("fc")) == pytest.approx(3 * plain.stage_latency_us(alone("fc")))
    assert cost.stage_latency_us(alone("g3")) == pytest.approx(7 * plain.stage_latency_us(alone("f3")))


@pytest.mark.parametrize("stage", [PAIR, MERGED])
def test_a_stage_that_was_not_measured_is_scaled_as_its_operators_are(stage: Stage) -> None:
    factors = {"f1": 3.0, "f3": 7.0}
    plain = analytic()
    cost = scaled(lambda each: factors[each.operators[0]] * plain.stage_latency_us(each), alone("f1"), alone("f3"))
    us = {name: plain.stage_latency_us(alone(name)) for name in factors}
    factor = (3 * us["f1"] + 7 * us["f3"]) / (us["f1"] + us["f3"])
    assert cost.stage_latency_us(stage) == pytest.approx(factor * plain.stage_latency_us(stage))
    assert cost.lower_bound_us(stage) == pytest.approx(factor * plain.lower_bound_us(stage))


def test_operators_one_after_another_take_what_they_take_alone() -> None:
    cost = scaled(lambda stage: 100.0 if stage.operators == ("g3",) else 5.0, alone("g3"), alone("gs"))
    in_order = Stage(Strategy.CONCURRENT, (("gs", "g3"),))
    assert cost.stage_latency_us(in_order) == pytest.approx(105)


def test_only_operators_alone_scale_what_was_not_measured() -> None:
    cost = scaled(lambda stage: 1.0, PAIR)
    assert cost.stage_latency_us(PAIR) == 1
    assert cost.stage_latency_us(MERGED) == analytic().stage_latency_us(MERGED)
    assert cost.factor == 1


def test_a_stage_that_did_not_run_there_is_in_no_schedule() -> None:
    cost = scaled(lambda stage: math.inf, PAIR, MERGED)
    found = search(cost.graph, cost)
    assert math.isfinite(found.schedule.predicted_us or math.inf)
    assert not {PAIR.groups} & {stage.groups for stage in found.schedule.stages}
    assert cost.measured.share([PAIR], cost.stage_latency_us) == 0


def test_an_operator_that_takes_no_time_there_takes_none_in_a_stage_either() -> None:
    """Where a Concat is placed by the operators that it reads, it runs no kernel."""
    cost = scaled(lambda stage: 0.0, alone("fc"))
    assert cost.factor == 1
    assert cost.stage_latency_us(alone("gc")) == 0
    behind = Stage(Strategy.CONCURRENT, (("f1", "fc"),))
    assert cost.stage_latency_us(behind) == pytest.approx(analytic().stage_latency_us(alone("f1")))


def test_the_share_is_of_the_latency_and_not_of_the_stages() -> None:
    cost = scaled(lambda stage: 30.0, PAIR)
    rest = alone("gs")
    rest_us = cost.stage_latency_us(rest)
    assert cost.measured.share([PAIR, rest], cost.stage_latency_us) == pytest.approx(30 / (30 + rest_us))


def test_no_stage_is_faster_than_its_bound() -> None:
    cost = scaled(lambda stage: 40.0 if len(stage.operators) == 1 else 50.0, alone("f1"), alone("gs"), PAIR)
    stages = [*greedy(fire().graph).stages, *sequential(fire().graph).stages, PAIR, MERGED]
    assert all(cost.lower_bound_us(stage) <= cost.stage_latency_us(stage) for stage in stages)
