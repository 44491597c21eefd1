"""With the objective throughput, the teams with the most images/s ship if nothing else is faster."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import jsonschema
import onnx
import pytest
from scripted import OPENVINO_OPENED, script_openvino
from small_models import branches

from iosched.jobs.explain import explain_operator
from iosched.jobs.optimize import OptimizeResult, OptimizeSettings, optimize
from iosched.jobs.optimizing import throughput
from iosched.jobs.run import open_executor
from iosched.models.errors import MismatchError, PlanError, UsageError
from iosched.models.load import load_model
from iosched.models.model import Model
from iosched.profiler.baselines.onnxruntime import OnnxruntimeBaseline
from iosched.profiler.devices.cpu.measured_cost import CpuStageCost
from iosched.profiler.devices.cpu.open import CpuTeams
from iosched.profiler.measuring.statistics import Measurement, summarize
from iosched.runtime.compare import compare
from iosched.runtime.executor import Candidate
from iosched.runtime.hazards import HazardError
from iosched.runtime.inputs import Arrays, random_inputs
from iosched.runtime.reference import Reference
from iosched.scheduler.document import ScheduleDocument
from iosched.scheduler.schedule import Schedule
from iosched.scheduler.teams import Teams, possible

pytest.importorskip("onnxruntime", reason="needs pip install '.[cpu]'")

SCHEMA = json.loads((Path(__file__).parents[3] / "docs" / "schedule.schema.json").read_text())


def script(monkeypatch: pytest.MonkeyPatch, rates: Mapping[str, float], best: int = 0) -> None:
    """Whole models take the given `rates`; of the teams that are tried, number `best` is the fastest."""

    def measured(candidates: Mapping[str, Candidate], *_: object) -> dict[str, Measurement]:
        us = {name: rates.get(name, 100.0 + abs(int(name) - best) if name.isdigit() else 900.0) for name in candidates}
        return {name: summarize([each] * 8) for name, each in us.items()}

    monkeypatch.setattr(throughput, "measure_rates", measured)
    monkeypatch.setattr(OnnxruntimeBaseline, "best", lambda plain, inputs: plain.settings[0])


def optimized(model: Model, **settings: object) -> OptimizeResult:
    return optimize(model, OptimizeSettings(device="cpu", threads=2, objective="throughput", **settings))


def small(batch: int) -> Model:
    return load_model(branches(1).SerializeToString(), name="branches", batch_size=batch)


def check_runs(model: Model, document: ScheduleDocument, threads: int = 2) -> None:
    inputs = random_inputs(model.graph.inputs)
    with closing(open_executor(model, document, threads=threads)) as executor, Reference(model) as reference:
        assert compare(executor.run(inputs), reference.run(inputs)).passed
        assert len(executor.time(inputs, 2)) == 2


@pytest.fixture(autouse=True)
def _own_profile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("IOSCHED_PROFILE_DB", str(tmp_path / "profile.db"))


def n_pieces(teams: Teams, batch: int) -> int:
    return sum(map(len, teams.pieces(batch)))


@pytest.mark.parametrize("best", [0, 1, *(pytest.param(best, marks=pytest.mark.slow) for best in (2, 3))])
def test_the_fastest_teams_ship_and_run_as_the_file_says(monkeypatch: pytest.MonkeyPatch, best: int) -> None:
    script(monkeypatch, {"iosched": 50.0, "reference": 80.0}, best)
    model = small(5)
    result = optimized(model, strategy="sequential")
    choices = possible(5, 2, divides=True)
    assert result.shipped == "iosched"
    assert result.document.teams == choices[best]
    if choices[best].lanes(2) == 1:  # so that no operator is divided
        assert result.kernels_after == (result.kernels_before or 0) * n_pieces(choices[best], 5)
    text = result.document.to_json()
    jsonschema.validate(json.loads(text), SCHEMA)
    check_runs(model, ScheduleDocument.from_json(text))


@pytest.mark.slow
def test_a_search_finds_the_schedule_of_teams_of_several_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    script(monkeypatch, {"iosched": 50.0, "reference": 80.0}, 1)
    result = optimized(small(2))
    assert result.measurements > 0
    check_runs(small(2), result.document)


def test_sessions_of_onnxruntime_ship_where_they_are_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    script(monkeypatch, {"iosched": 80.0, "reference": 50.0}, 2)
    result = optimized(small(4), strategy="sequential")
    assert result.shipped == "reference"
    assert result.document.teams is not None
    assert result.document.teams.count * result.document.teams.requests == 2
    assert result.kernels_after == (result.kernels_before or 0) * n_pieces(result.document.teams, 4)
    check_runs(small(4), result.document)


def test_kernels_of_openvino_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    script(monkeypatch, {"iosched": 80.0, "reference": 70.0, "openvino": 50.0})
    script_openvino(monkeypatch, OPENVINO_OPENED)
    monkeypatch.setattr(throughput, "open_streams", lambda *_: Candidate(lambda count: (), lambda: None))
    result = optimized(small(4), strategy="sequential")
    assert (result.shipped, result.kernels_after) == ("openvino", None)


def test_equal_speed_ships_plain_onnxruntime(monkeypatch: pytest.MonkeyPatch) -> None:
    script(monkeypatch, {"iosched": 50.0, "reference": 50.0})
    assert optimized(small(4), strategy="sequential").shipped == "reference"


def test_one_image_is_served_to_as_many_callers_as_there_are_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    script(monkeypatch, {"iosched": 50.0, "reference": 80.0}, 1)
    result = optimized(small(1), strategy="sequential")
    assert result.document.teams == Teams(2, 1, 1)
    assert any("2 concurrent callers" in note for note in result.notes)
    with closing(open_executor(small(1), result.document, threads=2)) as executor:
        assert executor.in_flight == 2
    check_runs(small(1), result.document, threads=1)


def test_a_batch_whose_images_are_mixed_is_not_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    proto = branches(4)
    proto.graph.node.append(onnx.helper.make_node("Softmax", ["y"], ["z"], axis=0))
    proto.graph.output[0].name = "z"
    model = load_model(proto.SerializeToString(), name="mixed")
    script(monkeypatch, {"iosched": 50.0, "reference": 80.0}, 1)
    result = optimized(model, strategy="sequential")
    assert result.document.teams is not None
    assert result.document.teams.count == 1
    assert any("Softmax 'z'" in note for note in result.notes)
    check_runs(model, result.document)


def fail_with_two_images(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """Teams that take two images at once raise the error when they are made ready."""
    ready = CpuTeams.ready

    def failing(ways: CpuTeams, schedule: Schedule, teams: Teams, inputs: Arrays) -> object:
        if teams.images == 2:
            raise error
        return ready(ways, schedule, teams, inputs)

    monkeypatch.setattr(CpuTeams, "ready", failing)


@pytest.mark.slow
def test_teams_whose_batch_size_the_model_does_not_support_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    fail_with_two_images(monkeypatch, UsageError("the shape of 'y' does not scale with the batch size"))
    choices = [teams for teams in possible(4, 2, divides=True) for _ in range(2)]
    best = next(number for number, teams in enumerate(choices) if teams == Teams(1, 2, 2))
    script(monkeypatch, {"iosched": 50.0, "reference": 80.0}, best)
    result = optimized(small(4), strategy="concurrent")
    assert result.document.teams is not None
    assert result.document.teams.images != 2


def test_teams_that_fail_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    fail_with_two_images(monkeypatch, HazardError("tasks clash"))
    script(monkeypatch, {"iosched": 50.0, "reference": 80.0})
    result = optimized(small(4), strategy="sequential")
    assert result.shipped == "iosched"
    assert result.document.teams is not None
    assert result.document.teams.images != 2
    assert any("of the cores into teams" in note and "HazardError: tasks clash" in note for note in result.notes)


def test_teams_that_fail_are_an_error_with_strict(monkeypatch: pytest.MonkeyPatch) -> None:
    fail_with_two_images(monkeypatch, HazardError("tasks clash"))
    script(monkeypatch, {"iosched": 50.0, "reference": 80.0})
    with pytest.raises(PlanError, match="tasks clash"):
        optimized(small(4), strategy="sequential", strict=True)


@pytest.mark.parametrize("strict", [False, True])
def test_teams_with_wrong_outputs_do_not_ship(monkeypatch: pytest.MonkeyPatch, strict: bool) -> None:
    ready = CpuTeams.ready

    def wrong(ways: CpuTeams, schedule: Schedule, teams: Teams, inputs: Arrays) -> tuple[Candidate, object]:
        candidate, run = ready(ways, schedule, teams, inputs)
        return candidate, lambda: {name: array + 1 for name, array in run().items()}

    monkeypatch.setattr(CpuTeams, "ready", wrong)
    script(monkeypatch, {"iosched": 50.0, "reference": 80.0})
    if strict:
        with pytest.raises(MismatchError, match="outputs of teams differ from those of onnxruntime"):
            optimized(small(4), strategy="sequential", strict=True)
        return
    result = optimized(small(4), strategy="sequential")
    assert result.shipped == "reference"
    assert any("Teams were not compared because their outputs differ" in note for note in result.notes)


def test_openvino_with_wrong_outputs_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    script_openvino(monkeypatch, MismatchError("output 'y' is off by 3"))
    script(monkeypatch, {"iosched": 50.0, "reference": 80.0, "openvino": 1.0})
    result = optimized(small(4), strategy="sequential")
    assert result.shipped == "iosched"
    assert any("OpenVINO was not compared: output 'y' is off by 3" in note for note in result.notes)


def test_a_schedule_is_explained_as_one_team_runs_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script(monkeypatch, {"iosched": 50.0}, best=4)
    model = small(4)
    document = optimized(model, strategy="greedy").document
    assert document.teams is not None
    assert document.teams.count == 2
    stages: list[int] = []

    def timed(cost: CpuStageCost, stage: object, lanes: int, worse_than_us: float | None = None) -> Measurement:
        assert cost.backend.graph.inputs[0].shape[:1] == (document.teams.images,)
        stages.append(cost.backend.lanes)
        return summarize([10.0] * 7)

    monkeypatch.setattr(CpuStageCost, "_timed", timed)
    found = explain_operator(model, document, model.graph.operators[0].name, profile_db=tmp_path / "new.db")
    assert found.teams == document.teams
    assert set(stages) == {1}
    whole = explain_operator(model, replace(document, teams=None), "b", profile_db=tmp_path / "new.db", measurements=0)
    assert whole.teams is None


def test_idle_time_is_that_of_one_team(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A team of one core is never idle; all cores together would be."""
    script(monkeypatch, {"iosched": 50.0}, best=4)
    monkeypatch.setattr(CpuStageCost, "_timed", lambda *_: summarize([10.0] * 7))
    model, profile_db = small(4), tmp_path / "new.db"
    document = optimized(model, strategy="greedy").document
    assert document.teams is not None
    found = explain_operator(model, document, "b", profile_db=profile_db)
    assert found.idle[found.explanation.present] == 0.0
    found = explain_operator(model, replace(document, teams=None), "b", profile_db=profile_db)
    assert found.idle[found.explanation.present] != 0.0


def test_a_file_runs_on_other_numbers_of_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    script(monkeypatch, {"iosched": 50.0, "reference": 80.0}, 2)
    document = optimized(small(5), strategy="sequential").document
    for threads in (1, 3, 4):
        check_runs(small(5), document, threads)


def test_files_without_an_objective_are_made_for_latency(monkeypatch: pytest.MonkeyPatch) -> None:
    script(monkeypatch, {"iosched": 50.0, "reference": 80.0})
    content = json.loads(optimized(small(4), strategy="sequential").document.to_json())
    del content["objective"], content["teams"]
    older = ScheduleDocument.from_json(json.dumps(content))
    assert (older.objective, older.teams) == ("latency", None)
    assert not {"objective", "teams"} & json.loads(older.to_json()).keys()


def test_a_precision_without_schedules_is_refused_with_this_objective(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the check for libraries and instructions, whose advice would not help."""
    monkeypatch.setattr("iosched.profiler.devices.cpu.device.check_precision", lambda _: pytest.fail("too early"))
    with pytest.raises(UsageError, match=r"--objective throughput .*: omit --precision"):
        optimize(small(4), OptimizeSettings(device="cpu", objective="throughput", precision="bf16"))
