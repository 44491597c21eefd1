"""A pool runs the tasks of jobs, whatever happens to its workers, its cluster and its database."""

from __future__ import annotations

import sqlite3
import threading
import time
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from thread_cluster import (
    KEY,
    ONCE,
    PATIENCE_S,
    Kept,
    Talk,
    ThreadPool,
    ThreadTransport,
    asked_in,
    cpu_places,
    finish,
    row,
    soon,
    thread_pool,
    toy_facts,
    toy_task,
    toys,
)

from iosched.jobs.pool import transport
from iosched.jobs.pool.cluster import ClusterPool
from iosched.jobs.pool.messages import InterruptedTaskError, Progress, StopAssignment, encoded
from iosched.jobs.pool.task import Kind
from iosched.jobs.pool.timeouts import Timeouts
from iosched.jobs.pool.transport import Send
from iosched.models.errors import DeviceError, DeviceLostError, ExecutionError, UsageError
from iosched.models.version import iosched_version
from iosched.profiler.measuring.statistics import summarize
from iosched.profiler.store.database import ProfileDatabase
from iosched.profiler.store.tables import CalibrationRow


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "profile.sqlite"


def quick_task(talk: Talk) -> Any:
    talk.measured(f"stage of {talk.name}")
    return talk.call.work["name"].upper()


quick = partial(toys, quick_task)


def stages(path: Path) -> set[str]:
    with ProfileDatabase(path) as database:
        return set(database.stage_medians(KEY))


def holder(pool: ThreadPool, name: str) -> str:
    """The worker that last started a task of this name."""
    return next(worker for worker, call in reversed(pool.calls) if call.model.name == name)


