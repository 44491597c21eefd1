"""`optimize` with a given schedule: nothing is searched, and the comparison decides what ships, as after a search."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from host_cuda import needs_compiler
from host_gpu import attach_host
from scripted import fire, script_models, script_stages
from small_models import data
from variants import renamed, retrained

from iosched.jobs.optimize import OptimizeSettings, optimize
from iosched.jobs.run import open_executor
from iosched.models.errors import InvalidScheduleError
from iosched.models.load import load_model
from iosched.models.model import Model
from iosched.profiler.devices.cpu import measured_cost as cpu_cost
from iosched.runtime.compare import compare
from iosched.runtime.inputs import random_inputs
from iosched.runtime.reference import Reference
from iosched.scheduler.document import ScheduleDocument
from iosched.scheduler.schedule import Schedule


@pytest.fixture
def settings(tmp_path: Path) -> OptimizeSettings:
    return OptimizeSettings(threads=2, profile_db=tmp_path / "p.db")


@pytest.fixture
def found(settings: OptimizeSettings, monkeypatch: pytest.MonkeyPatch) -> ScheduleDocument:
    """The schedule file of `optimize` for `fire`, found with scripted latencies."""
    script_stages(monkeypatch)
    script_models(monkeypatch, {"iosched": 10.0, "sequential": 20.0, "greedy": 30.0, "reference": 40.0})
    return ScheduleDocument.from_json(optimize(fire(), settings).document.to_json())


def again() -> Model:
    """`fire` with other weights and other names."""
    return load_model(data(renamed(retrained(onnx.load_from_string(bytes(fire().original))))), name="again")


def shape_of(model: Model, schedule: Schedule) -> list[list[list[int]]]:
    """The schedule with the numbers of operators in the structure instead of their names."""
    place = {operator.name: index for index, operator in enumerate(model.structure.operators)}
    return [[[place[name] for name in group] for group in stage.groups] for stage in schedule.stages]


def check_runs(model: Model, document: ScheduleDocument, device: str = "cpu") -> None:
    inputs = random_inputs(model.graph.inputs)
    executor = open_executor(model, ScheduleDocument.from_json(document.to_json()), device=device, threads=2)
    try:
        with Reference(model) as reference:
            assert compare(executor.run(inputs), reference.run(inputs)).passed
    finally:
        executor.close()


@pytest.mark.parametrize("fastest", ["iosched", "reference"])
def test_a_given_schedule_is_compared_and_ships_if_it_is_faster(
    found: ScheduleDocument, settings: OptimizeSettings, monkeypatch: pytest.MonkeyPatch, fastest: str
) -> None:
    taken = {"iosched": 20.0, "sequential": 20.0, "session": 25.0, "greedy": 30.0, "reference": 20.0, fastest: 10.0}
    taken["lanes"] = 25.0
    calls = script_models(monkeypatch, taken)
    model = again()
    result = optimize(model, replace(settings, schedule_from=found))
    assert [set(names) for names in calls if "iosched" in names] == [set(taken)]
    assert (result.shipped, result.measured_us) == (fastest, taken["iosched"])
    assert shape_of(model, result.schedule) == shape_of(fire(), found.schedule)
    assert (result.document.sha256, result.document.model) == (model.digest, "again")
    check_runs(model, result.document)


def test_nothing_is_searched_measured_or_proven(
    found: ScheduleDocument, settings: OptimizeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_cost.CpuStageCost, "stage_latency_us", lambda *_: pytest.fail("a stage was measured"))
    result = optimize(again(), replace(settings, schedule_from=found))
    assert (result.states, result.measurements, result.gap, result.proven) == (0, 0, None, None)
    assert result.document.search == found.search


def test_stages_have_the_latencies_in_the_database(found: ScheduleDocument, settings: OptimizeSettings) -> None:
    """The stages equal those measured of the first model; an empty database has no latency of them."""
    known = optimize(again(), replace(settings, schedule_from=found)).document
    assert known.schedule.predicted_us == found.schedule.predicted_us
    assert known.schedule.predicted_us is not None
    empty = replace(settings, schedule_from=found, profile_db=Path(":memory:"))
    assert optimize(again(), empty).document.schedule.predicted_us is None


def test_another_structure_is_refused_before_anything_is_measured(
    found: ScheduleDocument, settings: OptimizeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = script_models(monkeypatch, {})
    proto = onnx.load_from_string(bytes(fire().original))
    proto.graph.node[-1].input[:] = reversed(proto.graph.node[-1].input)
    with pytest.raises(
        InvalidScheduleError, match=r"operator 'g1' .'g3' in this model.: expected .*x1x1 as .*, found .*x3x3"
    ):
        optimize(load_model(data(proto)), replace(settings, schedule_from=found))
    assert not calls


def test_for_a_simulated_gpu_a_given_schedule_is_costed_analytically(settings: OptimizeSettings) -> None:
    planned = replace(settings, device="v100")
    first = optimize(fire(), planned)
    second = optimize(again(), replace(planned, schedule_from=first.document))
    assert (second.predicted_us, second.sequential_us) == (first.predicted_us, first.sequential_us)
    assert (second.cost, second.shipped, second.proven) == ("analytic", first.shipped, None)


@needs_compiler
def test_on_an_attached_gpu_it_is_compared_with_the_sequential_schedule(
    found: ScheduleDocument, settings: OptimizeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    attach_host(monkeypatch)
    model = again()
    result = optimize(model, replace(settings, device="cuda", schedule_from=found))
    assert (result.device_name, result.measurements, result.states) == ("Host 1000", 0, 0)
    if result.shipped == "iosched":
        assert shape_of(model, result.schedule) == shape_of(fire(), found.schedule)
    assert {each.name for each in result.document.alternatives} <= {"iosched", "sequential", "greedy"}
    check_runs(model, result.document, device="cuda")
