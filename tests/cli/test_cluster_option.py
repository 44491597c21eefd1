"""`--cluster`: each command on workers in this process instead of Ray; see also tests/jobs/pool/ray."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import onnx
import pytest
from scripted import LATENCIES_US, fire_proto, latencies_by_stage, script_models
from small_models import branches
from thread_cluster import Say, ThreadTransport, cpu_places

from iosched.cli.cluster_display import ClusterView, lines_of
from iosched.jobs import optimize_task
from iosched.jobs.optimize import OptimizeSettings, optimize
from iosched.jobs.pool import cluster as cluster_pool
from iosched.jobs.pool.cluster import ClusterPool, PoolStatus, WorkerStatus
from iosched.jobs.pool.messages import Call
from iosched.jobs.pool.task import JobBudget
from iosched.jobs.pool.timeouts import Timeouts
from iosched.jobs.pool.transport import Lost
from iosched.jobs.pool.worker import Worker as AnyWorker
from iosched.jobs.worker import Worker
from iosched.models.errors import DeviceError
from iosched.profiler.devices.cpu import measured_cost as cpu_cost
from iosched.profiler.measuring.statistics import Measurement
from iosched.scheduler.batch_schedules import BatchSchedules

SPACE = "space.py"


class OneDies(ThreadTransport):
    """A cluster whose first worker is lost as soon as it is called."""

    def __init__(self, *rest: Any) -> None:
        super().__init__(*rest, on_call=self._called)

    def _called(self, there: ThreadTransport, worker: str, call: Call) -> None:
        if len(self.calls) == 1:
            self.kill(worker, "the machine was switched off")


@pytest.fixture(autouse=True)
def _space(workdir: Path) -> None:
    (workdir / SPACE).write_text("from toy_space import SPACE as space\n")


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[tuple[Any, ...]]]:
    """Replaces Ray with a cluster of n workers for `--cluster`; returns the arguments of each connection."""
    script_models(monkeypatch, {**LATENCIES_US, "greedy": 10.0})  # the schedule found for some batch sizes
    latencies_by_stage(monkeypatch)

    def of(count: int, made: type[ThreadTransport] = ThreadTransport) -> list[tuple[Any, ...]]:
        asked: list[tuple[Any, ...]] = []

        def connected(text: object, threads: int | None) -> ThreadTransport:
            asked.append((str(text), threads))
            return made(cpu_places(count), worker_on)

        monkeypatch.setattr(cluster_pool, "RayTransport", connected)
        return asked

    return of


def worker_on(device: str, threads: int, say: Say) -> AnyWorker:
    return Worker(device, 2, say)


def test_optimize_writes_the_model_and_reports_the_workers(invoke, workdir: Path, cluster) -> None:
    asked = cluster(2)
    onnx.save(fire_proto(), "fire.onnx")
    result = invoke("optimize", "fire.onnx", "--cluster", "local:2", "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["shipped"] == "iosched"
    used = found["cluster"]
    assert (used["address"], used["workers"], used["lost"]) == ("local:2", {"cpu": 2}, [])
    assert used["done"] >= 1
    assert asked == [("local:2", None)]
    assert Path("fire.iosched.onnx").exists()
    again = json.loads(invoke("optimize", "fire.onnx", "--device", "cpu", "--threads", 2, "--json").stdout)
    assert again["search"]["measurements"] == 0  # all measurements of the workers are in the profile database
    assert "cluster" not in again


@pytest.mark.slow
def test_optimize_for_several_batch_sizes_measures_each_on_the_cluster(invoke, workdir: Path, cluster) -> None:
    asked = cluster(2)
    onnx.save(fire_proto(), "fire.onnx")
    result = invoke("optimize", "fire.onnx", "--batch-sizes", "1,4", "--cluster", "local:2", "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert [(each["batch_size"], each["shipped"]) for each in found["results"]] == [(1, "iosched"), (4, "iosched")]
    used = found["cluster"]
    assert (used["address"], used["workers"], used["lost"]) == ("local:2", {"cpu": 2}, [])
    assert used["done"] >= 2
    assert asked == [("local:2", None)]  # one cluster for all sizes
    assert BatchSchedules.from_json(Path("fire.schedule.json").read_text()).batch_sizes == (1, 4)
    words = ("--batch-sizes", "1,4", "--device", "cpu", "--threads", 2, "--json")
    again = json.loads(invoke("optimize", "fire.onnx", *words).stdout)
    assert [each["search"]["measurements"] for each in again["results"]] == [0, 0]


def test_rank_prints_rows(invoke, workdir: Path, cluster) -> None:
    cluster(2)
    for channels in (8, 16):
        onnx.save(branches(channels=channels), f"m{channels}.onnx")
    result = invoke("rank", "m8.onnx", "m16.onnx", "--measure", "stages", "--cluster", "auto", "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert [(row["device"], row["error"]) for row in found["rows"]] == [("cpu", None)] * 2
    assert found["cluster"]["address"] == "auto"


def test_after_ctrl_c_rank_prints_finished_rows_and_the_workers(
    invoke, workdir: Path, cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(view: ClusterView, done: int, total: int | None, text: str) -> None:
        if done:
            raise KeyboardInterrupt

    monkeypatch.setattr(ClusterView, "progress", interrupted)
    cluster(1)
    for channels in (8, 16):
        onnx.save(branches(channels=channels), f"m{channels}.onnx")
    result = invoke("rank", "m8.onnx", "m16.onnx", "--measure", "stages", "--cluster", "local:1", "--json")
    assert result.exit_code == 130
    assert "Interrupted" in result.stderr
    found = json.loads(result.stdout)
    assert found["interrupted"]
    assert [(row["model"], row["error"]) for row in found["rows"]] == [("m8", None), ("m16", "interrupted")]
    assert found["cluster"]["workers"] == {"cpu": 1}


@pytest.mark.slow
def test_explore_completes_all_trials_after_losing_a_worker(invoke, model: Path, cluster) -> None:
    cluster(3, OneDies)
    result = invoke(
        *("explore", "branches.onnx", "--space", SPACE, "--trials", 4, "--top", 1, "--measure", "stages"),
        *("--sampler", "random", "--cluster", "ray://head:10001", "--json"),
    )
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["trials"] == 4
    (line,) = found["cluster"]["lost"]
    assert "switched off" in line
    assert "switched off" in result.stderr
    assert len(list(Path("branches.explored").glob("trial-*.onnx"))) == 1


@pytest.mark.slow
def test_explore_on_a_cluster_simulates_a_gpu_as_without_a_cluster(invoke, model: Path, cluster) -> None:
    cluster(2)
    words = ("explore", "branches.onnx", "--space", SPACE, "--sampler", "random", "--trials", 4, "--top", 1, "--json")
    objective = ("--objective", "min:latency:v100")
    here, there = (
        invoke(*words, *objective, "--storage", f"{name}.db", *where)
        for name, where in (("here", ()), ("there", ("--cluster", "local:2")))
    )
    assert there.exit_code == 0, there.stderr
    found = json.loads(there.stdout)
    assert (found["trials"], found["failed"]) == (4, 0)
    assert {row["latencies"]["v100"]["cost"] for row in found["front"]} == {"analytic"}
    assert best(found) == best(json.loads(here.stdout))
    assert found["cluster"]["workers"] == {"cpu": 2}


def best(found: Any) -> list[Any]:
    return [(row["trial"], row["objectives"], row["params"]) for row in found["front"]]


def test_rank_simulates_gpus_alongside_measuring_on_the_cluster(invoke, model: Path, cluster) -> None:
    cluster(2)
    words = ("rank", "branches.onnx", "--measure", "stages", "--threads", 2, "--json")
    result = invoke(*words, "--device", "V100,cpu,v100,t4", "--cluster", "local:2")
    assert result.exit_code == 0, result.stderr
    rows = json.loads(result.stdout)["rows"]
    assert [(row["device"], row["cost"], row["error"]) for row in rows] == [
        ("v100", "analytic", None), ("cpu", "estimated", None), ("t4", "analytic", None),
    ]  # fmt: skip
    without = json.loads(invoke(*words, "--device", "v100,t4").stdout)["rows"]
    assert [row["latency_us"] for row in without] == [rows[0]["latency_us"], rows[2]["latency_us"]]


def test_matrix_prints_a_table(invoke, workdir: Path, cluster) -> None:
    cluster(2)
    onnx.save(branches(batch="N"), "m.onnx")
    result = invoke("matrix", "m.onnx", "--device", "cpu", "--batch-sizes", "1,2", "--cluster", "h:1", "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert [(target["device"], target["batch_size"], target["cost"]) for target in found["targets"]] == [
        ("cpu", 1, "measured"), ("cpu", 2, "measured"),
    ]  # fmt: skip
    assert found["cluster"]["address"] == "h:1"


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("optimize", "branches.onnx", "--device", "v100"), 2, "the cluster has no device 'v100': it has cpu"),
        (("optimize", "branches.onnx", "--no-resume"), 2, "--no-resume and --cluster contradict"),
        (("optimize", "branches.onnx", "--dry-run"), 2, "leave --cluster out"),
        (("optimize", "branches.onnx", "--threads", "3"), 2, "--threads 3 is more than the 2"),
        (("rank", "branches.onnx", "--device", "cpu,cuda:0"), 2, "the cluster has no device 'cuda:0'"),
        (("matrix", "branches.onnx", "--device", "t4"), 2, "the cluster has no device 't4'"),
        (("explore", "branches.onnx", "--space", SPACE, "--objective", "latency:cuda:0"), 2, "no device 'cuda:0'"),
    ],
)
def test_devices_and_options_that_a_cluster_does_not_support_are_refused(
    invoke, model: Path, cluster, complains, words: Sequence[Any], code: int, says: str
) -> None:
    cluster(1)
    complains(invoke(*words, "--cluster", "local:1"), code, says)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shortens the timeout for a device without a worker."""
    monkeypatch.setattr(cluster_pool, "ClusterPool", partial(ClusterPool, timeouts=Timeouts(without_s=2.0)))


