"""A worker that runs score commands as every worker does, and sleeps instead of measuring."""

from __future__ import annotations

from slept_worker import Slept
from thread_cluster import Fetch, Say, toy_facts

from iosched.jobs.pool import messages
from iosched.jobs.pool.messages import Call, Facts
from iosched.jobs.pool.worker import Worker
from iosched.jobs.worker import KINDS


class Scoring:
    """`Slept`, with a `Worker` for what needs no device; so there may be more of them than processors."""

    def __init__(self, device: str, threads: int, say: Say) -> None:
        self._slept, self._worker = Slept(device, threads, say), _Unprobed(device, threads, say, KINDS)

    def take(self, message: bytes, fetch: Fetch) -> None:
        told = messages.told(message)
        if not isinstance(told, Call) or told.kind == "score":
            self._worker.take(message, fetch)
        if not isinstance(told, Call) or told.kind != "score":
            self._slept.take(message, fetch)


class _Unprobed(Worker):
    """A worker that does not say what it is."""

    def _probed(self) -> Facts:
        return toy_facts()

    def say(self, message: messages.SaidMessage) -> None:
        if not isinstance(message, Facts):
            super().say(message)
