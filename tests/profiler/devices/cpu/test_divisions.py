"""Likely divisions contain the best of all that give bundles of groups separate lanes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper
from scripted import LATENCIES_US, script_models
from small_models import loaded, proto_of, weight

from iosched.jobs.optimize import OptimizeSettings, optimize
from iosched.models.model import Model
from iosched.profiler.devices.cpu.divisions import (
    LEAST_GAIN,
    MOST_OTHERS,
    GroupTime,
    Lanes,
    likely_divisions,
    makespan_us,
)
from iosched.profiler.devices.cpu.measured_cost import CpuStageCost
from iosched.profiler.devices.measured_costs import known_us
from iosched.profiler.measuring.statistics import Measurement, summarize
from iosched.profiler.store.database import ProfileDatabase
from iosched.runtime.cpu.backend import CpuBackend
from iosched.runtime.cpu.calls import assign_lanes
from iosched.scheduler.cost import Dividing
from iosched.scheduler.document import ScheduleDocument
from iosched.scheduler.latencies import makespans
from iosched.scheduler.schedule import Division, Schedule, Stage, Strategy, structure_text

WORK = st.tuples(st.integers(0, 20), st.integers(0, 80)).map(lambda pair: GroupTime(*map(float, pair)))


def guessed(times: list[GroupTime], lanes: int) -> Lanes:
    return assign_lanes([time.on(1) for time in times], lanes)


def every_division(count: int, lanes: int) -> Iterator[Lanes]:
    """All ways to give each of `count` groups a range of lanes, where two ranges are equal or have no lane in common,
    and not all are equal; a single lane, where there are as many groups as lanes or more."""
    widest = 1 if count >= lanes else lanes
    ranges = [(*range(start, start + size),) for size in range(1, widest + 1) for start in range(lanes - size + 1)]
    for groups in product(ranges, repeat=count):
        different = set(groups)
        apart = sum(map(len, different)) == len({lane for own in different for lane in own})
        if apart and len(different) > 1:
            yield groups


@given(st.lists(WORK, min_size=2, max_size=4), st.integers(2, 4))
def test_no_division_is_better_than_the_best_of_those_measured(times: list[GroupTime], lanes: int) -> None:
    rule = guessed(times, lanes)
    found = likely_divisions(times, lanes, rule)
    least = min(makespan_us(times, groups) for groups in every_division(len(times), lanes))
    if found:
        assert found[0][1] * makespan_us(times, rule) <= least + 1e-9
    else:
        assert makespan_us(times, rule) * (1 - LEAST_GAIN) <= least + 1e-9


@given(st.lists(WORK, min_size=1, max_size=9), st.integers(1, 16))
def test_few_are_measured_and_none_that_looks_slower(times: list[GroupTime], lanes: int) -> None:
    rule = guessed(times, lanes)
    found = likely_divisions(times, lanes, rule)
    assert found == likely_divisions(list(times), lanes, rule)
    assert len(found) <= MOST_OTHERS
    assert [ratio for _, ratio in found] == sorted(ratio for _, ratio in found)
    for division, ratio in found:
        assert ratio <= 1 - LEAST_GAIN
        assert makespan_us(times, division.groups) == pytest.approx(ratio * makespan_us(times, rule))
        assert (division.lanes, len(division.groups)) == (lanes, len(times))
        for own in division.groups:
            assert own == tuple(range(own[0], own[-1] + 1))
            assert own[-1] < lanes


@given(st.integers(2, 4).flatmap(lambda n: st.tuples(st.just(n), st.lists(WORK, min_size=n, max_size=8))))
def test_the_bound_of_many_groups_holds_for_all_that_is_measured(case: tuple[int, list[GroupTime]]) -> None:
    lanes, times = case
    bound = float(makespans(np.array([[time.on(1) for time in times]]), lanes)[0])
    for division, _ in likely_divisions(times, lanes, guessed(times, lanes)):
        assert makespan_us(times, division.groups) >= bound - 1e-9


@pytest.mark.parametrize("lanes", [1, 2, 4, 16])
def test_without_alternatives_no_division_is_measured(lanes: int) -> None:
    """One group has all lanes; equal ones share them evenly; of two on two lanes, each has one."""
    one, other = GroupTime(1.0, 90.0), GroupTime(2.0, 50.0)
    assert likely_divisions([one], lanes, guessed([one], lanes)) == ()
    assert likely_divisions([one] * lanes, lanes, guessed([one] * lanes, lanes)) == ()
    assert likely_divisions([one, other], 2, guessed([one, other], 2)) == ()
    assert likely_divisions([], lanes, ()) == ()


def test_two_small_groups_share_a_lane_alongside_a_large_one() -> None:
    times = [GroupTime(0, 90.0), GroupTime(0, 10.0), GroupTime(0, 12.0)]
    found = likely_divisions(times, 4, ((0, 1), (2,), (3,)))
    assert found[0][0].groups == ((0, 1, 2), (3,), (3,))
    assert found[0][1] == pytest.approx(30 / 45)


def test_a_wrong_guess_is_found_out() -> None:
    """The guess took the second group for the larger one."""
    times = [GroupTime(0, 90.0), GroupTime(0, 30.0)]
    assert likely_divisions(times, 4, ((0,), (1, 2, 3)))[0][0].groups == ((0, 1, 2), (3,))


def test_lanes_that_make_a_group_slower_are_left_idle() -> None:
    times = [GroupTime(20.0, -5.0), GroupTime(5.0, 5.0)]
    division, _ = likely_divisions(times, 8, ((0, 1, 2, 3), (4, 5, 6, 7)))[0]
    assert division.groups[0] == (0,)


@given(st.floats(1, 100), st.floats(1, 100), st.integers(2, 16))
def test_the_time_of_a_group_interpolates_both_latencies(one_us: float, all_us: float, lanes: int) -> None:
    time = GroupTime.between(one_us, all_us, lanes)
    assert time.on(1) == pytest.approx(one_us)
    assert time.on(lanes) == pytest.approx(all_us)
    assert (time + time).on(lanes) == pytest.approx(2 * all_us)


TOGETHER = Stage(Strategy.CONCURRENT, (("a",), ("b",), ("c",)))
GUESSED = Division(4, ((0, 1), (2,), (3,)))
BEST = Division(4, ((0, 1, 2), (3,), (3,)))
WORK_US = {"a": 90.0, "b": 12.0, "c": 10.0, "t": 0.0, "y": 4.0}


def three() -> Model:
    """Three concurrent convolutions of different sizes, and their concatenation, followed by a Tanh."""
    nodes = [helper.make_node("Conv", ["x", f"w{name}"], [name]) for name in "abc"]
    nodes += [helper.make_node("Concat", ["a", "b", "c"], ["t"], axis=1), helper.make_node("Tanh", ["t"], ["y"])]
    weights = {f"w{name}": weight(size, 16, 1, 1) for name, size in (("a", 64), ("b", 48), ("c", 32))}
    return loaded(proto_of(nodes, {"x": (1, 16, 12, 12)}, ["y"], weights))


class Scripted:
    """Replaces measurements by scripted latencies; lists every measured stage with its division."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, factor: Callable[[Stage], float] = lambda stage: 1.0) -> None:
        self.factor = factor
        self.measured: list[tuple[Stage, float | None]] = []
        monkeypatch.setattr(CpuStageCost, "_timed", lambda *words: self._timed(*words))

    def _timed(self, cost: CpuStageCost, stage: Stage, lanes: int, worse_than_us: float | None = None) -> Measurement:
        self.measured.append((stage, worse_than_us))
        return summarize([self.latency_us(cost, stage, lanes) * (1 + 0.002 * (turn % 5 - 2)) for turn in range(10)])

    def latency_us(self, cost: CpuStageCost, stage: Stage, lanes: int) -> float:
        """Every operator takes 5 us and its work, which the lanes of its group share."""
        busy = [0.0] * lanes
        for group, shared in zip(stage.groups, self._lanes(cost, stage, lanes), strict=True):
            for lane in shared:
                busy[lane] += sum(5.0 + WORK_US[name] / len(shared) for name in group)
        return max(busy) * self.factor(stage)

    def _lanes(self, cost: CpuStageCost, stage: Stage, lanes: int) -> tuple[tuple[int, ...], ...]:
        if lanes < cost.lanes:
            return tuple((0,) for _ in stage.groups)
        return cost.backend.guessed_lanes(stage) if stage.division is None else stage.division.groups

    def divisions(self) -> list[Division | None]:
        return [stage.division for stage, _ in self.measured if len(stage.groups) == 3]


