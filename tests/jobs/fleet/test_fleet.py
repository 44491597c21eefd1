"""A fleet does what jobs ask for, whatever happens to its workers and its cluster."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import wait
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from fleet_threads import (
    KEY,
    PATIENCE_S,
    Script,
    Talk,
    ThreadTransport,
    Toy,
    asked_in,
    cpu_places,
    errand,
    row,
    toy_facts,
)

from iosched.jobs.fleet.fleet import Fleet, FleetPatience
from iosched.jobs.fleet.messages import Failed, InterruptedWorkError, Progress, Stop
from iosched.jobs.fleet.patience import Patience
from iosched.jobs.fleet.status import FleetStatus
from iosched.jobs.fleet.transport import Place
from iosched.models.errors import DeviceError, DeviceLostError, ExecutionError, UsageError
from iosched.profiler.measuring.statistics import summarize
from iosched.profiler.store.database import ProfileDatabase
from iosched.profiler.store.tables import YardstickRow

QUICK = FleetPatience(without_s=PATIENCE_S, reconnect_s=0.01, retry_s=0.01)


class Notes:
    """An observer that keeps what it is shown."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.shown: list[FleetStatus] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def status(self, status: FleetStatus) -> None:
        self.shown.append(status)


class Bench:
    """A fleet on a cluster of threads."""

    def __init__(self, path: Path, script: Script, count: int = 1, patience: FleetPatience = QUICK) -> None:
        self.path, self.script, self.patience = path, script, patience
        self.places: Sequence[Place] = cpu_places(count)
        self.made: Callable[[Place], Toy] = lambda place: Toy(self.script)
        self.transports: list[ThreadTransport] = []
        self.toys: list[Toy] = []
        self.notes = Notes()
        self.make_transport = lambda: ThreadTransport(self.places, self._make)

    @contextmanager
    def open(self) -> Iterator[Fleet]:
        with Fleet(self._connect, lambda: ProfileDatabase(self.path), self.notes, self.patience) as fleet:
            yield fleet

    def _connect(self) -> ThreadTransport:
        self.transports.append(self.make_transport())
        return self.transports[-1]

    def _make(self, place: Place) -> Toy:
        self.toys.append(self.made(place))
        return self.toys[-1]

    def rows(self) -> set[str]:
        with ProfileDatabase(self.path) as database:
            return set(database.stage_medians(KEY))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "profile.sqlite"


def quick_job(talk: Talk) -> Any:
    talk.measured(f"stage of {talk.call.model.name}")
    return talk.call.work["name"].upper()


def waiting(until: threading.Event, bench: Bench) -> ThreadTransport:
    assert until.wait(PATIENCE_S)
    return ThreadTransport(bench.places, bench.made)


def soon(condition: Callable[[], Any]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.005)


def test_errands_come_back_with_results_and_what_was_measured_is_in_the_database(path: Path) -> None:
    bench = Bench(path, quick_job, count=2)
    with bench.open() as fleet:
        assert fleet.devices() == ("cpu",)
        futures = [fleet.submit(errand(name)) for name in "abcde"]
        assert [future.result(PATIENCE_S) for future in futures] == list("ABCDE")
        assert bench.rows() == {f"stage of {name}" for name in "abcde"}, "before the results come"


def test_each_file_travels_once_and_is_dropped_when_nobody_needs_it(path: Path) -> None:
    bench = Bench(path, quick_job, count=2)
    with bench.open() as fleet:
        wait([fleet.submit(errand("same")) for _ in range(5)], PATIENCE_S)
        (transport,) = bench.transports
        soon(lambda: transport.dropped)
        assert len(transport.puts) == len(transport.dropped) == 1
        assert transport.files == {}


def test_an_error_of_a_worker_is_raised_as_what_it_was(path: Path) -> None:
    bench = Bench(path, lambda talk: Failed(type="UsageError", text="no such thing"))
    with bench.open() as fleet, pytest.raises(UsageError, match="no such thing"):
        fleet.submit(errand()).result(PATIENCE_S)


