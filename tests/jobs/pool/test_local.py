"""The pool of this machine runs one task after another while a caller waits."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from scripted import fire, latencies_by_stage
from thread_cluster import finish, toy_model

from iosched.jobs.exploring.score import SCORE, Score, ScoreCommand
from iosched.jobs.pool.local import LocalPool
from iosched.jobs.pool.messages import InterruptedTaskError, Step
from iosched.jobs.pool.task import Context, How, Kind, Task, WorkerPool
from iosched.models.errors import DeviceError, UsageError
from iosched.models.model import Model
from iosched.profiler.devices.cpu.device import CpuDevice
from iosched.profiler.devices.cpu.open import OpenOnCpu
from iosched.profiler.devices.open_settings import OpenSettings
from iosched.profiler.store.database import ProfileDatabase


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[WorkerPool]:
    with LocalPool(tmp_path / "p.db") as found:
        yield found


class Done:
    """Tasks that record when they are done."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.kind = Kind("note", str, str, self._do)

    def _do(self, work: str, here: Context) -> str:
        self.names.append(work)
        if work == "broken":
            raise UsageError("no such thing")
        if work == "odd":
            raise ZeroDivisionError
        return work.upper()

    def task(self, name: str) -> Task[str]:
        return Task(self.kind, name, toy_model("toy"), "cpu")


def test_tasks_run_in_order_during_a_wait(pool: WorkerPool) -> None:
    done = Done()
    first, second = (pool.submit(done.task(name)) for name in "ab")
    assert done.names == []
    pool.wait([first, second])
    assert (done.names, first.is_done, second.is_done) == (["a"], True, False)
    pool.wait([first, second])
    assert done.names == ["a"], "a wait ends once one task is done"
    pool.wait([second])
    assert [first.result(), second.result()] == ["A", "B"]
    pool.wait([])


@pytest.mark.parametrize(("name", "error"), [("broken", UsageError), ("odd", ZeroDivisionError)])
def test_an_error_is_the_result_of_its_task(pool: WorkerPool, name: str, error: type[Exception]) -> None:
    done = Done()
    broken, good = pool.submit(done.task(name)), pool.submit(done.task("good"))
    assert finish(pool, good) == ["GOOD"]
    with pytest.raises(error):
        broken.result()


def test_a_stopped_task_never_starts(pool: WorkerPool) -> None:
    done = Done()
    first, second = (pool.submit(done.task(name)) for name in "ab")
    pool.stop(first, "now")
    assert finish(pool, second) == ["B"]
    pool.stop(second, "now")
    assert second.result() == "B"
    assert done.names == ["b"]
    with pytest.raises(InterruptedTaskError):
        first.result()


def test_a_model_stays_open_on_a_device_until_the_pool_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, closed = list[Any](), list[Any]()
    open_here, close_here = CpuDevice.open, OpenOnCpu.close

    def open_noted(self: CpuDevice, model: Model, *rest: Any, **more: Any) -> Any:
        found = open_here(self, model, *rest, **more)
        opened.append((found, more["alongside"]))
        return found

    monkeypatch.setattr(CpuDevice, "open", open_noted)
    monkeypatch.setattr(OpenOnCpu, "close", lambda self: (closed.append(self), close_here(self)))
    latencies_by_stage(monkeypatch)
    models, settings = (fire(1), fire(2)), OpenSettings(threads=2)
    kind = Kind("open", str, bool, lambda work, here: here.opened("cpu", settings) is here.opened("cpu", settings))
    with LocalPool(tmp_path / "p.db") as pool:
        assert finish(pool, *(pool.submit(Task(kind, "", models[index], "cpu")) for index in (0, 1, 0))) == [True] * 3
        assert (len(opened), closed) == (2, [])
    (first, beside_first), (second, beside_second) = opened
    assert (beside_first, beside_second) == (None, first), "models on one device share its threads"
    assert closed == [second, first]


def test_measurements_are_stored_in_the_database_of_the_pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stages = latencies_by_stage(monkeypatch)

    def measure(work: str, here: Context) -> float:
        opened = here.opened("cpu", OpenSettings(threads=2)).attached
        assert opened is not None
        return opened.cost.operator_latency_us("fs")

    with LocalPool(tmp_path / "p.db") as pool:
        finish(pool, pool.submit(Task(Kind("measure", str, float, measure), "", fire(), "cpu")))
    with ProfileDatabase(tmp_path / "p.db") as database:
        assert sum(1 for _ in database.rows()) >= len(stages) > 0


def test_a_score_task_writes_its_model_and_reports_its_steps(pool: WorkerPool) -> None:
    text = "import sys; print('{\"step\": 1, \"score\": 0.5}'); print(len(open(sys.argv[1], 'rb').read()))"
    command = ScoreCommand((sys.executable, "-c", text, "{model}"), 20.0)
    heard: list[object] = []
    work = Score("t", command, str(Path.cwd()), {}, watched="score")
    (found,) = finish(pool, pool.submit(Task(SCORE, work, fire(), "cpu", on_said=heard.append)))
    assert heard == [Step(call=0, step=1, value=0.5)]
    assert found.of[0].values["score"] > 1000, found


def test_a_device_is_one_of_this_machine_or_a_gpu_that_it_simulates(pool: WorkerPool) -> None:
    cpu, gpu = pool.target("CPU"), pool.target("V100")
    assert (cpu.device, cpu.asked, cpu.is_remote, cpu.is_simulated) == ("cpu", "CPU", False, False)
    assert (gpu.device, gpu.is_simulated, gpu.rows) == ("v100", False, ())
    assert cpu.workers == gpu.workers, "both use the same worker"
    assert (pool.count(cpu.workers), pool.n_up([cpu.workers])) == (1, 1)
    with pytest.raises(UsageError, match="unknown device 'nothing'"):
        pool.target("nothing")
    with pytest.raises(DeviceError):
        pool.target("cuda:7")


def test_a_budget_begins_at_once(pool: WorkerPool) -> None:
    assert pool.budget(None) is None
    began = time.monotonic()
    found = pool.budget(10.0)
    assert found is not None
    assert began <= (found.opened_s or 0.0) <= time.monotonic()


def test_a_stop_affects_only_its_own_task(pool: WorkerPool) -> None:
    seen: list[How | None] = []

    def work(name: str, here: Context) -> str:
        if name == "first":
            pool.stop(first, "pruned")
        seen.append(here.stopped())
        return name

    kind = Kind("toy", str, str, work)
    first, second, third = (pool.submit(Task(kind, name, fire(), "cpu")) for name in ("first", "second", "third"))
    pool.stop(second, "now")
    assert finish(pool, first, third) == ["first", "third"]
    pool.stop(first, "now")  # which is done
    assert finish(pool, pool.submit(Task(kind, "fourth", fire(), "cpu"))) == ["fourth"]
    assert seen == ["pruned", None, None]
    assert isinstance(second.exception(), InterruptedTaskError)