def learn_operators(cost: CpuStageCost) -> None:
    """As a search does before it asks for stages of several groups."""
    for name in cost.backend.graph.by_name:
        cost.operator_latency_us(name), cost.operator_work_us(name)


def test_the_fastest_of_the_likely_divisions_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second time nothing is measured."""
    scripted = Scripted(monkeypatch)
    for count in (3, 0):
        scripted.measured.clear()
        with ProfileDatabase(tmp_path / "p.db") as database, CpuBackend(three(), lanes=4) as backend:
            assert backend.guessed_lanes(TOGETHER) == GUESSED.groups
            cost = CpuStageCost(backend, database)
            learn_operators(cost)
            assert cost.stage_latency_us(TOGETHER) == pytest.approx(35.0)
            assert len(scripted.divisions()) == count
            assert isinstance(cost, Dividing)
            chosen = cost.divided(TOGETHER)
            assert chosen.division == BEST
            assert cost.divided(chosen) == chosen
            assert known_us(cost, TOGETHER) == known_us(cost, chosen) == cost.stage_latency_us(chosen)
    assert not scripted.measured


def test_the_guess_is_measured_first_and_others_only_until_they_are_clearly_slower(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scripted = Scripted(monkeypatch)
    with ProfileDatabase(":memory:") as database, CpuBackend(three(), lanes=4) as backend:
        cost = CpuStageCost(backend, database)
        learn_operators(cost)
        cost.stage_latency_us(TOGETHER)
    limits = [limit for stage, limit in scripted.measured if len(stage.groups) == 3]
    assert scripted.divisions()[:2] == [None, BEST]
    assert limits[:2] == [None, pytest.approx(50.0)]
    assert limits[2] == pytest.approx(35.0)


def test_a_division_that_is_not_clearly_faster_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its operators predict 35 us; measured, it takes 0.2 % less than the guessed division, which is noise."""
    Scripted(monkeypatch, lambda stage: 1.425 if stage.division == BEST else 2.0 if stage.division else 1.0)
    with ProfileDatabase(":memory:") as database, CpuBackend(three(), lanes=4) as backend:
        cost = CpuStageCost(backend, database)
        learn_operators(cost)
        assert cost.stage_latency_us(TOGETHER) == pytest.approx(50.0)
        assert cost.divided(TOGETHER).division == GUESSED


