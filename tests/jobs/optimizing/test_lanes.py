"""List scheduling needs only the latencies of operators, and is one of the schedules that are compared."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from networks import zoo_model
from scripted import fire, script_models, script_operators

from iosched.jobs.open_model import opened
from iosched.jobs.optimize import OptimizeSettings, optimize
from iosched.jobs.schedules import known_in_lanes, or_in_lanes, priced, unsearched
from iosched.models.model import Model
from iosched.profiler.devices.resolve import resolve
from iosched.runtime.compare import compare
from iosched.runtime.inputs import random_inputs
from iosched.runtime.reference import Reference
from iosched.scheduler.baselines import sequential
from iosched.scheduler.document import ScheduleDocument
from iosched.scheduler.schedule import Schedule, Stage, Strategy
from iosched.scheduler.strategies import StrategyName

WHOLE = {"greedy": 90.0, "reference": 80.0, "iosched": 85.0, "sequential": 70.0}


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[Stage]:
    """The stages measured; an operator takes 10 us on one lane and on all."""
    return script_operators(monkeypatch)


def is_in_lanes(schedule: Schedule) -> bool:
    return any(stage.strategy is Strategy.LANES for stage in schedule.stages)


def check_numbers(model: Model, document: ScheduleDocument) -> None:
    inputs = random_inputs(model.graph.inputs)
    with Reference(model) as reference, closing(resolve("cpu").executor(model, document, 2)) as executor:
        assert compare(executor.run(inputs), reference.run(inputs)).passed


@pytest.mark.parametrize(("lanes_us", "candidate"), [(30.0, "lanes"), (75.0, "sequential")])
@pytest.mark.usefixtures("measured")
def test_the_lanes_schedule_ships_if_it_is_the_fastest(
    lanes_us: float, candidate: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script_models(monkeypatch, {**WHOLE, "lanes": lanes_us})
    found = optimize(fire(), OptimizeSettings(threads=2, profile_db=tmp_path / "p.db"))
    assert found.candidate == candidate
    assert is_in_lanes(found.document.schedule) == (candidate == "lanes")
    assert ScheduleDocument.from_json(found.document.to_json()).schedule == found.document.schedule
    if candidate == "lanes":
        assert (found.shipped, found.measured_us, found.proven) == ("iosched", lanes_us, None)
        assert found.reason.startswith("the schedule by list scheduling runs at 2.667x")
        check_numbers(fire(), found.document)


def test_without_a_search_operators_alone_are_measured(
    measured: list[Stage], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script_models(monkeypatch, {**WHOLE, "iosched": 20.0})
    found = optimize(fire(), OptimizeSettings(threads=2, profile_db=tmp_path / "p.db", strategy="lanes"))
    assert (found.shipped, found.candidate, found.states) == ("iosched", "iosched", 0)
    assert is_in_lanes(found.document.schedule)
    assert {len(stage.operators) for stage in measured} == {1}


def test_a_deadline_before_all_operators_gives_the_sequential_schedule(tmp_path: Path) -> None:
    settings = OptimizeSettings(threads=2, profile_db=tmp_path / "p.db", strategy="lanes", budget_s=1e-3)
    assert not is_in_lanes(optimize(fire(), settings).document.schedule)


def test_it_is_left_out_before_all_latencies_are_known(measured: list[Stage], tmp_path: Path) -> None:
    settings, device = OptimizeSettings(threads=2), resolve("cpu")
    with opened(device, fire(), settings.opening, tmp_path / "p.db") as there:
        assert there.attached is not None
        names = [operator.name for operator in there.graph.operators]
        for name in names:
            assert known_in_lanes(there.attached) is None
            there.attached.cost.operator_latency_us(name)
            there.attached.cost.operator_work_us(name)
        found = known_in_lanes(there.attached)
        assert found is not None
        assert is_in_lanes(found)
    assert len(measured) <= 2 * len(names)


@pytest.mark.parametrize(
    ("strategy", "r", "taken"),
    [("both", 3, True), ("both", None, False), ("both", 1, False), ("dos", 3, False), ("merge", 3, False)],
)
def test_on_a_simulated_gpu_it_takes_the_place_of_a_slower_schedule(
    strategy: StrategyName, r: int | None, taken: bool
) -> None:
    settings = OptimizeSettings(device="h100", strategy=strategy, r=r)
    model = zoo_model("squeezenet")
    with opened(resolve("h100"), model, settings.opening, None) as there:
        slow = unsearched(priced(there, sequential(there.graph)))
        found = or_in_lanes(there, settings, slow)
        assert is_in_lanes(found.schedule) is taken
        assert or_in_lanes(there, settings, found) == found
        assert or_in_lanes(there, replace(settings, gap_percent=0.0), slow) == slow
        if taken:
            assert (found.schedule.predicted_us or 0.0) < (slow.schedule.predicted_us or 0.0)
            assert found.proven is None


def test_a_file_without_a_search_names_the_candidate() -> None:
    found = optimize(zoo_model("squeezenet"), OptimizeSettings(device="h100", strategy="lanes"))
    assert (found.shipped, found.candidate, found.document.search.strategy) == ("iosched", "lanes", "lanes")
    assert is_in_lanes(found.document.schedule)