class Pauses:
    """A script whose first call of a task of this name waits until the test releases it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.has_begun, self.goes_on = threading.Event(), threading.Event()

    def __call__(self, talk: Talk) -> Any:
        if talk.name == self.name and not self.has_begun.is_set():
            talk.measured("stage before the end")
            self.has_begun.set()
            self.goes_on.wait(PATIENCE_S)
        return quick_task(talk)


def test_a_task_has_its_result_once_its_rows_are_in_the_database(path: Path) -> None:
    with thread_pool(path, made=quick(), cpu=2, v100=1) as pool:
        assert pool._slots.devices == ("cpu", "v100")
        assert (pool.count("cpu"), pool.n_up(["cpu"])) == (2, 1), "the second may still be starting"
        pending = [pool.submit(toy_task(name)) for name in "abcde"]
        for each, name in zip(pending, "abcde", strict=True):
            assert finish(pool, each) == [name.upper()]
            assert f"stage of {name}" in stages(path)
        soon(pool, lambda: pool.n_up(["cpu", "v100"]) == 2)
        started = [each.place.device for each in pool.transport.sent if isinstance(each, transport.Start)]
        assert started == ["cpu", "cpu"], "workers for a device without tasks"


def test_a_task_starts_only_during_a_wait_and_a_wait_ends_in_time(path: Path) -> None:
    with thread_pool(path, made=toys(lambda talk: time.sleep(PATIENCE_S)), cpu=1) as pool:
        pending = pool.submit(toy_task())
        assert pool.transport.calls == []
        began = time.monotonic()
        pool.wait([pending], 0.1)
        assert 0.1 <= time.monotonic() - began < PATIENCE_S / 2
        assert not pending.is_done


def test_the_file_of_a_model_is_kept_while_a_task_needs_it(path: Path) -> None:
    with thread_pool(path, made=quick(), cpu=2) as pool:
        finish(pool, *(pool.submit(toy_task("same")) for _ in range(5)))
        (file,) = {each.model for each in pool.transport.sent if isinstance(each, Send) and each.model}
        assert not Path(file).exists()


def test_an_error_of_a_worker_is_raised_with_its_class(path: Path) -> None:
    made = toys(lambda talk: UsageError("no such thing"))
    with thread_pool(path, made=made, cpu=1) as pool, pytest.raises(UsageError, match="no such thing"):
        finish(pool, pool.submit(toy_task()))


def test_a_result_of_the_wrong_type_is_an_error(path: Path) -> None:
    number: Kind[Any, int] = Kind("number", dict, int, lambda work, context: 0)
    made = toys(lambda talk: "one")
    with thread_pool(path, made=made, cpu=1) as pool, pytest.raises(ExecutionError, match="Expected `int`, got `str`"):
        finish(pool, pool.submit(toy_task(kind=number)))


def test_messages_about_a_task_are_passed_on(path: Path) -> None:
    heard: list[object] = []
    progress = Progress(call=1, done=1, total=3, text="block 2")
    with thread_pool(path, made=toys(lambda talk: talk.say(encoded(progress))), cpu=1) as pool:
        finish(pool, pool.submit(toy_task(on_said=heard.append)))
    assert heard == [progress]


def test_a_worker_is_sent_rows_of_others_and_of_the_database_once(path: Path) -> None:
    with ProfileDatabase(path) as database:
        database.merge([row("known"), row("of another device", key="other")])
    with thread_pool(path, made=quick(), cpu=1) as pool:
        for name in "ab":
            finish(pool, pool.submit(toy_task(name)))
        pool.transport.change([*pool.transport.places, *cpu_places(3)[2:]])
        soon(pool, lambda: len(pool.workers) == 2)
        finish(pool, *(pool.submit(toy_task(name)) for name in "cdef"))
        told = {
            name: [[each.signature for each in call.rows] for worker, call in pool.calls if worker == name]
            for name in pool.workers
        }
    assert told["worker-1"][:2] == [["known"], []], "its own rows are not sent back"
    assert told["worker-2"][0][:3] == ["known", "stage of a", "stage of b"]
    all_told = [name for rows in told["worker-2"] for name in rows]
    assert len(all_told) == len(set(all_told))


def test_questions_are_answered_by_all_workers_and_the_search_gets_their_rows(path: Path) -> None:
    everybody = threading.Barrier(2)
    names = [f"operator{index}" for index in range(8)]

    def script(talk: Talk) -> Any:
        return sorted(each.signature for each in talk.ask(*names)) if talk.name == "search" else None

    def answer(talk: Talk) -> int:
        if names[0] in asked_in(talk.call) or names[7] in asked_in(talk.call):
            everybody.wait(PATIENCE_S)  # both workers have some
        talk.measured(*asked_in(talk.call))
        return 0

    with thread_pool(path, made=toys(script, answer=answer), cpu=2) as pool:
        (found,) = finish(pool, pool.submit(toy_task("search")))
        own = {name for worker, call in pool.packets if worker == holder(pool, "search") for name in asked_in(call)}
        assert sorted(name for _, call in pool.packets for name in asked_in(call)) == names
    assert set(found) == set(names) - own, "its own rows are not sent back"
    assert stages(path) == set(names)


def test_a_worker_that_is_killed_loses_nothing(path: Path) -> None:
    slow = Pauses("slow")
    with thread_pool(path, made=toys(slow), cpu=2) as pool:
        pending = [pool.submit(toy_task(name)) for name in ("slow", "b", "c")]
        soon(pool, slow.has_begun.is_set)
        pool.transport.kill(holder(pool, "slow"), "out of memory")
        assert finish(pool, *pending) == ["SLOW", "B", "C"]
        soon(pool, lambda: pool.status().lost)
        (lost,) = pool.status().lost
        assert lost.endswith(" was lost: out of memory")
        assert lost in pool.notes
    assert stages(path) == {"stage before the end", *(f"stage of {name}" for name in ("slow", "b", "c"))}


def test_a_worker_that_reports_itself_unusable_is_lost(path: Path) -> None:
    def script(talk: Talk) -> Any:
        if talk.name == "poison":
            raise DeviceLostError("the GPU is gone")  # reported by the script of a toy worker
        return quick_task(talk)

    with thread_pool(path, made=toys(script), cpu=4) as pool:
        poison, *others = [pool.submit(toy_task(name)) for name in ("poison", "b", "c")]
        assert finish(pool, *others) == ["B", "C"]
        with pytest.raises(ExecutionError, match=r"again and again.*\nThe last: the GPU is gone"):
            finish(pool, poison)
        stopped = {each.worker for each in pool.transport.sent if isinstance(each, transport.Stop)}
        assert stopped == {worker for worker, call in pool.calls if call.model.name == "poison"}


def test_new_workers_continue_after_all_were_killed(path: Path) -> None:
    first = threading.Event()

    def script(talk: Talk) -> Any:
        return quick_task(talk) if first.is_set() else time.sleep(PATIENCE_S)

    with thread_pool(path, made=toys(script), cpu=2) as pool:
        pending = [pool.submit(toy_task(name)) for name in "ab"]
        soon(pool, lambda: len(pool.calls) == 2)
        for worker in list(pool.transport.workers):
            pool.transport.kill(worker)
        first.set()
        assert finish(pool, *pending) == ["A", "B"]


def test_another_transport_continues_after_the_cluster_is_lost(path: Path) -> None:
    lost = threading.Event()

    def script(talk: Talk) -> Any:
        return quick_task(talk) if lost.is_set() else time.sleep(PATIENCE_S)

    with thread_pool(path, made=toys(script), cpu=2) as pool:
        pending = [pool.submit(toy_task(name)) for name in "abc"]
        soon(pool, lambda: len(pool.calls) == 2)
        lost.set()
        pool.transport.lose("the head died")
        assert finish(pool, *pending) == ["A", "B", "C"]
        assert len(pool.transports) == 2
        assert pool.transports[0].is_closed
        assert any("the head died" in note for note in pool.notes)


def test_the_devices_of_a_cluster_lost_between_two_tasks_stay_known(path: Path) -> None:
    with thread_pool(path, made=quick(), cpu=2) as pool:
        finish(pool, pool.submit(toy_task("a")))
        connect, pool.connect = pool.connect, _cannot  # type: ignore[method-assign]
        pool.transport.lose()
        soon(pool, lambda: any("not reached: Ray is not installed" in note for note in pool.notes))
        assert (pool._slots.devices, pool.count("cpu")) == (("cpu",), 2)
        pool.connect = connect  # type: ignore[method-assign]
        assert finish(pool, pool.submit(toy_task("b"))) == ["B"]


def _cannot() -> ThreadTransport:
    raise DeviceError("Ray is not installed")


def test_a_hanging_task_is_run_by_another_worker_and_the_first_is_stopped(path: Path) -> None:
    stops: list[StopAssignment] = []
    hangs = threading.Event()

    def script(talk: Talk) -> Any:
        if talk.name == "hangs" and not hangs.is_set():
            hangs.set()
            stops.append(talk.until_stopped())
            return InterruptedTaskError("interrupted")
        return quick_task(talk)

    timeouts = Timeouts(unknown_s=0.1, floor_s=0.1, without_s=PATIENCE_S, reconnect_s=0.01)
    with thread_pool(path, made=toys(script), timeouts=timeouts, cpu=2) as pool:
        assert finish(pool, pool.submit(toy_task("hangs"))) == ["HANGS"]
        soon(pool, lambda: stops)
        assert stops[0].how == "now"
        assert any("takes long for toy hangs: another is asked, too" in note for note in pool.notes)


def test_a_stopped_task_ends_with_the_result_of_its_worker(path: Path) -> None:
    with thread_pool(path, made=toys(lambda talk: talk.until_stopped().how), cpu=1) as pool:
        begun, waiting = pool.submit(toy_task("a")), pool.submit(toy_task("b"))
        soon(pool, lambda: pool.calls)
        pool.stop(waiting, "now")
        with pytest.raises(InterruptedTaskError):
            waiting.result()
        pool.stop(begun, "best")
        assert finish(pool, begun) == ["best"]


def test_a_stopped_task_is_not_restarted_when_its_worker_is_lost(path: Path) -> None:
    with thread_pool(path, made=toys(lambda talk: time.sleep(PATIENCE_S)), cpu=2) as pool:
        pending = pool.submit(toy_task())
        soon(pool, lambda: pool.calls)
        pool.stop(pending, "best")
        pool.transport.kill(holder(pool, "toy"))
        with pytest.raises(InterruptedTaskError):
            finish(pool, pending)
        assert len(pool.calls) == 1


def score_once(talk: Talk) -> Any:
    """A score that must not run twice at once, and never ends the first time."""
    return time.sleep(PATIENCE_S) if talk.call.call == 1 else "scored"


def test_a_score_whose_worker_has_ended_is_run_again_a_little_later(path: Path) -> None:
    timeouts = Timeouts(without_s=PATIENCE_S, ending_s=0.4)
    with thread_pool(path, made=toys(score_once), timeouts=timeouts, cpu=2) as pool:
        pending = pool.submit(toy_task(kind=ONCE))
        soon(pool, lambda: pool.calls)
        pool.transport.kill(holder(pool, "toy"), has_ended=True)
        lost_s = time.monotonic()
        soon(pool, lambda: len(pool.calls) == 2)
        assert time.monotonic() - lost_s >= 0.4, "the first may still be ending"
        assert finish(pool, pending) == ["scored"]


def test_a_score_that_may_still_run_is_not_run_again(path: Path) -> None:
    with thread_pool(path, made=toys(score_once), cpu=2) as pool:
        pending = pool.submit(toy_task("trial", kind=ONCE))
        soon(pool, lambda: pool.calls)
        pool.transport.kill(holder(pool, "trial"), "no answer", has_ended=False)
        with pytest.raises(ExecutionError) as error:
            finish(pool, pending)
        assert str(error.value) == (
            "once trial: its worker was lost, and what it ran there may still run, so it is not run again: no answer"
        )
        finish(pool, pool.submit(toy_task()))
        assert [call.kind for _, call in pool.calls] == ["once", "toy"]


@pytest.mark.parametrize("has_ended", [True, False])
def test_a_score_on_a_lost_cluster_is_run_again_where_its_workers_have_ended(path: Path, has_ended: bool) -> None:
    with thread_pool(path, made=toys(score_once), cpu=1) as pool:
        pending = pool.submit(toy_task(kind=ONCE))
        soon(pool, lambda: pool.calls)
        pool.transport.lose(has_ended=has_ended)
        if has_ended:
            assert finish(pool, pending) == ["scored"]
        else:
            with pytest.raises(ExecutionError, match="so it is not run again: the head died"):
                finish(pool, pending)


def test_closing_a_pool_during_a_task_keeps_its_measurements(path: Path) -> None:
    slow = Pauses("slow")
    with thread_pool(path, made=toys(slow), cpu=1) as pool:
        pending = pool.submit(toy_task("slow"))
        soon(pool, slow.has_begun.is_set)
        pool.wait((), 0.0)
        pool.close()
    assert not pending.is_done
    assert pool.transport.is_closed
    assert stages(path) == {"stage before the end"}


def test_a_worker_of_another_version_is_not_used(path: Path) -> None:
    older = toy_facts(versions={"iosched": "0.0.1"})
    with thread_pool(path, made=quick([older]), cpu=2) as pool:
        finish(pool, *(pool.submit(toy_task(name)) for name in "abcd"))
        why = f"it has iosched 0.0.1, and this is {iosched_version()}"
        assert f"cpu of 10.0.0.0 is not used: {why}" in pool.notes
        assert {worker for worker, _ in pool.calls} == {"worker-2"}
        assert pool.count("cpu") == 1


@pytest.mark.parametrize(
    "nonsense",
    [
        b"no JSON",
        b"\x80\x04\x95\x1e\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94\x8c\x06system\x94\x93\x94.",
        b'{"message":"done","call":1}',
        b'{"message":"measured","rows":[{"table":"stage"}]}',
        b'{"message":"call","call":1}',
    ],
)
def test_a_worker_that_sends_invalid_messages_is_dropped(path: Path, nonsense: bytes) -> None:
    def babbles(talk: Talk) -> Any:
        if talk.name == "a" and talk.call.call == 1:
            talk.say(nonsense)
            time.sleep(PATIENCE_S)
        return quick_task(talk)

    with thread_pool(path, made=toys(babbles), cpu=2) as pool:
        pending = [pool.submit(toy_task(name)) for name in "abc"]
        assert finish(pool, *pending) == ["A", "B", "C"]
        assert any("what is not understood here" in note for note in pool.notes)
        assert pool.workers != []
        assert pool.calls[0][0] not in pool.workers


def test_a_worker_cannot_answer_for_another(path: Path) -> None:
    """Nor can a lost one: it answers a call that it does not have."""

    def script(talk: Talk) -> Any:
        if talk.name == "liar":
            talk.say(b'{"message":"done","call":1,"result":"a lie"}')
            return "honest"
        return talk.until_stopped().how

    with thread_pool(path, made=toys(script), cpu=2) as pool:
        victim = pool.submit(toy_task("victim"))
        soon(pool, lambda: pool.calls and len(pool.workers) == 2)
        assert finish(pool, pool.submit(toy_task("liar"))) == ["honest"]
        pool.stop(victim, "best")
        assert finish(pool, victim) == ["best"]


def test_the_first_calibration_of_a_device_is_kept(path: Path) -> None:
    with ProfileDatabase(path) as database:
        database.keep_calibration(KEY, summarize((100.0,)))
        (old,) = database.rows()
    newer = CalibrationRow(KEY, row("any").measured_at, (999.0,))
    with thread_pool(path, made=quick([toy_facts(yardstick=(newer,))]), cpu=1) as pool:
        finish(pool, pool.submit(toy_task()))
        assert pool.calls[0][1].rows == (old,)
    with ProfileDatabase(path) as database:
        found = database.calibration(KEY)
    assert found is not None
    assert found.samples_us == (100.0,)


def test_a_locked_database_holds_up_results_and_loses_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("iosched.profiler.store.schema.BUSY_TIMEOUT_SECONDS", 0.01)
    with (
        thread_pool(path, made=quick(), cpu=1) as pool,
        closing(sqlite3.connect(path, isolation_level=None)) as other,
    ):
        finish(pool, pool.submit(toy_task("first")))
        other.execute("BEGIN IMMEDIATE")
        second, third = (pool.submit(toy_task(name)) for name in ("second", "third"))
        soon(pool, lambda: any("locked" in note and "it is tried again" in note for note in pool.notes))
        soon(pool, lambda: pool.status().done == 3)
        assert not second.is_done
        assert not third.is_done
        assert sum("locked" in note for note in pool.notes) == 1, "reported once"
        other.execute("ROLLBACK")
        assert finish(pool, second, third) == ["SECOND", "THIRD"]
    assert stages(path) == {"stage of first", "stage of second", "stage of third"}


def test_an_unusable_database_is_refused_before_the_cluster_starts(path: Path) -> None:
    path.write_bytes(b"no database" * 100)
    with pytest.raises(UsageError, match="not a profile database"):
        ThreadPool(path, cpu_places(1), quick())


def test_a_missing_cluster_is_a_device_error(path: Path) -> None:
    with pytest.raises(DeviceError, match="Ray is not installed"), ClusterPool(_cannot, path, Kept([], [])):
        raise AssertionError("there is none")

    def unreached() -> ThreadTransport:
        found = ThreadTransport((), quick())
        found.receive(0.0)
        found.lose("no cluster there")
        return found

    with pytest.raises(DeviceError, match="no cluster there"), ClusterPool(unreached, path, Kept([], [])):
        raise AssertionError("there is none")


def test_a_device_without_a_worker_is_missing(path: Path) -> None:
    timeouts, says = Timeouts(without_s=0.1), r"no worker on v100 .* the cluster has: cpu"
    with thread_pool(path, made=quick(), timeouts=timeouts, cpu=1) as pool, pytest.raises(DeviceError, match=says):
        finish(pool, pool.submit(toy_task(device="v100")))


def test_losing_all_workers_for_good_is_a_device_lost_error(path: Path) -> None:
    timeouts = Timeouts(without_s=0.5)
    with thread_pool(path, made=toys(lambda talk: time.sleep(PATIENCE_S)), timeouts=timeouts, cpu=1) as pool:
        pending = pool.submit(toy_task())
        soon(pool, lambda: pool.calls)
        pool.transport.kill("worker-1", "its machine is gone", for_good=True)
        with pytest.raises(DeviceLostError, match="its machine is gone"):
            finish(pool, pending)


def test_the_status_has_the_task_of_each_worker(path: Path) -> None:
    goes_on = threading.Event()
    with thread_pool(path, made=toys(lambda talk: goes_on.wait(PATIENCE_S)), cpu=1) as pool:
        pending = [pool.submit(toy_task(name)) for name in "ab"]
        soon(pool, lambda: any(each.doing for each in pool.status().workers))
        status = pool.status()
        assert [(each.node, each.device, each.doing) for each in status.workers] == [("10.0.0.0", "cpu", "toy a")]
        assert (status.waiting, status.done) == (1, 0)
        goes_on.set()
        finish(pool, *pending)
    assert pool.status().workers[0].done == pool.status().done == 2


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("auto", ("v100", "v100", "v100")),
        (" CPU ", ("cpu", "cpu", "cpu")),
        ("V100", ("v100", "v100", "v100")),
        ("t4", ("t4", "t4", "cpu")),
    ],
)
def test_a_target_is_a_device_of_the_cluster_or_a_gpu_that_its_cpus_simulate(
    path: Path, text: str, found: tuple[str, str, str]
) -> None:
    with thread_pool(path, made=quick(), cpu=1, v100=1) as pool:
        target = pool.target(text, path)
        assert (target.device, target.asked, target.workers) == found
        assert target.is_simulated == (text == "t4")


@pytest.mark.parametrize(
    ("text", "may_simulate", "there"),
    [
        ("nothing", True, {"cpu": 1}),
        ("cuda:0", True, {"cpu": 1}),
        ("t4", False, {"cpu": 1, "v100": 1}),
        ("v100", True, {"h100": 1}),
    ],
)
def test_a_missing_device_is_refused_with_a_list_of_those_in_the_cluster(
    path: Path, text: str, may_simulate: bool, there: dict[str, int]
) -> None:
    says = f"the cluster has no device '{text}': it has {', '.join(reversed(there))}"
    with thread_pool(path, made=quick(), **there) as pool, pytest.raises(UsageError, match=says):  # type: ignore[arg-type]
        pool.target(text, may_simulate=may_simulate)


def test_rows_of_unattached_gpus_are_sent_with_simulated_targets(path: Path) -> None:
    gpu_row = row("stage", key='{"kind":"cuda","name":"Tesla T4"}')
    with ProfileDatabase(path) as database:
        database.merge([gpu_row, row("of the CPU")])
    with thread_pool(path, made=quick(), cpu=1) as pool:
        assert pool.target("t4", path).rows == (gpu_row,)
        assert pool.target("cpu", path).rows == ()
