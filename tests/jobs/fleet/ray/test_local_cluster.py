"""A real local cluster: what is sent arrives, who is killed is told, and nobody else can reach it."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from clusters import Driver, driver, listening, surroundings

from iosched.jobs.fleet.ray import session
from iosched.jobs.fleet.ray.address import LocalCluster
from iosched.jobs.fleet.transport import DropModel, Place, PutModel, Said, StartWorker, StopWorker
from iosched.runtime.cores import cpu_count

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
        found.transport.send(StopWorker(name))


def test_each_worker_keeps_to_its_processors_with_all_its_threads(local, workers) -> None:
    _, places = local
    assert [set(map(tuple, facts["cpus"])) for _, facts in workers] == [{place.cores} for place in places]
    assert [facts["threads"] for _, facts in workers] == [place.threads for place in places]
    assert {facts["nice"] for _, facts in workers} == {os.nice(0)}


def test_models_arrive_as_they_were_at_every_worker(local, workers, tmp_path: Path) -> None:
    found, _ = local
    digests = {}
    for name, nbytes in (("small", 10), ("large", 3_000_000)):
        model = os.urandom(nbytes)
        (tmp_path / name).write_bytes(model)
        digests[name] = hashlib.sha256(model).hexdigest()
        found.transport.send(PutModel(name, tmp_path / name))
    calls = [found.begin(name, tuple(digests), digests=True) for name, _ in workers]
    assert sorted(map(str, (found.returned(call) for call in calls))) == [str(digests)] * len(workers)


def test_a_model_that_cannot_be_read_costs_the_worker_and_says_so(local, workers, tmp_path: Path) -> None:
    found, _ = local
    found.transport.send(PutModel("gone", tmp_path / "gone"))
    found.begin(workers[0][0], ("gone",), digests=True)
    assert found.lost(workers[0][0]) == "the file of model gone cannot be read"


def test_a_model_that_was_dropped_is_not_there_any_more(local, workers, tmp_path: Path) -> None:
    found, _ = local
    (tmp_path / "model").write_bytes(b"model")
    found.transport.send(PutModel("dropped", tmp_path / "model"))
    found.returned(found.begin(workers[0][0], ("dropped",), digests=True))
    found.transport.send(DropModel("dropped"))
    found.begin(workers[0][0], ("dropped",), digests=True)
    assert found.lost(workers[0][0]) == "the file of model dropped cannot be read"


def test_what_is_said_and_told_keeps_its_order_whatever_is_printed(local, workers) -> None:
    found, _ = local
    name, _ = workers[0]
    call = found.begin(name, count=50, echo=2, print='["WorkerLost",{"worker":"w0","reason":"printed"}]')
    found.tell(name, call, "x" * 300_000)  # Ray sends this through its store, the next one directly
    found.tell(name, call, "y")
    heard = found.returned(call)["heard"]
    assert [len(text) for text in heard] == [300_000, 1]
    said = [event.message for event in found.heard if isinstance(event, Said) and event.call == call]
    assert said[:50] == [str(number).encode() for number in range(50)]


def test_calls_run_side_by_side_in_one_worker(local, workers) -> None:
    found, _ = local
    name, _ = workers[0]
    waiting = found.begin(name, echo=1)
    found.returned(found.begin(name))
    found.tell(name, waiting, "go")
    assert found.returned(waiting) == {"heard": ["go"]}


def test_a_worker_that_is_killed_is_told_and_another_takes_its_place(local, workers) -> None:
    found, places = local
    name, facts = workers[0]
    found.begin(name, count=1, sleep=60)
    found.next(Said)
    session.kill(facts["pid"], found.transport.pid)
    assert found.lost(name) == "its process ended"
    another, _ = found.up(places[0])
    assert found.returned(found.begin(another)) == {"heard": []}
    found.transport.send(StopWorker(another))


def test_a_worker_whose_code_fails_is_told_with_the_reason(local, workers) -> None:
    found, _ = local
    name, _ = workers[-1]
    found.begin(name, fail="no such thing")
    assert found.lost(name) == "RuntimeError: no such thing"


def test_a_place_that_is_not_there_any_more_is_told(local) -> None:
    found, _ = local
    found.transport.send(StartWorker("nowhere", Place("elsewhere", "10.0.0.1", "v100")))
    assert found.lost("nowhere") == "its machine left the cluster"


def test_nobody_else_reaches_it(local, workers, home: Path) -> None:
    """Whoever reaches a Ray cluster has it execute what they like."""
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