def test_other_divisions_of_a_stage_that_is_too_slow_are_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    scripted = Scripted(monkeypatch)
    with ProfileDatabase(":memory:") as database, CpuBackend(three(), lanes=4) as backend:
        cost = CpuStageCost(backend, database)
        learn_operators(cost)
        assert cost.latency_unless_worse_us(TOGETHER, 20.0) > 20.0
        assert scripted.divisions() == [None]
        assert cost.latency_unless_worse_us(TOGETHER, 35.0) == pytest.approx(35.0)


def test_measuring_again_measures_the_chosen_division(monkeypatch: pytest.MonkeyPatch) -> None:
    scripted = Scripted(monkeypatch)
    with ProfileDatabase(":memory:") as database, CpuBackend(three(), lanes=4) as backend:
        cost = CpuStageCost(backend, database)
        learn_operators(cost)
        cost.stage_latency_us(TOGETHER)
        scripted.measured.clear()
        assert cost.remeasure(TOGETHER) == cost.remeasure(cost.divided(TOGETHER)) == pytest.approx(35.0)
        assert scripted.divisions() == [BEST]


@pytest.mark.parametrize("lanes", [1, 2])
def test_a_stage_without_alternatives_is_measured_once(lanes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two groups on two lanes, a group alone, or a single lane."""
    scripted = Scripted(monkeypatch)
    pair, alone = Stage(Strategy.CONCURRENT, (("a",), ("b",))), Stage(Strategy.CONCURRENT, (("a",),))
    monkeypatch.setattr(Scripted, "latency_us", lambda *_: 10.0)
    with ProfileDatabase(":memory:") as database, CpuBackend(three(), lanes=lanes) as backend:
        cost = CpuStageCost(backend, database)
        learn_operators(cost)
        scripted.measured.clear()
        cost.stage_latency_us(pair)
        assert len(scripted.measured) == 1
        assert cost.divided(alone) == alone
        assert cost.divided(pair).division == (None if lanes == 1 else Division(2, ((0,), (1,))))


def test_no_division_is_chosen_before_operator_latencies_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    scripted = Scripted(monkeypatch)
    with ProfileDatabase(":memory:") as database, CpuBackend(three(), lanes=4) as backend:
        cost = CpuStageCost(backend, database)
        assert cost.divided(TOGETHER).division == GUESSED
        assert not scripted.measured
        cost.stage_latency_us(TOGETHER)
        assert scripted.divisions() == [None]


def test_a_search_chooses_the_lanes_and_the_file_keeps_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shipped schedule runs as it was measured; the same database gives the same bytes."""
    Scripted(monkeypatch)
    script_models(monkeypatch, LATENCIES_US)
    settings = OptimizeSettings(threads=4, profile_db=tmp_path / "p.db", strategy="concurrent")
    texts = [optimize(three(), settings).document.to_json() for _ in range(2)]
    assert texts[0] == texts[1]
    schedule = ScheduleDocument.from_json(texts[0]).schedule
    assert [stage.division for stage in schedule.stages if len(stage.groups) == 3] == [BEST]
    assert structure_text(schedule) != structure_text(_with(schedule, None))  # they run the model differently
    with CpuBackend(three(), lanes=4) as backend:
        found = backend.lower(schedule).plan
        assert found == backend.lower(_with(schedule, BEST)).plan
        assert found != backend.lower(_with(schedule, None)).plan


def _with(schedule: Schedule, division: Division | None) -> Schedule:
    blocks = (
        replace(each, stages=tuple(replace(stage, division=division) for stage in each.stages))
        for each in schedule.blocks
    )
    return Schedule(tuple(blocks))