@pytest.fixture
def noisy(monkeypatch: pytest.MonkeyPatch, cluster: Callable[..., list[tuple[Any, ...]]]) -> None:
    """Every measurement of a worker is disturbed, from its start."""
    measured = cpu_cost.CpuStageCost._timed

    def disturbed(*asked: Any) -> Measurement:
        return replace(measured(*asked), disturbed_by=("other processes used 60% of the cores",))

    monkeypatch.setattr(cpu_cost.CpuStageCost, "_timed", disturbed)


@pytest.mark.usefixtures("impatient", "noisy")
def test_a_search_on_a_cluster_that_is_always_noisy_ends_with_a_result(invoke, workdir: Path, cluster) -> None:
    cluster(2)
    onnx.save(fire_proto(), "fire.onnx")
    result = invoke("optimize", "fire.onnx", "--cluster", "local:2", "--budget", "20", "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["shipped"] == "iosched"
    assert (found["cluster"]["workers"], found["cluster"]["lost"]) == ({"cpu": 2}, [])
    assert "its machine is noisy: other processes used 60% of the cores" in result.stderr


class Clock:
    """The driver's clock, which a test can advance once a budget runs, also by a step at each reading."""

    def __init__(self) -> None:
        self.counts = threading.Event()
        self._ahead_s = self._step_s = 0.0

    def monotonic(self) -> float:
        self._ahead_s += self._step_s
        return time.monotonic() + self._ahead_s

    def advance(self, seconds: float, step_s: float = 0.0) -> None:
        assert self.counts.wait(10.0)
        self._ahead_s, self._step_s = seconds, step_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made, before = Clock(), JobBudget.open

    def counts(budget: JobBudget, now_s: float) -> None:
        before(budget, now_s)
        made.counts.set()

    monkeypatch.setattr(cluster_pool, "time", made)
    monkeypatch.setattr(JobBudget, "open", counts)
    return made


def on_stage(monkeypatch: pytest.MonkeyPatch, number: int, do: Callable[[], object]) -> None:
    """Calls `do` while the stage of a model with this number, from 0, is measured."""
    measured, count = cpu_cost.CpuStageCost._timed, itertools.count()

    def timed(cost: Any, *asked: Any) -> Measurement:
        if len(cost.backend.graph.operators) > 1 and next(count) == number:  # starting a worker measures one operator
            do()
        return measured(cost, *asked)

    monkeypatch.setattr(cpu_cost.CpuStageCost, "_timed", timed)


def test_a_worker_that_restarts_a_lost_search_gets_the_remaining_budget(
    invoke, workdir: Path, cluster, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    transports: list[ThreadTransport] = []

    class Watched(ThreadTransport):
        def __init__(self, *rest: Any) -> None:
            super().__init__(*rest)
            transports.append(self)

    def dies() -> None:
        clock.advance(12.0)
        transports[0].kill(transports[0].calls[0][0], "out of memory")

    budgets: list[float | None] = []

    def counted(model: Any, settings: OptimizeSettings, *rest: Any) -> Any:
        budgets.append(settings.budget_s)
        return optimize(model, settings, *rest)

    cluster(2, Watched)
    on_stage(monkeypatch, 2, dies)
    monkeypatch.setattr(optimize_task, "optimize", counted)
    onnx.save(fire_proto(), "fire.onnx")
    result = invoke("optimize", "fire.onnx", "--cluster", "local:2", "--budget", "20", "--json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["shipped"] in ("iosched", "reference")
    first, second = budgets
    assert first == 20.0
    assert second is not None
    assert 0.0 <= second <= 8.0


@pytest.mark.parametrize("command", ["optimize", "rank"])
def test_a_command_with_a_hung_worker_ends_soon_after_its_budget(
    invoke, model: Path, cluster, clock: Clock, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    released = threading.Event()

    def hangs() -> None:
        clock.advance(0.0, step_s=20.0)
        released.wait(10.0)  # no command waits for this

    cluster(1)
    on_stage(monkeypatch, 1, hangs)
    result = invoke(command, "branches.onnx", "--cluster", "local:1", "--budget", "20")
    released.set()
    assert result.exit_code == 1, result.stderr
    assert "the budget of 20 s was over before a worker had a result" in result.stderr
    assert "a larger --budget" in result.stderr


def test_models_without_time_left_in_the_budget_are_rows_with_an_error(
    invoke, workdir: Path, cluster, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster(1)
    on_stage(monkeypatch, 1, lambda: clock.advance(21.0))
    for channels in (8, 16, 24):
        onnx.save(branches(channels=channels), f"m{channels}.onnx")
    words = ("m8.onnx", "m16.onnx", "m24.onnx", "--measure", "stages", "--cluster", "local:1", "--budget", "20")
    result = invoke("rank", *words, "--json")
    assert result.exit_code == 0, result.stderr
    first, *others = json.loads(result.stdout)["rows"]
    assert (first["model"], first["error"]) == ("m8", None)
    assert all("a larger --budget" in row["error"] for row in others)


@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
def test_workers_that_never_start_are_an_error_that_names_the_reason(
    invoke, model: Path, cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(transport: ThreadTransport, worker: str, place: object) -> None:
        transport._events.put(Lost(worker, "its machine has no onnxruntime", has_ended=True))

    cluster(1)
    monkeypatch.setattr(ThreadTransport, "_start", lost)
    for command in ("optimize", "rank"):
        result = invoke(command, "branches.onnx", "--cluster", "local:1", "--budget", "1")
        assert result.exit_code == 3, result.stderr
        for words in ("no worker on cpu came up", "has no onnxruntime", "iosched devices --cluster"):
            assert words in result.stderr


def test_an_unreachable_cluster_is_reported_as_a_missing_device(
    invoke, workdir: Path, model: Path, cluster, complains, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nowhere(text: object, threads: int | None) -> ThreadTransport:
        raise DeviceError("there is no Ray cluster at h:1: start one with: ray start --head")

    monkeypatch.setattr(cluster_pool, "RayTransport", nowhere)
    complains(invoke("optimize", "branches.onnx", "--cluster", "h:1"), 3, "no Ray cluster at h:1")
    (workdir / "mine").mkdir()
    for words in ((), ("-o", "mine")):
        complains(
            invoke("explore", "branches.onnx", "--space", SPACE, *words, "--cluster", "h:1"), 3, "no Ray cluster at h:1"
        )
    assert (workdir / "mine").is_dir()
    assert not (workdir / "branches.explored").exists()  # no trial was made that would be in it


@pytest.mark.parametrize("command", ["optimize", "rank", "matrix --device cpu", f"explore --space {SPACE}"])
def test_a_malformed_cluster_address_is_wrong_usage(invoke, model: Path, complains, command: str) -> None:
    complains(invoke(*command.split(), "branches.onnx", "--cluster", "everywhere"), 2, "everywhere")


def status(count: int, lost: Sequence[str] = ()) -> PoolStatus:
    workers = tuple(
        WorkerStatus(f"w{number}", f"node{number}", "cpu", "cost branches" if number else "", number)
        for number in range(count)
    )
    return PoolStatus(workers, waiting=3, done=7, lost=tuple(lost))


def test_a_display_has_a_line_for_each_worker_and_one_for_all() -> None:
    assert lines_of(None) == []
    first, second, all_ = lines_of(status(2, ["node9 was lost"]))
    assert first.split() == ["node0,", "cpu", "0", "done", "rests"]
    assert second.split() == ["node1,", "cpu", "1", "done", "cost", "branches"]
    assert all_ == "  2 workers, 1 lost; 7 done, 3 waiting"


def test_a_display_of_many_workers_stays_short() -> None:
    lines = lines_of(status(100))
    assert len(lines) == 14
    assert lines[-2] == "  and 88 more"


def test_a_display_reports_the_connection_before_any_task_is_done(
    invoke, model: Path, cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster(1)
    shown: list[str] = []
    monkeypatch.setattr(ClusterView, "progress", lambda view, done, total, text: shown.append(text))
    assert invoke("rank", "branches.onnx", "--cluster", "local:1").exit_code == 0
    assert shown == ["the cluster is reached", "branches on cpu", "branches on cpu done"]


def test_a_display_and_its_notes_appear_on_a_terminal() -> None:
    from io import StringIO

    from rich.console import Console

    out = StringIO()
    view = ClusterView(prints=True)
    with view.drawn(Console(file=out, force_terminal=True, width=100)):
        view.status(status(2))
        view.begin(36000)
        view.progress(1, 4, "trial 1")
        view.note("node9 [was] lost")
        with view.paused():
            pass
    text = out.getvalue()
    assert "node9 [was] lost" in text
    assert "node1, cpu" in text
    assert "trial 1" in text
    assert "left 9:" in text
