"""A worker does the same as a local call: equal results from equal rows, and it sends its measurements."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from faulty_plans import FAULTS, fail_where, has
from scripted import LATENCIES_US, fire, latencies_by_stage, script_models, script_stages
from worker_talk import PATIENCE_S, Talk, count_openings

from iosched.jobs import optimize as optimizing
from iosched.jobs import time_budget
from iosched.jobs.exploring.score import SCORE, Score, ScoreCommand, Scored, Scores
from iosched.jobs.matrix_cells import PRICE, SEARCH, Price, Search
from iosched.jobs.optimize import OptimizeResult, optimize
from iosched.jobs.optimize_task import OPTIMIZE, Optimize
from iosched.jobs.pool import worker as calling
from iosched.jobs.pool.messages import (
    QUESTIONS,
    Call,
    Done,
    DriverMessage,
    Failed,
    InterruptedTaskError,
    Measured,
    Opened,
    Progress,
    Questions,
    Step,
    StopAssignment,
    Unusable,
    WorkerMessage,
    raised,
)
from iosched.jobs.pool.sending import packed, unpacked
from iosched.jobs.pool.worker import Worker
from iosched.jobs.ranking.model_cost import model_cost
from iosched.jobs.ranking.rank_task import COST, SIMULATION, Cost
from iosched.jobs.settings import OptimizeSettings
from iosched.models.errors import DeviceLostError, ExecutionError, InvalidModelError, PlanError, UsageError
from iosched.models.load import load_model
from iosched.models.model import Model
from iosched.profiler.devices.cpu.device import CpuDevice
from iosched.profiler.devices.open_settings import OpenSettings
from iosched.profiler.store.database import ProfileDatabase
from iosched.profiler.store.tables import CalibrationRow, Row, StageRow
from iosched.scheduler.cost import CostQuestion
from iosched.scheduler.pruning import DEFAULT_PRUNING
from iosched.scheduler.schedule import Stage, Strategy

THREADS = 2
HERE = str(Path.cwd())
ON_CPU = OptimizeSettings(device="cpu")
ASKED = [
    CostQuestion(Stage(Strategy.CONCURRENT, (("f1",), ("f3",)))),
    CostQuestion(Stage(Strategy.CONCURRENT, (("fs",),)), "work"),
    CostQuestion(Stage(Strategy.CONCURRENT, (("fs",),)), "again"),
]


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each measured stage; results do not depend on a clock."""
    script_models(monkeypatch, LATENCIES_US)
    return script_stages(monkeypatch)


@pytest.fixture
def talk(measured: list[int]) -> Talk:
    """A running worker, which has measured one stage."""
    found = Talk(THREADS)
    measured.clear()
    return found


def rows_in(path: Path) -> tuple[Row, ...]:
    with ProfileDatabase(path) as database:
        return tuple(database.rows())


def same(one: OptimizeResult, other: OptimizeResult) -> bool:
    """Whether two results differ only in time taken and in the contents of the database."""
    alike: dict[str, Any] = {"seconds": 0.0, "search_seconds": 0.0, "measurements": 0, "cache_hits": 0}
    return replace(one, **alike) == replace(other, **alike)


def asked(*questions: CostQuestion) -> Questions:
    return Questions(OpenSettings(threads=THREADS), questions)


def test_a_job_finds_the_same_as_a_local_one_from_the_same_rows(
    talk: Talk, measured: list[int], tmp_path: Path
) -> None:
    path = tmp_path / "p.db"
    settings = replace(ON_CPU, threads=THREADS, profile_db=path)
    optimize(fire(), settings)
    local = optimize(fire(), settings)
    count = len(measured)
    found = talk(OPTIMIZE, Optimize(ON_CPU), fire(), rows=rows_in(path))
    assert len(measured) == count
    assert same(found, local)
    assert (found.measurements, found.cache_hits) == (0, local.cache_hits)
    assert found.document.to_json() == local.document.to_json()


def test_a_local_run_reuses_the_stored_measurements_of_a_worker(
    talk: Talk, measured: list[int], tmp_path: Path
) -> None:
    found = talk(OPTIMIZE, Optimize(ON_CPU), fire())
    assert found.measurements == len(measured) > 0
    settings = replace(ON_CPU, threads=THREADS, profile_db=tmp_path / "p.db")
    with ProfileDatabase(settings.profile_db) as database:
        database.merge(talk.rows)
    count = len(measured)
    assert same(optimize(fire(), settings), found)
    assert len(measured) == count


