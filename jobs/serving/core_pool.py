"""The cores of one process, which the threads of waiting callers share."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from iosched.jobs.serving.dispatcher import Dispatcher, Start
from iosched.jobs.serving.policy import ServingPolicy
from iosched.models.errors import BusyError, UsageError
from iosched.runtime.shared_cores import Block


@dataclass(eq=False)
class _Request:
    """A request and its caller's gate, which opens when the request starts or is refused."""

    gate: threading.Lock
    block: Block | None = None
    refusal: str | None = None


class CorePool:
    """Gives cores to the calling threads, one request at a time each, as a `Dispatcher` decides."""

    def __init__(
        self,
        cores: int,
        policy: ServingPolicy,
        *,
        clock: Callable[[], float] = time.monotonic,
        new_gate: Callable[[], threading.Lock] = threading.Lock,
    ) -> None:
        """Start with all cores idle; tests replace the clock and the lock that a waiting caller acquires."""
        self._clock, self._new_gate = clock, new_gate
        self._dispatcher = Dispatcher(cores, policy)
        self._lock = threading.Lock()
        self._ended = threading.Condition(self._lock)
        self._limits = threading.local()

    @property
    def shared(self) -> Block:
        """See `Dispatcher.shared`."""
        return self._dispatcher.shared

    def opened(self, model: str, run_s: Mapping[int, float]) -> None:
        """See `Dispatcher.opened`."""
        with self._lock:
            self._dispatcher.opened(model, run_s)

    @contextmanager
    def limit(self, timeout_s: float | None) -> Iterator[None]:
        """Within this block, each request of the calling thread waits at most until `timeout_s` seconds from now."""
        self._limits.until_s = None if timeout_s is None else self._clock() + timeout_s
        try:
            yield
        finally:
            self._limits.until_s = None

    @contextmanager
    def cores(self, model: str) -> Iterator[Block]:
        """Cores for one request of `model`, which belong to the calling thread inside the block.

        Raises:
            BusyError: too many requests of the model wait, or the time limit has passed.
            UsageError: the pool was closed while this request waited.
        """
        request = _Request(self._new_gate())
        request.gate.acquire()
        try:
            with self._lock:
                self._start(self._dispatcher.arrived(request, model, self._clock()))
            yield self._awaited(request, model)
        finally:  # also where the caller is interrupted
            with self._lock:
                self._start(self._dispatcher.ended(request, self._clock()))
                self._ended.notify_all()

    def wait_until_idle(self) -> None:
        """Return when no request runs or waits."""
        with self._ended:
            self._ended.wait_for(lambda: not (self._dispatcher.running or self._dispatcher.waiting))

    def refuse_waiting(self, reason: str) -> None:
        """Drop the waiting requests: their callers get a `UsageError`."""
        with self._lock:
            for request in self._dispatcher.drop_waiting():
                assert isinstance(request, _Request)
                request.refusal = reason
                request.gate.release()

    def _awaited(self, request: _Request, model: str) -> Block:
        until_s: float | None = getattr(self._limits, "until_s", None)
        if request.block is None and not request.gate.acquire(timeout=self._left_s(until_s)):
            with self._lock:
                if request.block is None and request.refusal is None:
                    raise BusyError(f"no core became free for the request of {model!r} in time: try again later")
        if request.refusal is not None:
            raise UsageError(request.refusal)
        assert request.block is not None
        return request.block

    def _left_s(self, until_s: float | None) -> float:
        return -1 if until_s is None else max(0.0, until_s - self._clock())

    @staticmethod
    def _start(starts: Iterable[Start]) -> None:
        for start in starts:
            assert isinstance(start.request, _Request)
            start.request.block = start.block
            start.request.gate.release()
