"""Messages from and to a worker, without Ray."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from iosched.jobs.pool.ray import actor
from iosched.jobs.pool.ray.actor import WorkerActor


@pytest.fixture
def worker() -> WorkerActor:
    """A worker that has sent its description."""
    made = WorkerActor("cpu", 1, (), "ray_workers:Standin")
    (line,) = made.said()
    assert json.loads(line)["device"] == "cpu"
    return made


def sent(worker: WorkerActor, **message: object) -> None:
    worker.take(json.dumps(message).encode(), [])


def test_messages_are_sent_once_and_in_order(worker: WorkerActor, monkeypatch: pytest.MonkeyPatch) -> None:
    sent(worker, count=2)
    sent(worker, echo="last")
    assert worker.said() == [b"0", b"1", b'"last"']
    monkeypatch.setattr(actor, "_MOST_WAIT_S", 0.01)
    assert worker.said() == []


def test_a_failure_is_raised_to_the_sender_of_the_message(worker: WorkerActor) -> None:
    with pytest.raises(RuntimeError, match="broken"):
        sent(worker, count=1, fail="broken")
    assert worker.said() == [b"0"]


def test_a_worker_sends_only_bytes(worker: WorkerActor, tmp_path: Path) -> None:
    """The driver would unpickle anything else."""
    sent(worker, object=str(tmp_path / "ran"))
    with pytest.raises(TypeError, match="is not bytes"):
        worker.said()