def test_rows_are_sent_as_they_are_measured(talk: Talk, measured: list[int]) -> None:
    seen: list[int] = []
    talk.answer = lambda message: seen.append(len(measured)) if isinstance(message, Measured) else None
    talk(COST, Cost("stages", ON_CPU), fire())
    assert len(measured) == len(set(seen) - {0}) > 1


def test_a_worker_keeps_its_rows_between_tasks(talk: Talk, measured: list[int]) -> None:
    talk(COST, Cost("stages", ON_CPU), fire())
    count, said = len(measured), len(talk.rows)
    assert talk(COST, Cost("stages", ON_CPU), fire()).measurements == 0
    assert (len(measured), len(talk.rows)) == (count, said)


def test_a_model_cost_equals_the_local_one(talk: Talk, tmp_path: Path) -> None:
    path = tmp_path / "p.db"
    settings = replace(ON_CPU, threads=THREADS, profile_db=path)
    model_cost(fire(), "stages", settings)
    local = model_cost(fire(), "stages", settings)
    found = talk(COST, Cost("stages", ON_CPU), fire(), rows=rows_in(path))
    assert replace(found, search_seconds=0.0) == replace(local, search_seconds=0.0)


def test_a_gpu_that_is_not_attached_is_simulated(talk: Talk, measured: list[int]) -> None:
    settings = OptimizeSettings(device="v100")
    found = talk(SIMULATION, Cost("stages", settings), fire())
    assert found.latency_us == model_cost(fire(), "stages", settings).latency_us
    assert measured == []


def test_questions_are_answered_by_rows(talk: Talk, measured: list[int]) -> None:
    assert talk(QUESTIONS, asked(*ASKED), fire()) == len(ASKED)
    turns = sorted(row.turn for row in talk.rows if isinstance(row, StageRow))
    assert turns == ["again", *["first"] * (len(measured) - 1)]
    said = len(talk.rows)
    assert talk(QUESTIONS, asked(*ASKED), fire()) == len(ASKED)
    assert len(talk.rows) == said


def test_a_model_stays_open_for_the_next_packet(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = count_openings(monkeypatch)
    for question in ASKED:
        talk(QUESTIONS, asked(question), fire())
    assert opened == ["fire"]
    talk(QUESTIONS, asked(), fire(2))
    assert opened == ["fire", "fire"]


def test_a_question_about_an_unknown_operator_is_skipped(talk: Talk) -> None:
    unknown = CostQuestion(Stage(Strategy.CONCURRENT, (("nobody",),)))
    assert talk(QUESTIONS, asked(unknown, ASKED[0]), fire()) == 1


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: type(fault).__name__)
def test_a_question_about_a_plan_that_fails_is_left_out(
    talk: Talk, monkeypatch: pytest.MonkeyPatch, fault: Exception
) -> None:
    fail_where(monkeypatch, has("fs"), fault)
    assert talk(QUESTIONS, asked(*ASKED), fire()) == 1


def test_no_question_is_measured_once_the_budget_is_over(talk: Talk, measured: list[int]) -> None:
    assert talk(QUESTIONS, asked(*ASKED), fire(), left_s=0.0) == 0
    assert not measured


@pytest.mark.parametrize(("left_s", "is_searched"), [(None, True), (20.0, False)])
def test_opening_a_model_counts_only_towards_a_budget_that_counts_already(
    talk: Talk, monkeypatch: pytest.MonkeyPatch, left_s: float | None, is_searched: bool
) -> None:
    clock, before = [0.0], CpuDevice.open

    def open_slowly(self: CpuDevice, *rest: Any, **more: Any) -> Any:
        clock[0] += 30.0
        return before(self, *rest, **more)

    monkeypatch.setattr(CpuDevice, "open", open_slowly)
    for module in (optimizing, time_budget):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    found = talk(OPTIMIZE, Optimize(replace(ON_CPU, budget_s=20.0)), fire(), left_s=left_s)
    assert (found.measurements > 0) == is_searched
    assert len(talk.all(Opened)) == 1