def test_what_a_worker_says_meanwhile_is_heard(path: Path) -> None:
    heard: list[object] = []

    def script(talk: Talk) -> None:
        talk._say(b'{"version":1,"message":"progress","done":1,"total":3,"text":"block 2"}')

    with Bench(path, script).open() as fleet:
        fleet.submit(errand(on_said=heard.append)).result(PATIENCE_S)
    assert heard == [Progress(done=1, total=3, text="block 2")]


def test_a_worker_is_sent_what_others_measured_and_the_database_knew_and_nothing_twice(path: Path) -> None:
    with ProfileDatabase(path) as database:
        database.merge([row("known"), row("of another device", key="other")])
    bench = Bench(path, quick_job)
    with bench.open() as fleet:
        for name in ("a", "b"):
            fleet.submit(errand(name)).result(PATIENCE_S)
        bench.transports[0].change([*bench.places, *cpu_places(3)[2:]])
        soon(lambda: len(fleet.status().workers) == 2)
        wait([fleet.submit(errand(name)) for name in ("c", "d", "e", "f")], PATIENCE_S)
    first, second = ([[each.signature for each in call.rows] for call in toy.calls] for toy in bench.toys)
    assert first[:2] == [["known"], []], "nor what it measured itself"
    assert second[0][:3] == ["known", "stage of a", "stage of b"]
    assert len({name for rows in second for name in rows}) == len([name for rows in second for name in rows])


def test_questions_are_answered_by_all_workers_and_their_rows_told_back(path: Path) -> None:
    everybody = threading.Barrier(2)
    names = [f"operator{index}" for index in range(8)]

    def script(talk: Talk) -> Any:
        if talk.call.model.name == "search":
            return sorted(each.signature for each in talk.ask(*names))
        return None

    def answer(talk: Talk) -> int:
        if names[0] in asked_in(talk.call) or names[7] in asked_in(talk.call):
            everybody.wait(PATIENCE_S)  # both workers have some
        talk.measured(*asked_in(talk.call))
        return 0

    bench = Bench(path, script, count=2)
    bench.made = lambda place: Toy(script, answer=answer)
    with bench.open() as fleet:
        found = fleet.submit(errand("search")).result(PATIENCE_S)
        packets = [call for toy in bench.toys for call in toy.calls if call.kind == "questions"]
    asker = next(toy for toy in bench.toys if toy.calls[0].kind == "toy")
    own = {name for call in asker.calls[1:] for name in asked_in(call)}
    assert set(found) == set(names) - own, "what it measured itself it has"
    assert sorted(name for call in packets for name in asked_in(call)) == names
    assert bench.rows() == set(names)


def test_guesses_are_answered_by_who_has_nothing_else_and_are_not_asked_again(path: Path) -> None:
    has_begun = {name: threading.Event() for name in ("true", "late")}
    may_end = {name: threading.Event() for name in ("first", "late")}
    rounds = []

    def script(talk: Talk) -> Any:
        if talk.call.model.name != "search":
            return None
        rounds.append({each.signature for each in talk.ask("first", guesses=["true", "late", "never"])})
        may_end["late"].set()
        rounds.append({each.signature for each in talk.ask("true", "late", "second")})
        rounds.append({each.signature for each in talk.ask("true")})
        return None

    def answer(talk: Talk) -> int:
        (name,) = asked_in(talk.call)
        if name in has_begun:
            has_begun[name].set()
        if name == "late":
            may_end["first"].set()
        if name in may_end:
            assert may_end[name].wait(PATIENCE_S)
        talk.measured(name)
        return 1

    bench = Bench(path, script, count=2)
    bench.made = lambda place: Toy(script, answer=answer)
    with bench.open() as fleet:
        fleet.submit(errand("first of all")).result(PATIENCE_S)
        soon(lambda: len(fleet.status().workers) == 2)
        fleet.submit(errand("search")).result(PATIENCE_S)
        packets = [asked_in(call) for toy in bench.toys for call in toy.calls if call.kind == "questions"]
    asker = next(toy for toy in bench.toys if ("toy", "search") in [(call.kind, call.model.name) for call in toy.calls])
    own = {name for call in asker.calls if call.kind == "questions" for name in asked_in(call)}
    assert own <= {"first", "second"}, "guesses are for the other one"
    assert sorted(packets) == [["first"], ["late"], ["second"], ["true"]], "each once, and never without being asked"
    assert rounds == [{"true", "first"} - own, {"late", "second"} - own, set()]


