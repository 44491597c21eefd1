"""A worker does what a local call does: the same results from the same rows, and what it measures comes back."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from queue import Queue
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from failing_plans import FAULTS, fail_where, has
from scripted import LATENCIES_US, fire, script_models, script_stages
from worker_talk import Talk, count_openings, result

from iosched.jobs import optimize as optimizing
from iosched.jobs import pace
from iosched.jobs.exploring.score import ScoreCommand
from iosched.jobs.fleet.messages import (
    Call,
    Facts,
    InterruptedWorkError,
    Measured,
    Opened,
    Progress,
    SaidMessage,
    Step,
    Stop,
    ToldMessage,
    decoded,
    encoded,
    returned,
)
from iosched.jobs.fleet.sending import packed
from iosched.jobs.fleet.work.cost import Cost
from iosched.jobs.fleet.work.optimize import Optimize
from iosched.jobs.fleet.work.questions import Questions
from iosched.jobs.fleet.work.score import Score, Scored
from iosched.jobs.fleet.worker import Worker
from iosched.jobs.optimize import OptimizeResult, optimize
from iosched.jobs.ranking.cost import ModelCost, model_cost
from iosched.jobs.settings import OptimizeSettings
from iosched.models.errors import ExecutionError, InvalidModelError, PlanError, UsageError
from iosched.models.load import load_model
from iosched.models.model import Model
from iosched.profiler.devices.cpu.device import CpuDevice
from iosched.profiler.devices.open_settings import OpenSettings
from iosched.profiler.store.database import ProfileDatabase
from iosched.profiler.store.tables import Row, StageRow, YardstickRow
from iosched.scheduler.questions import Question
from iosched.scheduler.schedule import Stage, Strategy

THREADS = 2
HERE = str(Path.cwd())


@pytest.fixture
def worker() -> Worker:
    return Worker("cpu", THREADS)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each stage that is measured; no clock decides anything."""
    script_models(monkeypatch, LATENCIES_US)
    return script_stages(monkeypatch)


def rows_in(path: Path) -> list[Row]:
    with ProfileDatabase(path) as database:
        return list(database.rows())


def same(one: OptimizeResult, other: OptimizeResult) -> bool:
    """Whether two results differ in nothing but how long it took, and what was in the database."""
    alike: dict[str, Any] = {"seconds": 0.0, "search_seconds": 0.0, "measurements": 0, "cache_hits": 0}
    return replace(one, **alike) == replace(other, **alike)


def test_a_whole_job_finds_what_a_local_one_finds_from_the_same_rows(
    worker: Worker, measured: list[int], tmp_path: Path
) -> None:
    settings = OptimizeSettings(device="cpu", threads=THREADS, profile_db=tmp_path / "p.db")
    optimize(fire(), settings)
    local = optimize(fire(), settings)
    count = len(measured)
    talk = Talk(worker)
    asked = Optimize(replace(settings, profile_db=None, threads=None))
    found = result(talk("optimize", asked, fire(), rows_in(settings.profile_db or tmp_path)), OptimizeResult)
    assert len(measured) == count
    assert same(found, local)
    assert (found.measurements, found.cache_hits) == (0, local.cache_hits)
    assert found.document.to_json() == local.document.to_json()


def test_what_a_worker_measures_makes_a_local_run_measure_nothing(
    worker: Worker, measured: list[int], tmp_path: Path
) -> None:
    talk = Talk(worker)
    found = result(talk("optimize", Optimize(OptimizeSettings()), fire()), OptimizeResult)
    assert found.measurements == len(measured) > 0
    settings = OptimizeSettings(device="cpu", threads=THREADS, profile_db=tmp_path / "p.db")
    with ProfileDatabase(settings.profile_db) as database:
        database.merge(talk.rows)
    count = len(measured)
    assert same(optimize(fire(), settings), found)
    assert len(measured) == count


def test_rows_are_said_as_they_are_measured(worker: Worker, measured: list[int]) -> None:
    seen: list[int] = []
    talk = Talk(worker, lambda message: seen.append(len(measured)) if isinstance(message, Measured) else None)
    talk("cost", Cost("stages", OptimizeSettings()), fire())
    stages = [each for each in talk.all(Measured) if isinstance(each.rows[0], StageRow)]
    assert len(stages) == len(measured) == len(set(seen) - {0})


