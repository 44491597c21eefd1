"""Talks to a worker in this process as a driver does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from queue import Queue
from typing import Any

import msgspec
import pytest

from iosched.jobs.fleet.messages import (
    Call,
    Done,
    Failed,
    Measured,
    SaidMessage,
    ToldMessage,
    encoded,
    raised,
    returned,
    said,
)
from iosched.jobs.fleet.plain import taken
from iosched.jobs.fleet.sending import packed
from iosched.jobs.fleet.worker import Worker
from iosched.models.model import Model
from iosched.profiler.devices.cpu.device import CpuDevice
from iosched.profiler.store.tables import Row


class Talk:
    """Calls a worker as a driver does, and keeps what is said."""

    def __init__(self, worker: Worker, answer: Callable[[SaidMessage], ToldMessage | None] = lambda said: None) -> None:
        self.worker = worker
        self.answer = answer
        self.heard: list[SaidMessage] = []
        self.told: Queue[bytes] = Queue()

    def __call__(
        self, kind: str, work: object, model: Model, rows: Sequence[Row] = (), left_s: float | None = None
    ) -> Done | Failed:
        sent, data = packed(model)
        call = Call(kind=kind, work=msgspec.to_builtins(work), model=sent, rows=tuple(rows), left_s=left_s)
        return returned(self.worker.call(encoded(call), {sent.file: data}, self._hear, self.told))

    def _hear(self, message: bytes) -> None:
        self.heard.append(said(message))
        answer = self.answer(self.heard[-1])
        if answer is not None:
            self.told.put(encoded(answer))

    def all(self, kind: type[Any]) -> list[Any]:
        return [each for each in self.heard if isinstance(each, kind)]

    @property
    def rows(self) -> list[Row]:
        return [row for each in self.all(Measured) for row in each.rows]


def result(answer: Done | Failed, kind: type[Any]) -> Any:
    if isinstance(answer, Failed):
        raise raised(answer)
    return taken(answer.result, kind)


def count_openings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the models that are opened on a CPU, as they are."""
    names, before = list[str](), CpuDevice.open

    def open_counted(self: CpuDevice, model: Model, *rest: Any, **more: Any) -> Any:
        names.append(model.name)
        return before(self, model, *rest, **more)

    monkeypatch.setattr(CpuDevice, "open", open_counted)
    return names