def test_a_worker_that_is_killed_loses_nothing(path: Path) -> None:
    began, bench = threading.Event(), Bench(path, quick_job, count=2)

    def script(talk: Talk) -> Any:
        if talk.call.model.name == "slow" and not began.is_set():
            talk.measured("stage before the end")
            began.set()
            time.sleep(PATIENCE_S)
        return quick_job(talk)

    bench.script = script
    with bench.open() as fleet:
        futures = [fleet.submit(errand(name)) for name in ("slow", "b", "c")]
        assert began.wait(PATIENCE_S)
        (transport,) = bench.transports
        holder = next(call.worker for call in transport.calls if b'"slow"' in call.message)
        soon(lambda: fleet._running._log.unseen("nobody") == ())
        time.sleep(0.05)
        transport.kill(holder, "out of memory")
        assert [future.result(PATIENCE_S) for future in futures] == ["SLOW", "B", "C"]
        soon(lambda: fleet.status().lost)
        assert "out of memory" in fleet.status().lost[0]
    assert bench.rows() == {"stage before the end", *(f"stage of {name}" for name in ("slow", "b", "c"))}


def test_when_all_workers_are_killed_new_ones_go_on(path: Path) -> None:
    first, bench = threading.Event(), Bench(path, quick_job, count=2)

    def script(talk: Talk) -> Any:
        if not first.is_set():
            time.sleep(PATIENCE_S)
        return quick_job(talk)

    bench.script = script
    with bench.open() as fleet:
        futures = [fleet.submit(errand(name)) for name in "ab"]
        soon(lambda: len(bench.transports[0].calls) == 2 if bench.transports else False)
        for worker in list(bench.transports[0].workers):
            bench.transports[0].kill(worker)
        first.set()
        assert [future.result(PATIENCE_S) for future in futures] == ["A", "B"]


def test_when_the_cluster_is_lost_another_transport_goes_on(path: Path) -> None:
    lost, bench = threading.Event(), Bench(path, quick_job, count=2)

    def script(talk: Talk) -> Any:
        if not lost.is_set():
            time.sleep(PATIENCE_S)
        return quick_job(talk)

    bench.script = script
    with bench.open() as fleet:
        futures = [fleet.submit(errand(name)) for name in "abc"]
        soon(lambda: len(bench.transports[0].calls) == 2 if bench.transports else False)
        lost.set()
        bench.transports[0].lose()
        assert [future.result(PATIENCE_S) for future in futures] == ["A", "B", "C"]
    assert len(bench.transports) == 2
    assert bench.transports[0].is_closed
    assert any("the head died" in note for note in bench.notes.notes)


def test_a_cluster_that_is_lost_between_two_jobs_is_still_known(path: Path) -> None:
    bench = Bench(path, quick_job, count=2)
    with bench.open() as fleet:
        fleet.submit(errand("a")).result(PATIENCE_S)
        again = threading.Event()
        bench.make_transport = lambda: waiting(again, bench)
        bench.transports[0].lose()
        soon(lambda: any("the head died" in note for note in bench.notes.notes))
        assert fleet.devices() == ("cpu",)
        assert fleet.count("cpu") == 2
        again.set()
        assert fleet.submit(errand("b")).result(PATIENCE_S) == "B"


def test_a_work_that_takes_its_workers_with_it_fails_and_the_others_are_done(path: Path) -> None:
    def script(talk: Talk) -> Any:
        if talk.call.model.name == "poison":
            raise MemoryError("killed by the kernel")
        return quick_job(talk)

    bench = Bench(path, script, count=4)
    with bench.open() as fleet:
        poison, *others = [fleet.submit(errand(name)) for name in ("poison", "b", "c")]
        assert [future.result(PATIENCE_S) for future in others] == ["B", "C"]
        with pytest.raises(ExecutionError, match="killed by the kernel"):
            poison.result(PATIENCE_S)