def test_a_worker_keeps_what_it_knows_from_call_to_call(worker: Worker, measured: list[int]) -> None:
    Talk(worker)("cost", Cost("stages", OptimizeSettings()), fire())
    count, again = len(measured), Talk(worker)
    cost = result(again("cost", Cost("stages", OptimizeSettings()), fire()), ModelCost)
    assert (len(measured), cost.measurements, again.rows) == (count, 0, [])


def test_what_a_model_costs_is_what_it_costs_here(worker: Worker, measured: list[int], tmp_path: Path) -> None:
    settings = OptimizeSettings(device="cpu", threads=THREADS, profile_db=tmp_path / "p.db")
    model_cost(fire(), "stages", settings)
    local = model_cost(fire(), "stages", settings)
    answer = Talk(worker)("cost", Cost("stages", OptimizeSettings()), fire(), rows_in(tmp_path / "p.db"))
    found: ModelCost = result(answer, ModelCost)
    assert replace(found, search_seconds=0.0) == replace(local, search_seconds=0.0)


QUESTIONS = [
    Question(Stage(Strategy.CONCURRENT, (("f1",), ("f3",)))),
    Question(Stage(Strategy.CONCURRENT, (("fs",),)), "work"),
    Question(Stage(Strategy.CONCURRENT, (("fs",),)), "again"),
]


def asked(*questions: Question) -> Questions:
    return Questions(OpenSettings(threads=THREADS), questions)


def test_questions_are_answered_by_rows(worker: Worker, measured: list[int]) -> None:
    talk = Talk(worker)
    assert result(talk("questions", asked(*QUESTIONS), fire()), int) == len(QUESTIONS)
    turns = sorted(row.turn for row in talk.rows if isinstance(row, StageRow))
    assert turns == ["again", *["first"] * (len(measured) - 1)]
    again = Talk(worker)
    assert result(again("questions", asked(*QUESTIONS), fire()), int) == len(QUESTIONS)
    assert again.rows == []


def test_a_model_stays_open_for_the_next_packet(
    worker: Worker, measured: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = count_openings(monkeypatch)
    for question in QUESTIONS:
        Talk(worker)("questions", asked(question), fire())
    assert opened == ["fire"]
    Talk(worker)("questions", asked(), fire(2))
    assert opened == ["fire", "fire"]


def test_a_question_that_no_stage_of_the_model_is_in_is_left_out(worker: Worker, measured: list[int]) -> None:
    unknown = Question(Stage(Strategy.CONCURRENT, (("nobody",),)))
    assert result(Talk(worker)("questions", asked(unknown, QUESTIONS[0]), fire()), int) == 1


def test_questions_wait_for_nobody_once_the_budget_is_over(worker: Worker, measured: list[int]) -> None:
    assert result(Talk(worker)("questions", asked(*QUESTIONS), fire(), left_s=0.0), int) == 0
    assert not measured


@pytest.mark.parametrize(("left_s", "is_searched"), [(None, True), (20.0, False)])
def test_opening_a_model_counts_only_towards_a_budget_that_counts_already(
    worker: Worker, measured: list[int], monkeypatch: pytest.MonkeyPatch, left_s: float | None, is_searched: bool
) -> None:
    clock, before = [0.0], CpuDevice.open

    def open_slowly(self: CpuDevice, *rest: Any, **more: Any) -> Any:
        clock[0] += 30.0
        return before(self, *rest, **more)

    monkeypatch.setattr(CpuDevice, "open", open_slowly)
    for module in (optimizing, pace):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    talk = Talk(worker)
    work = Optimize(OptimizeSettings(budget_s=20.0))
    found = result(talk("optimize", work, fire(), left_s=left_s), OptimizeResult)
    assert (found.measurements > 0) == is_searched
    assert len(talk.all(Opened)) == 1


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: type(fault).__name__)
def test_a_question_about_a_plan_that_fails_is_left_out(
    worker: Worker, measured: list[int], monkeypatch: pytest.MonkeyPatch, fault: Exception
) -> None:
    fail_where(monkeypatch, has("fs"), fault)
    assert result(Talk(worker)("questions", asked(*QUESTIONS), fire()), int) == 1


