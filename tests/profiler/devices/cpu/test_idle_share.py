"""The share of the cores' time in which they wait while a stage runs, by latencies in the profile database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from onnx import helper
from small_models import loaded, proto_of, weight

from iosched.models.model import Model
from iosched.profiler.devices.cpu.measured_cost import CpuStageCost
from iosched.profiler.measuring.statistics import Measurement, summarize
from iosched.profiler.store.database import ProfileDatabase
from iosched.runtime.cpu.backend import CpuBackend
from iosched.scheduler.schedule import Block, Division, Schedule, Stage, Strategy

ONE_US = {"a": 90.0, "b": 40.0, "c": 20.0, "small": 4.0}
ALL_US = {"a": 30.0, "b": 25.0, "c": 15.0, "small": 4.0}
STAGE_US = 60.0


def several() -> Model:
    """Three different convolutions that are large enough to be split over four lanes, and one that is not."""
    nodes = [helper.make_node("Conv", ["x", f"w{name}"], [name], pads=[1] * 4) for name in "abc"]
    nodes.append(helper.make_node("Conv", ["z", "wsmall"], ["small"]))
    weights = {f"w{name}": weight(count, 64, 3, 3) for name, count in (("a", 64), ("b", 48), ("c", 32))}
    inputs = {"x": (1, 64, 56, 56), "z": (1, 8, 4, 4)}
    return loaded(proto_of(nodes, inputs, [*"abc", "small"], {**weights, "wsmall": weight(8, 8, 1, 1)}))


def timed(cost: CpuStageCost, stage: Stage, lanes: int, worse_than_us: float | None = None) -> Measurement:
    del worse_than_us
    if len(stage.operators) > 1:
        return summarize([STAGE_US] * 9)
    return summarize([(ONE_US if lanes == 1 else ALL_US)[stage.operators[0]]] * 9)


@pytest.fixture
def cost(monkeypatch: pytest.MonkeyPatch) -> Iterator[CpuStageCost]:
    """Four lanes, and a database with the latencies of single operators on one lane and on all."""
    monkeypatch.setattr(CpuStageCost, "_timed", timed)
    with ProfileDatabase(":memory:") as database, CpuBackend(several(), lanes=4) as backend:
        found = CpuStageCost(backend, database)
        for name in ONE_US:
            found.operator_work_us(name)
        yield found


def concurrent(*groups: str, lanes: tuple[tuple[int, ...], ...] | None = None) -> Stage:
    division = None if lanes is None else Division(4, lanes)
    return Stage(Strategy.CONCURRENT, tuple(tuple(group.split()) for group in groups), division=division)


def measured(cost: CpuStageCost, stage: Stage) -> Stage:
    cost.stage_latency_us(stage)
    return stage


def test_an_operator_that_is_cut_over_all_lanes_leaves_none_idle(cost: CpuStageCost) -> None:
    assert cost.idle_share(concurrent("a")) == 0.0
    assert cost.idle_share(concurrent("c")) == 0.0


def test_an_operator_that_runs_on_one_lane_leaves_the_others_idle(cost: CpuStageCost) -> None:
    assert cost.idle_share(concurrent("small")) == pytest.approx(3 / 4)


def test_groups_keep_their_own_lanes_busy(cost: CpuStageCost) -> None:
    """On one lane each; and a on two lanes, on which it takes 10 us and half of 80."""
    on_one = measured(cost, concurrent("a", "b", "c", lanes=((0,), (1,), (2,))))
    assert cost.idle_share(on_one) == pytest.approx(1 - (90 + 40 + 20) / (4 * STAGE_US))
    on_two = measured(cost, concurrent("a", "b", "c", lanes=((0, 1), (2,), (3,))))
    assert cost.idle_share(on_two) == pytest.approx(1 - (2 * (10 + 80 / 2) + 40 + 20) / (4 * STAGE_US))


def test_operators_of_a_group_add_up(cost: CpuStageCost) -> None:
    in_a_row = measured(cost, concurrent("a small", "b", lanes=((0, 1), (2, 3))))
    b_us = 2 * (20 + 20 / 2)
    assert cost.idle_share(in_a_row) == pytest.approx(1 - (100 + 4 + b_us) / (4 * STAGE_US))


def test_the_idle_share_of_unmeasured_and_merged_stages_is_unknown(cost: CpuStageCost) -> None:
    asked = cost.measurements
    assert cost.idle_share(concurrent("a", "b")) is None
    assert cost.idle_share(Stage(Strategy.MERGE, (("a",), ("b",)))) is None
    assert cost.idle_share(Stage(Strategy.SESSION, (("a",), ("b",)))) is None
    with ProfileDatabase(":memory:") as empty:
        fresh = CpuStageCost(cost.backend, empty)
        assert fresh.idle_share(concurrent("a")) is None
    assert (cost.measurements, fresh.measurements) == (asked, 0)


@pytest.mark.parametrize(("lanes", "of_a"), [(1, 1), (2, 1), (4, 2)])
def test_lanes_of_units_are_those_of_the_plan(lanes: int, of_a: int) -> None:
    stages = (concurrent("a", "b small"), concurrent("c"))
    with (
        CpuBackend(several(), lanes=lanes) as backend,
        closing(backend.compile(Schedule((Block(0, stages),)))) as whole,
    ):
        found = {name: count for stage in stages for name, count in backend.unit_lanes(stage).items()}
        run_on: dict[str, set[int]] = {name: set() for name in found}
        for origin in whole.origins:
            for name in origin.operators:
                run_on[name].add(origin.lane)
    assert found == {name: len(own) for name, own in run_on.items()}
    assert (found["a"], found["c"], found["small"]) == (of_a, lanes, 1)