def test_a_work_that_hangs_is_done_by_another_and_the_first_told_to_stop(path: Path) -> None:
    stops: list[Stop] = []

    def script(talk: Talk) -> Any:
        if talk.call.model.name == "hangs" and not stops:
            stops.append(Stop(how="best"))
            stops.append(talk.until_stopped())
            return Failed(type="InterruptedWorkError", text="interrupted")
        return quick_job(talk)

    patience = FleetPatience(Patience(unknown_s=0.1, floor_s=0.1), PATIENCE_S, 0.01, 0.01)
    bench = Bench(path, script, count=2, patience=patience)
    with bench.open() as fleet:
        assert fleet.submit(errand("hangs")).result(PATIENCE_S) == "HANGS"
        soon(lambda: len(stops) == 2)
    assert stops[1].how == "now"


def test_an_errand_that_is_told_to_stop_ends_as_its_worker_does_it(path: Path) -> None:
    bench = Bench(path, lambda talk: talk.until_stopped().how)
    with bench.open() as fleet:
        begun, waiting = fleet.submit(errand("a")), fleet.submit(errand("b"))
        soon(lambda: bench.transports and bench.transports[0].calls)
        fleet.tell(waiting, Stop(how="now"))
        with pytest.raises(InterruptedWorkError):
            waiting.result(PATIENCE_S)
        fleet.tell(begun, Stop(how="best"))
        assert begun.result(PATIENCE_S) == "best"


def test_errands_without_an_answer_end_with_the_fleet(path: Path) -> None:
    with Bench(path, lambda talk: time.sleep(PATIENCE_S)).open() as fleet:
        future = fleet.submit(errand())
    with pytest.raises(InterruptedWorkError):
        future.result(0)
    with pytest.raises(InterruptedWorkError):
        fleet.submit(errand()).result(0)


def test_a_worker_of_another_version_is_told_and_not_used(path: Path) -> None:
    bench = Bench(path, quick_job, count=2)
    older = toy_facts(versions={"iosched": "0.0.1"})
    bench.made = lambda place: Toy(quick_job, older if place.node == "node0" else toy_facts())
    with bench.open() as fleet:
        wait([fleet.submit(errand(name)) for name in "abcd"], PATIENCE_S)
        soon(lambda: any("it has iosched 0.0.1, and this is" in note for note in bench.notes.notes))
        assert {bench.transports[0].places[call.worker].node for call in bench.transports[0].calls} == {"node1"}


def test_a_worker_that_becomes_too_noisy_is_used_no_more_where_another_machine_is_quieter(path: Path) -> None:
    noisy: list[str] = []

    def script(talk: Talk) -> Any:
        if talk.call.model.name == "noisy" and not noisy:
            noisy.append("once")
            talk.measured(*(f"stage{index}" for index in range(10)), disturbed_by="others had 60% of the cores")
            time.sleep(PATIENCE_S)
        return quick_job(talk)

    bench = Bench(path, script, count=2)
    with bench.open() as fleet:
        fleet.submit(errand("a"))
        soon(lambda: len(fleet.status().workers) == 2)
        assert fleet.submit(errand("noisy")).result(PATIENCE_S) == "NOISY"
        assert any("too noisy to measure on: others had 60%" in note for note in bench.notes.notes)


@pytest.mark.parametrize("nonsense", [b"{", b'{"version":99,"message":"measured","rows":[]}'])
def test_a_worker_that_says_what_nobody_understands_is_used_no_more(path: Path, nonsense: bytes) -> None:
    def babbles(talk: Talk) -> None:
        talk._say(nonsense)
        time.sleep(PATIENCE_S)

    bench = Bench(path, quick_job, count=2)
    bench.made = lambda place: Toy(babbles if place.node == "node0" else quick_job)
    with bench.open() as fleet:
        futures = [fleet.submit(errand(name)) for name in "abc"]
        assert [future.result(PATIENCE_S) for future in futures] == ["A", "B", "C"]
        assert any("what is not understood here" in note for note in bench.notes.notes)
        soon(lambda: len(fleet.status().workers) == 1)