def test_a_plan_that_fails_on_a_worker_is_contained_there(
    worker: Worker, measured: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_where(monkeypatch, has("gs"), FAULTS[0])
    found = result(Talk(worker)("optimize", Optimize(OptimizeSettings()), fire()), OptimizeResult)
    assert (found.shipped, found.document.runtime["reason"]) == ("reference", found.reason)
    assert "Conv 'gs'" in found.reason
    with pytest.raises(PlanError, match="Conv 'gs'"):
        result(Talk(worker)("optimize", Optimize(OptimizeSettings(strict=True)), fire()), OptimizeResult)


def test_an_interruption_ends_a_search_with_the_best_known(worker: Worker, measured: list[int]) -> None:
    def stop_soon(message: SaidMessage) -> ToldMessage | None:
        return Stop(how="best") if len(measured) == 3 and isinstance(message, Measured) else None

    found = result(Talk(worker, stop_soon)("optimize", Optimize(OptimizeSettings()), fire()), OptimizeResult)
    assert found.measurements < 12
    assert sorted(name for stage in found.schedule.stages for name in stage.operators) == sorted(
        operator.name for operator in fire().graph.operators
    )


def test_an_interruption_without_a_result_is_an_error_of_its_own(worker: Worker, measured: list[int]) -> None:
    talk = Talk(worker, lambda message: Stop(how="now") if len(measured) == 3 else None)
    with pytest.raises(InterruptedWorkError):
        result(talk("optimize", Optimize(OptimizeSettings()), fire()), OptimizeResult)


@pytest.mark.parametrize("work", [Optimize(OptimizeSettings(threads=3)), Optimize(OptimizeSettings(launch="streams"))])
def test_an_error_is_the_same_as_here(worker: Worker, work: Optimize) -> None:
    with pytest.raises(UsageError, match=r"--threads 3 is more than the 2|launch='streams' is for GPUs"):
        result(Talk(worker)("optimize", work, fire()), OptimizeResult)


@pytest.mark.parametrize(
    ("kind", "work", "says"),
    [
        ("dance", {}, "no work of the kind 'dance'"),
        ("optimize", {"settings": {"device": 5}}, r"\$.settings.device"),
        ("optimize", {"settings": {"profile_db": "/etc/passwd"}}, "profile_db"),
        ("score", {"name": "t", "command": {"words": "rm"}, "choices": {}}, "words"),
    ],
)
def test_a_call_that_is_none_is_refused(worker: Worker, kind: str, work: object, says: str) -> None:
    with pytest.raises(Exception, match=says):
        result(Talk(worker)(kind, work, fire()), int)


def test_another_model_than_the_drivers_is_refused(worker: Worker) -> None:
    sent, data = packed(fire())
    call = Call(kind="questions", work=msgspec.to_builtins(asked()), model=sent)
    for files in ({sent.file: data[:-1]}, {sent.file: packed(fire(2))[1]}):
        answer = returned(worker.call(encoded(call), files, lambda message: None, Queue()))
        with pytest.raises(InvalidModelError, match="changed on its way"):
            result(answer, int)
    other = encoded(msgspec.structs.replace(call, model=msgspec.structs.replace(sent, structure="0" * 64)))
    with pytest.raises(InvalidModelError, match="read as another model here"):
        result(returned(worker.call(other, {sent.file: data}, lambda message: None, Queue())), int)


def test_whatever_goes_wrong_is_told(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("iosched.jobs.fleet.station.Station.loaded", lambda *_: 1 / 0)
    with pytest.raises(Exception, match="ZeroDivisionError: division by zero"):
        result(Talk(worker)("optimize", Optimize(OptimizeSettings()), fire()), OptimizeResult)


def command(text: str, timeout_s: float | None = 20.0) -> ScoreCommand:
    return ScoreCommand((sys.executable, "-c", text, "{model}", "{params}"), timeout_s)


def test_a_score_is_what_the_program_says_of_the_file(worker: Worker) -> None:
    text = "import sys, json; print(json.dumps({'score': len(open(sys.argv[1], 'rb').read()), 'k': len(sys.argv[2])}))"
    work = Score("trial-0007", command(text), HERE, {"kind": "Tanh"})
    found: Scored = result(Talk(worker)("score", work, fire()), Scored)
    assert found == Scored({"score": float(len(packed(fire())[1])), "k": len('{"kind": "Tanh"}')})


def test_a_score_that_is_none_is_a_reason(worker: Worker) -> None:
    found: Scored = result(
        Talk(worker)("score", Score("t", command("import sys; sys.exit(3)"), HERE, {}), fire()), Scored
    )
    assert found == Scored(reason="the score command failed with exit code 3")
    missing = replace(command(""), words=("no-such-program", "{model}"))
    found = result(Talk(worker)("score", Score("t", missing, HERE, {}), fire()), Scored)
    assert found.reason == "there is no program 'no-such-program' on the worker's machine"


def test_a_score_command_runs_in_the_folder_where_the_user_is(worker: Worker, tmp_path: Path) -> None:
    """Not in the worker's own: what the user names by a path from there is found."""
    program = tmp_path / "bin" / "score"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\ncat told\n")
    program.chmod(0o755)
    (tmp_path / "told").write_text("0.25")
    named = replace(command(""), words=("bin/score", "{model}"))
    found: Scored = result(Talk(worker)("score", Score("t", named, str(tmp_path), {}), fire()), Scored)
    assert found == Scored({"score": 0.25})
    elsewhere = str(tmp_path / "nowhere")
    found = result(Talk(worker)("score", Score("t", named, elsewhere, {}), fire()), Scored)
    assert found.reason == (
        f"there is no folder {elsewhere!r}, in which the score command is to be run, on the worker's machine"
    )


def test_a_score_command_is_ended_where_the_driver_says_so(worker: Worker) -> None:
    text = 'import time\nfor n in range(600): print(\'{"step": %d, "score": 0.5}\' % n, flush=True); time.sleep(0.1)'
    talk = Talk(worker, lambda message: Stop(how="pruned") if isinstance(message, Step) else None)
    found: Scored = result(talk("score", Score("t", command(text), HERE, {}, watched="score"), fire()), Scored)
    assert found.is_pruned
    assert found.reason is not None
    assert found.reason.startswith("pruned after step ")
    assert talk.all(Step)[0] == Step(step=0, value=0.5)


def test_facts_say_what_a_worker_is(worker: Worker, measured: list[int]) -> None:
    facts: Facts = decoded(worker.facts(), Facts)
    assert (facts.device, facts.threads, facts.disturbed_by) == ("cpu", THREADS, ())
    assert {"iosched", "python", "onnxruntime"} <= facts.versions.keys()
    talk = Talk(worker)
    talk("questions", asked(QUESTIONS[0]), fire())
    assert {row.device for row in talk.rows} == {facts.key}


def test_facts_bring_the_yardstick(worker: Worker) -> None:
    facts: Facts = decoded(worker.facts(), Facts)
    (row,) = facts.yardstick
    assert isinstance(row, YardstickRow)
    assert row.device == facts.key


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="Linux binds threads to processors")
def test_a_worker_is_bound_to_its_cores_and_nobody_else_is() -> None:
    before = os.sched_getaffinity(0)
    core = min(before)
    found: Scored = result(
        Talk(Worker("cpu", 1, [core]))("score", Score("t", command(CORES), HERE, {}), fire()), Scored
    )
    assert found.values == {"score": core}
    assert os.sched_getaffinity(0) == before


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="Linux binds threads to processors")
def test_a_worker_that_cannot_begin_says_why() -> None:
    worker = Worker("cpu", 1, [4095])
    with pytest.raises(OSError, match="Invalid argument"):
        worker.facts()
    with pytest.raises(ExecutionError, match="a worker failed: OSError"):
        result(Talk(worker)("questions", asked(), fire()), int)


