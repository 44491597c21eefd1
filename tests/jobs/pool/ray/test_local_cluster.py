"""A real local cluster: messages arrive, killed workers are reported, and no other user can reach it."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
import session
from clusters import Driver, driver, soon, surroundings

from iosched.jobs.pool.ray.address import LocalCluster
from iosched.jobs.pool.transport import Lost, Place, Said, Stop
from iosched.runtime.cores import cpu_count


def listening(pid: int) -> set[str]:
    """The addresses that a process listens at, as /proc has them: in hexadecimal, its words in the machine's order."""
    sockets = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        try:
            sockets.add(str(descriptor.readlink()))
        except FileNotFoundError:
            continue
    lines = [
        line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()
    ]
    return {words[1].partition(":")[0] for words in lines if words[3] == "0A" and f"socket:[{words[9]}]" in sockets}


WORKERS = min(2, cpu_count())
pytestmark = pytest.mark.slow
LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def local(home: Path) -> Iterator[tuple[Driver, tuple[Place, ...]]]:
    with surroundings(home), driver(LocalCluster(WORKERS)) as found:
        yield found, found.places()


@pytest.fixture
def workers(local: tuple[Driver, tuple[Place, ...]]) -> Iterator[list[tuple[str, dict]]]:
    found, places = local
    started = [found.up(place) for place in places]
    yield started
    for name, _ in started:
        found.transport.send(Stop(name))


def test_all_threads_of_a_worker_stay_on_its_processors(local, workers) -> None:
    _, places = local
    assert [set(map(tuple, facts["cpus"])) for _, facts in workers] == [{place.cores} for place in places]
    assert [facts["threads"] for _, facts in workers] == [place.threads for place in places]
    assert {facts["nice"] for _, facts in workers} == {os.nice(0)}


def test_models_reach_every_worker_unchanged(local, workers, tmp_path: Path) -> None:
    found, _ = local
    for nbytes in (10, 3_000_000):
        model = os.urandom(nbytes)
        digest = hashlib.sha256(model).hexdigest()
        path = tmp_path / digest
        path.write_bytes(model)
        for name, _ in workers:
            found.ask(name, str(path), digest=True)
        assert [found.said(name) for name, _ in workers] == [digest] * len(workers)


def test_messages_keep_their_order_despite_printed_output(local, workers) -> None:
    found, _ = local
    name, _ = workers[0]
    found.ask(name, count=50, print='{"type":"Lost","worker":"w0","reason":"printed","has_ended":true}')
    assert [found.said(name) for _ in range(50)] == list(range(50))
    found.ask(name, echo="x" * 300_000)  # Ray sends this through its store
    assert len(found.said(name)) == 300_000


def test_a_killed_worker_is_reported_and_replaced(local, workers) -> None:
    found, places = local
    name, facts = workers[0]
    session.kill(facts["pid"], found.transport.pid)
    assert found.lost(name) == Lost(name, "its process ended", has_ended=True)
    another, _ = found.up(places[0])
    found.transport.send(Stop(another))


def test_a_worker_whose_code_fails_is_reported_with_the_reason(local, workers) -> None:
    found, _ = local
    name, facts = workers[-1]
    found.ask(name, fail="no such thing")
    assert found.lost(name) == Lost(name, "RuntimeError: no such thing", has_ended=True)
    soon(lambda: facts["pid"] not in session.members(found.transport.pid))


def test_messages_of_a_worker_are_not_unpickled(local, workers, tmp_path: Path) -> None:
    found, _ = local
    name, _ = workers[0]
    ran = tmp_path / "ran"
    found.ask(name, pickle=str(ran))
    assert b"exec" in found.next(Said, lambda event: event.worker == name).message
    found.ask(name, object=str(ran))
    assert found.lost(name) == Lost(name, "TypeError: the worker said something that is not bytes", has_ended=True)
    assert not ran.exists()


def test_a_stopped_worker_is_not_reported_as_lost(local, workers) -> None:
    found, places = local
    name, facts = workers[0]
    found.transport.send(Stop(name))
    soon(lambda: facts["pid"] not in session.members(found.transport.pid))
    another, _ = found.up(places[0])
    found.transport.send(Stop(another))
    assert not any(isinstance(event, Lost) and event.worker == name for event in found.heard)


def test_no_other_user_can_reach_the_cluster(local, workers, home: Path) -> None:
    """Anyone who reaches a Ray cluster can run code on it."""
    found, _ = local
    processes = session.members(found.transport.pid)
    assert {facts["pid"] for _, facts in workers} <= set(processes)
    addresses = {address for pid in processes for address in listening(pid)}
    assert addresses
    assert addresses <= LOOPBACK
    folder = Path(workers[0][1]["cwd"])
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "token").stat().st_mode) == 0o600
    token = (folder / "token").read_bytes()
    for pid in processes:
        assert token not in Path(f"/proc/{pid}/cmdline").read_bytes()
    assert not (home / ".ray").exists()
