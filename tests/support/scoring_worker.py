"""A worker that runs score commands as every worker does, and sleeps instead of measuring."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from queue import Queue

from slept_worker import Slept

from iosched.jobs.fleet.messages import Call, decoded
from iosched.jobs.fleet.worker import Worker


class Scoring:
    """`Slept`, with a `Worker` for the calls that need no device; so there may be more of them than processors."""

    def __init__(self, device: str, threads: int) -> None:
        self._slept, self._worker = Slept(device, threads), Worker(device, threads)

    def facts(self) -> bytes:
        return self._slept.facts()

    def call(
        self, message: bytes, models: Mapping[str, bytes], say: Callable[[bytes], None], told: Queue[bytes]
    ) -> bytes:
        call: Call = decoded(message, Call)
        does = self._worker if call.kind == "score" else self._slept
        return does.call(message, models, say, told)