CORES = "import os; (core,) = os.sched_getaffinity(0); print(core)"


def test_progress_is_said_now_and_then(worker: Worker, measured: list[int]) -> None:
    talk = Talk(worker)
    talk("cost", Cost("stages", OptimizeSettings()), fire())
    assert talk.all(Progress)


@pytest.fixture
def dynamic(tmp_path: Path) -> Mapping[str, Model]:
    """A model in each of the ways that a driver may have read it."""
    from small_models import branches

    path = tmp_path / "m.onnx"
    path.write_bytes(branches("N").SerializeToString())
    fixed = branches(1).SerializeToString()
    return {
        "bound": load_model(path, batch_size=3),
        "shaped": load_model(path, input_shapes={"x": (2, 8, 6, 6)}),
        "replaced": load_model(fixed, name="fixed", batch_size=4),
        "as it is": load_model(fixed),
    }


@pytest.mark.parametrize("way", ["bound", "shaped", "replaced", "as it is"])
def test_a_model_arrives_as_it_was_read(way: str, dynamic: Mapping[str, Model]) -> None:
    from iosched.jobs.fleet.sending import unpacked

    model = dynamic[way]
    again = unpacked(*packed(model))
    assert (again.name, again.digest, again.bindings) == (model.name, model.digest, model.bindings)
    assert again.structure.digest == model.structure.digest
