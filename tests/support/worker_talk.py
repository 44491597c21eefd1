"""Talks to a worker in this process as a driver does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from queue import Queue
from typing import Any

import msgspec
import pytest

from iosched.jobs.pool.codec import read_as
from iosched.jobs.pool.messages import (
    Call,
    Done,
    DriverMessage,
    Facts,
    Failed,
    Measured,
    Unusable,
    WorkerMessage,
    encoded,
    raised,
    worker_message,
)
from iosched.jobs.pool.sending import packed
from iosched.jobs.pool.task import Kind
from iosched.jobs.worker import Worker
from iosched.models.model import Model
from iosched.profiler.devices.cpu.device import CpuDevice
from iosched.profiler.store.tables import Row

PATIENCE_S = 60.0


class Talk:
    """A separate worker, with a record of its messages.

    Attributes:
        answer: the reply to each message of the worker, if any.
    """

    def __init__(
        self, threads: int = 2, answer: Callable[[WorkerMessage], DriverMessage | None] = lambda said: None
    ) -> None:
        self.answer = answer
        self.heard: list[WorkerMessage] = []
        self._numbers = count()
        self._unread: Queue[WorkerMessage] = Queue()
        self.worker = Worker("cpu", threads, self._hear)
        first = self._unread.get(timeout=PATIENCE_S)
        assert isinstance(first, Facts), first
        self.facts = first

    def __call__(self, kind: Kind[Any, Any] | str, work: object, model: Model, **more: Any) -> Any:
        """The result of a task.

        Raises:
            IoschedError: what the worker raised.
        """
        number = self.begin(kind, work, model, **more)
        while True:
            message = self._unread.get(timeout=PATIENCE_S)
            assert not isinstance(message, Unusable), message
            if isinstance(message, Failed) and message.call == number:
                raise raised(message)
            if isinstance(message, Done) and message.call == number:
                return message.result if isinstance(kind, str) else read_as(message.result, kind.result)

    def begin(self, kind: Kind[Any, Any] | str, work: object, model: Model, **more: Any) -> int:
        """Has the worker do a task; returns the number of the call. `more` is of `Call`."""
        number, (sent, data) = next(self._numbers), packed(model)
        name = kind if isinstance(kind, str) else kind.name
        self.send(Call(call=number, kind=name, work=msgspec.to_builtins(work), model=sent, **more), data)
        return number

    def send(self, message: DriverMessage, file: bytes = b"") -> None:
        self.worker.take(encoded(message), lambda: file)

    def all(self, kind: type[Any]) -> list[Any]:
        return [each for each in self.heard if isinstance(each, kind)]

    @property
    def rows(self) -> Sequence[Row]:
        """All that was measured."""
        return [row for each in self.all(Measured) for row in each.rows]

    def _hear(self, message: bytes) -> None:
        heard = worker_message(message)
        self.heard.append(heard)
        self._unread.put(heard)
        if (answer := self.answer(heard)) is not None:
            self.send(answer)


def count_openings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A list to which the name of each model that is opened on a CPU is appended."""
    names, before = list[str](), CpuDevice.open

    def open_counted(self: CpuDevice, model: Model, *rest: Any, **more: Any) -> Any:
        names.append(model.name)
        return before(self, model, *rest, **more)

    monkeypatch.setattr(CpuDevice, "open", open_counted)
    return names