def test_a_plan_that_fails_on_a_worker_is_contained_there(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_where(monkeypatch, has("gs"), FAULTS[0])
    found = talk(OPTIMIZE, Optimize(ON_CPU), fire())
    assert (found.shipped, found.document.runtime["reason"]) == ("reference", found.reason)
    assert "Conv 'gs'" in found.reason
    with pytest.raises(PlanError, match="Conv 'gs'"):
        talk(OPTIMIZE, Optimize(replace(ON_CPU, strict=True)), fire())


def test_an_interruption_ends_a_search_with_the_best_known(talk: Talk, measured: list[int]) -> None:
    def stop_soon(message: WorkerMessage) -> DriverMessage | None:
        return StopAssignment(call=0, how="best") if len(measured) == 3 and isinstance(message, Measured) else None

    talk.answer = stop_soon
    found = talk(OPTIMIZE, Optimize(ON_CPU), fire())
    assert found.measurements < 12
    assert sorted(name for stage in found.schedule.stages for name in stage.operators) == sorted(
        operator.name for operator in fire().graph.operators
    )


def test_an_interruption_without_a_result_is_an_interrupted_task_error(talk: Talk, measured: list[int]) -> None:
    talk.answer = lambda message: StopAssignment(call=0, how="now") if len(measured) == 3 else None
    with pytest.raises(InterruptedTaskError):
        talk(OPTIMIZE, Optimize(ON_CPU), fire())
    talk.answer = lambda message: None
    assert talk(OPTIMIZE, Optimize(ON_CPU), fire()).schedule, "the next task is not interrupted"


def test_an_interruption_may_come_before_its_task(talk: Talk) -> None:
    talk.send(StopAssignment(call=0, how="now"))
    with pytest.raises(InterruptedTaskError):
        talk(OPTIMIZE, Optimize(ON_CPU), fire())


@pytest.mark.parametrize("changes", [{"threads": 3}, {"launch": "streams"}])
def test_an_error_is_the_same_as_that_of_a_local_call(talk: Talk, changes: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"--threads 3 is more than the 2|launch='streams' only applies"):
        talk(OPTIMIZE, Optimize(replace(ON_CPU, **changes)), fire())


@pytest.mark.parametrize(
    ("kind", "work", "says"),
    [
        ("dance", {}, "no task of the kind 'dance'"),
        ("optimize", {"settings": {"device": 5}}, r"\$.settings.device"),
        ("optimize", {"settings": {"profile_db": "/etc/passwd"}}, "profile_db"),
        ("score", {"name": "t", "command": {"words": "rm"}, "choices": {}}, "words"),
        ("questions", {"opening": {}, "questions": [{}]}, "questions"),
    ],
)
def test_an_invalid_task_is_refused(talk: Talk, kind: str, work: object, says: str) -> None:
    with pytest.raises(ExecutionError, match=says):
        talk(kind, work, fire())


def test_evaluating_an_incomplete_schedule_is_refused(talk: Talk) -> None:
    found = talk(SEARCH, Search("cpu", OpenSettings(), "both", DEFAULT_PRUNING), fire())
    priced = talk(PRICE, Price("cpu", OpenSettings(), (found.schedule,), 0), fire())
    assert priced.latency_us[0] <= priced.sequential_us
    broken = replace(found.schedule, blocks=found.schedule.blocks[:-1])
    with pytest.raises(UsageError, match="exactly the operators of the model"):
        talk(PRICE, Price("cpu", OpenSettings(), (broken,), 0), fire())


def test_a_model_that_differs_from_the_drivers_is_refused(talk: Talk) -> None:
    sent, data = packed(fire())
    call = Call(call=1, kind=QUESTIONS, work=msgspec.to_builtins(asked()), model=sent)
    other = msgspec.structs.replace(call, model=msgspec.structs.replace(sent, structure="0" * 64))
    for told, file, says in (
        (call, data[:-1], "changed on its way"),
        (call, packed(fire(2))[1], "changed on its way"),
        (other, data, "read as another model here"),
    ):
        talk.heard.clear()
        talk.send(told, file)
        until = time.monotonic() + PATIENCE_S
        while not talk.all(Failed):
            assert time.monotonic() < until
            assert not talk.all(Done)
        error = raised(talk.all(Failed)[0])
        assert isinstance(error, InvalidModelError)
        assert says in str(error)


def test_any_error_is_reported_and_the_next_task_runs(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Worker, "loaded", lambda *_: 1 / 0)
        with pytest.raises(ExecutionError, match="ZeroDivisionError: division by zero"):
            talk(OPTIMIZE, Optimize(ON_CPU), fire())
    assert talk(QUESTIONS, asked(ASKED[0]), fire()) == 1


@pytest.mark.parametrize("error", [DeviceLostError("the GPU\nis gone"), None])
def test_a_lost_device_or_an_invalid_message_makes_a_worker_unusable(
    talk: Talk, monkeypatch: pytest.MonkeyPatch, error: Exception | None
) -> None:
    has_ended = threading.Event()

    def lost(*_: object) -> None:
        raise error or AssertionError

    talk.answer = lambda message: has_ended.set() if isinstance(message, Unusable) else None
    monkeypatch.setattr(calling.WorkerContext, "settings", lost)
    if error:
        talk.begin(OPTIMIZE, Optimize(ON_CPU), fire())
    else:
        talk.worker.take(b"\x80pickle", lambda: b"")
    assert has_ended.wait(PATIENCE_S)
    (said,) = talk.all(Unusable)
    assert said.reason == "the GPU is gone" if error else "is broken" in said.reason
    assert talk.all(Failed) == []


def test_a_worker_that_cannot_start_reports_the_reason() -> None:
    said: list[bytes] = []
    has_ended = threading.Event()
    Worker("v100", THREADS, lambda message: (said.append(message), has_ended.set())[0], {})
    assert has_ended.wait(PATIENCE_S)
    assert len(said) == 1
    assert b'"unusable"' in said[0]
    assert b"v100 is not attached to this worker's machine" in said[0]


def command(text: str, timeout_s: float | None = 20.0) -> ScoreCommand:
    return ScoreCommand((sys.executable, "-c", text, "{model}", "{params}"), timeout_s)


def test_a_score_is_read_from_the_output_of_the_program(talk: Talk) -> None:
    text = "import sys, json; print(json.dumps({'score': len(open(sys.argv[1], 'rb').read()), 'k': len(sys.argv[2])}))"
    found = talk(SCORE, Score("trial-0007", command(text), HERE, {"kind": "Tanh"}), fire())
    assert found == Scores((Scored({"score": float(len(packed(fire())[1])), "k": len('{"kind": "Tanh"}')}),))


def test_a_failed_score_command_gives_a_reason(talk: Talk) -> None:
    found = talk(SCORE, Score("t", command("import sys; sys.exit(3)"), HERE, {}), fire())
    assert found == Scores(reason="the score command failed with exit code 3")
    missing = replace(command(""), words=("no-such-program", "{model}"))
    found = talk(SCORE, Score("t", missing, HERE, {}), fire())
    assert found.reason == "the worker's machine has no program 'no-such-program'"


def test_a_score_command_runs_in_the_folder_of_the_user(talk: Talk, tmp_path: Path) -> None:
    """Not in that of the worker, so that relative paths of the user are found."""
    program = tmp_path / "bin" / "score"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\ncat told\n")
    program.chmod(0o755)
    (tmp_path / "told").write_text("0.25")
    named = replace(command(""), words=("bin/score", "{model}"))
    assert talk(SCORE, Score("t", named, str(tmp_path), {}), fire()) == Scores((Scored({"score": 0.25}),))
    elsewhere = str(tmp_path / "nowhere")
    found = talk(SCORE, Score("t", named, elsewhere, {}), fire())
    assert found.reason == (f"the worker's machine has no folder {elsewhere!r} to run the score command in")


STEPS = 'import time\nfor n in range(600): print(\'{"step": %d, "score": 0.5}\' % n, flush=True); time.sleep(0.1)'


def test_a_pruned_score_command_is_ended(talk: Talk) -> None:
    talk.answer = lambda message: StopAssignment(call=0, how="pruned") if isinstance(message, Step) else None
    with pytest.raises(InterruptedTaskError):
        talk(SCORE, Score("t", command(STEPS), HERE, {}, watched="score"), fire())
    assert talk.all(Step)[0] == Step(call=0, step=0, value=0.5)


def test_a_stopped_score_command_has_no_score(talk: Talk) -> None:
    talk.answer = lambda message: StopAssignment(call=0, how="now") if isinstance(message, Step) else None
    with pytest.raises(InterruptedTaskError):
        talk(SCORE, Score("t", command(STEPS), HERE, {}, watched="score"), fire())


def test_a_worker_first_describes_itself() -> None:
    talk = Talk(THREADS)
    facts = talk.facts
    assert (facts.device, facts.threads, facts.disturbed_by) == ("cpu", THREADS, ())
    assert {"iosched", "python", "onnxruntime"} <= facts.versions.keys()
    (row,) = facts.yardstick
    assert isinstance(row, CalibrationRow)
    assert row.device == facts.key
    talk(QUESTIONS, asked(ASKED[0]), fire())
    assert {row.device for row in talk.rows} == {facts.key}


def test_progress_is_sent_less_often_than_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    latencies_by_stage(monkeypatch)
    talk = Talk(THREADS)
    talk(COST, Cost("stages", ON_CPU), fire())
    assert talk.all(Progress)
    assert len(talk.all(Progress)) < len(talk.rows)


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
    model = dynamic[way]
    again = unpacked(*packed(model))
    assert (again.name, again.digest, again.bindings) == (model.name, model.digest, model.bindings)
    assert again.structure.digest == model.structure.digest