def test_the_first_yardstick_of_a_device_stays(path: Path) -> None:
    with ProfileDatabase(path) as database:
        database.keep_yardstick(KEY, summarize((100.0,)))
        (old,) = database.rows()
    bench = Bench(path, quick_job)
    newer = YardstickRow(KEY, row("any").measured_at, (999.0,))
    bench.made = lambda place: Toy(quick_job, toy_facts(yardstick=(newer,)))
    with bench.open() as fleet:
        fleet.submit(errand()).result(PATIENCE_S)
    assert bench.toys[0].calls[0].rows == (old,)
    with ProfileDatabase(path) as database:
        found = database.yardstick(KEY)
    assert found is not None
    assert found.samples_us == (100.0,)


def test_a_database_that_is_locked_for_a_while_loses_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("iosched.profiler.store.schema.BUSY_TIMEOUT_SECONDS", 0.01)
    ProfileDatabase(path).close()
    bench = Bench(path, quick_job)
    with bench.open() as fleet, closing(sqlite3.connect(path, isolation_level=None)) as other:
        fleet.devices()
        soon(lambda: fleet.submit(errand("first")).result(PATIENCE_S))
        other.execute("BEGIN IMMEDIATE")
        future = fleet.submit(errand("second"))
        soon(lambda: any("keeps" in note and "locked" in note for note in bench.notes.notes))
        assert not future.done()
        other.execute("ROLLBACK")
        assert future.result(PATIENCE_S) == "SECOND"
    assert bench.rows() == {"stage of first", "stage of second"}


def test_a_database_that_cannot_be_used_is_told_at_once(path: Path) -> None:
    path.write_bytes(b"no database" * 100)
    opened = Bench(path, quick_job).open()
    future = opened.__enter__().submit(errand())
    with pytest.raises(UsageError, match="no profile database"):
        future.result(PATIENCE_S)
    with pytest.raises(UsageError, match="no profile database"):
        opened.__exit__(None, None, None)


def test_no_cluster_is_a_device_that_is_missing(path: Path) -> None:
    def connect() -> ThreadTransport:
        raise DeviceError("Ray is not installed")

    with Fleet(connect, lambda: ProfileDatabase(path)) as fleet:
        with pytest.raises(DeviceError, match="Ray is not installed"):
            fleet.devices()
        with pytest.raises(DeviceError, match="Ray is not installed"):
            fleet.submit(errand()).result(PATIENCE_S)


def test_a_device_that_the_cluster_does_not_have_is_missing(path: Path) -> None:
    bench = Bench(path, quick_job, patience=FleetPatience(without_s=0.1))
    with bench.open() as fleet, pytest.raises(DeviceError, match=r"no worker on v100 .* the cluster has: cpu"):
        fleet.submit(errand(device="v100")).result(PATIENCE_S)


def test_all_workers_lost_for_good_is_a_device_that_is_lost(path: Path) -> None:
    bench = Bench(path, lambda talk: time.sleep(PATIENCE_S), patience=FleetPatience(without_s=1.0))
    with bench.open() as fleet:
        future = fleet.submit(errand())
        soon(lambda: bench.transports and bench.transports[0].calls)
        bench.transports[0].change([])
        bench.transports[0].kill("worker-1", "its machine is gone")
        with pytest.raises(DeviceLostError, match="its machine is gone"):
            future.result(PATIENCE_S)


def test_the_status_says_what_each_worker_does(path: Path) -> None:
    go_on = threading.Event()
    bench = Bench(path, lambda talk: go_on.wait(PATIENCE_S))
    with bench.open() as fleet:
        futures = [fleet.submit(errand(name)) for name in "ab"]
        soon(lambda: fleet.status().under_way == 1)
        status = fleet.status()
        assert [(each.node, each.product, each.doing) for each in status.workers] == [("10.0.0.0", "Toy CPU", "toy a")]
        assert (status.waiting, status.done) == (1, 0)
        go_on.set()
        wait(futures, PATIENCE_S)
        soon(lambda: fleet.status().done == 2)
    assert bench.notes.shown[-1].workers[0].done == 2
