"""Sends requests at their planned times, whether or not earlier ones have been answered (an open loop).

Latencies count from the planned arrival, so that a request that waits because the sender or the alternative is late is
as slow as its user would find it (no coordinated omission).
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Semaphore
from typing import Any

from iosched.jobs.load_test.arrivals import Segment
from iosched.models.errors import ExecutionError, first_line

_LEAD_S = 0.01
_LONGEST_RUN_S = 60.0
"""A run that has begun may take this many seconds after later requests are cancelled."""


Submit = Callable[[str], Future[Any]]
"""Asks for a run of a model on its fixed inputs; returns at once. Raises an error if it refuses."""


@dataclass(frozen=True)
class Answer:
    """One request that counts.

    Attributes:
        latency_us: from its planned arrival; infinite if it was refused, failed or never began.
        lag_us: from its planned arrival until it was sent.
        reason: why there was no answer, else empty.
    """

    model: str
    latency_us: float
    lag_us: float
    reason: str = ""


@dataclass(eq=False)
class _Request:
    model: str
    due_s: float
    counts: bool
    sent_s: float = 0.0
    answered_s: float = math.inf
    reason: str = "no answer in time"
    answer: Future[Any] | None = None

    def send(self, submit: Submit, done: Semaphore) -> None:
        if (left_s := self.due_s - time.perf_counter()) > 0:
            time.sleep(left_s)
        self.sent_s = time.perf_counter()
        try:
            self.answer = submit(self.model)
        except Exception as error:  # noqa: BLE001 - its queue is full
            self.reason = first_line(error)
            return
        self.answer.add_done_callback(lambda answer: self._finish(answer, done))

    def _finish(self, answer: Future[Any], done: Semaphore) -> None:
        now_s, error = time.perf_counter(), None if answer.cancelled() else answer.exception()
        if error is not None:
            self.reason = first_line(error)
        elif not answer.cancelled():
            self.answered_s, self.reason = now_s, ""
        done.release()

    def result(self) -> Answer:
        latency_us, lag_us = ((each - self.due_s) * 1e6 for each in (self.answered_s, self.sent_s))
        return Answer(self.model, latency_us, lag_us, self.reason)


def send(submit: Submit, segment: Segment, timeout_s: float) -> tuple[Answer, ...]:
    """Sends the requests of a segment, and returns those that count in order of arrival.

    Args:
        timeout_s: after the last arrival, requests that have not begun by then are cancelled.

    Raises:
        ExecutionError: a run does not end.
    """
    done, requests = Semaphore(0), []
    with _without_collections():
        began_s = time.perf_counter() + _LEAD_S - min((each.at_s for each in segment.arrivals), default=0.0)
        for each in segment.arrivals:
            requests.append(_Request(each.model, began_s + each.at_s, each.at_s >= 0))
            requests[-1].send(submit, done)
        _drain([each.answer for each in requests if each.answer is not None], done, timeout_s)
    return tuple(each.result() for each in requests if each.counts)


def _drain(answers: Sequence[Future[Any]], done: Semaphore, timeout_s: float) -> None:
    """Waits for the callbacks too, which `concurrent.futures.wait` does not."""
    left = _left(len(answers), done, timeout_s)
    if left:
        for each in answers:
            each.cancel()
    if _left(left, done, _LONGEST_RUN_S):
        raise ExecutionError(f"a request was not answered within {_LONGEST_RUN_S:.0f} s")


def _left(count: int, done: Semaphore, timeout_s: float) -> int:
    end_s = time.monotonic() + timeout_s
    while count and done.acquire(timeout=max(end_s - time.monotonic(), 0.0)):
        count -= 1
    return count


@contextmanager
def _without_collections() -> Iterator[None]:
    """Python's garbage collection would stop the sender for milliseconds."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
