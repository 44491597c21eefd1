"""Reports about workers for every answer of Ray; with a fake Ray."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from ray.exceptions import ActorDiedError, ActorUnavailableError

from iosched.jobs.pool.ray import child
from iosched.jobs.pool.ray.child import Workers
from iosched.jobs.pool.ray.places import ClusterNode
from iosched.jobs.pool.transport import Event, Lost, Place, Said, Send, Start

PLACE = Place("box", "10.0.0.1", "cpu")
NODES = {PLACE: ClusterNode("ab" * 28, "box", "10.0.0.1", {})}
UNAVAILABLE = ActorUnavailableError("it is temporarily unavailable", None)


class Asked:
    """A pending request, like a Ray reference."""

    def __init__(self) -> None:
        self.answer: Future[object] = Future()

    def future(self) -> Future[object]:
        return self.answer


class Method:
    def __init__(self, actor: FakeRay) -> None:
        self.remote: Callable[..., Asked] = partial(self._remote, actor)

    def _remote(self, actor: FakeRay, *args: object) -> Asked:
        actor.sent.append(args)
        actor.asked.append(Asked())
        return actor.asked[-1]


class FakeRay:
    """A fake of Ray, of an actor class and of its only actor."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.sent: list[tuple[object, ...]] = []
        self.stored: list[bytes] = []
        self.killed = 0
        self.said = self.take = Method(self)

    def remote(self, *_: object) -> FakeRay:
        return self

    def options(self, **_: object) -> FakeRay:
        return self

    def kill(self, _: object) -> None:
        self.killed += 1

    def put(self, model: bytes) -> str:
        self.stored.append(model)
        return f"reference of {model.decode()}"

    def answers(self, *answers: Any) -> None:
        """Answers the pending requests, each with a value or an exception."""
        for answer in answers:
            asked = self.asked.pop(0).answer
            if isinstance(answer, Exception):
                asked.set_exception(answer)
            else:
                asked.set_result(answer)


class Trial:
    """Workers of a fake Ray, one of which was started, and their events."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.workers = Workers("module:name", self.events.append, lambda step: step())
        self.workers.start(Start("w", PLACE), NODES)

    def send(self, model: str | None = None) -> None:
        self.workers.send(Send("w", b"message", model))


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    found = FakeRay()
    monkeypatch.setattr(child, "ray", found)
    return found


@pytest.fixture
def trial(fake: FakeRay) -> Trial:
    return Trial()


def test_messages_come_until_the_process_has_ended(fake: FakeRay, trial: Trial) -> None:
    fake.answers([b"one", b"two"], [], [b"three"], ActorDiedError())
    messages: list[Event] = [Said("w", text) for text in (b"one", b"two", b"three")]
    assert trial.events == [*messages, Lost("w", "The actor died unexpectedly before finishing this task.", True)]
    assert fake.killed == 0


def test_a_worker_that_cannot_be_reached_is_killed_and_its_messages_until_then_count(
    fake: FakeRay, trial: Trial
) -> None:
    fake.answers(UNAVAILABLE)
    assert (fake.killed, trial.events) == (1, [])
    fake.answers([b"late"], UNAVAILABLE)
    trial.workers.check()
    fake.answers(ActorDiedError())
    assert trial.events == [Said("w", b"late"), Lost("w", "it cannot be reached", has_ended=True)]
    assert fake.killed == 1


@pytest.mark.parametrize("answers", [(), (UNAVAILABLE,), ([b"alive"],)])
def test_a_lost_worker_that_may_still_run_is_reported_as_such(
    fake: FakeRay, trial: Trial, monkeypatch: pytest.MonkeyPatch, answers: tuple[Any, ...]
) -> None:
    monkeypatch.setattr(child, "END_S", -1)
    fake.answers(UNAVAILABLE, *answers)
    trial.workers.check()
    assert trial.events[-1] == Lost("w", "it cannot be reached", has_ended=False)


def test_a_worker_has_to_come_up_in_time(fake: FakeRay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "START_S", -1)
    trial = Trial()
    fake.answers([])
    trial.workers.check()
    fake.answers(ActorDiedError())
    (event,) = trial.events
    assert isinstance(event, Lost)
    assert "did not come up within" in event.reason


def test_a_worker_that_is_up_may_be_silent(fake: FakeRay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "START_S", -1)
    trial = Trial()
    fake.answers([b"up"])
    trial.workers.check()
    assert (trial.events, fake.killed) == ([Said("w", b"up")], 0)


@pytest.mark.parametrize("answer", ["text", [b"bytes", "text"], [bytearray(b"x")], object()])
def test_a_worker_that_sends_anything_but_bytes_is_lost(fake: FakeRay, trial: Trial, answer: object) -> None:
    fake.answers(answer, ActorDiedError())
    assert trial.events == [Lost("w", "it answered with something that is not bytes", has_ended=True)]
    assert fake.killed == 1


def test_a_stopped_worker_causes_no_further_events(fake: FakeRay, trial: Trial) -> None:
    trial.send()
    trial.workers.stop("w")
    trial.workers.stop("w")
    fake.answers([b"late"], ActorDiedError())
    trial.send()
    trial.workers.check()
    assert (trial.events, fake.asked, fake.killed) == ([], [], 1)


def test_no_worker_starts_on_a_lost_place(fake: FakeRay) -> None:
    trial = Trial()
    trial.workers.start(Start("other", PLACE), {})
    assert trial.events == [Lost("other", "its machine left the cluster", has_ended=True)]


def test_a_model_is_stored_once_until_it_is_evicted(fake: FakeRay, trial: Trial, tmp_path: Path) -> None:
    models = [str(tmp_path / str(number)) for number in range(child.MODELS + 1)]
    for model in models:
        Path(model).write_text(Path(model).name)
    for model in (*models[:-1], models[0], models[-1], models[0], models[1]):
        trial.send(model)
    assert fake.stored == [Path(model).name.encode() for model in (*models, models[1])]
    assert fake.sent[-2:] == [(b"message", [f"reference of {number}"]) for number in (0, 1)]


def test_a_worker_whose_model_cannot_be_read_is_lost(fake: FakeRay, trial: Trial, tmp_path: Path) -> None:
    trial.send(str(tmp_path / "gone"))
    fake.answers(ActorDiedError())
    (event,) = trial.events
    assert isinstance(event, Lost)
    assert event.has_ended
    assert event.reason.startswith("the file of its model cannot be read: [Errno 2] No such file or directory")
