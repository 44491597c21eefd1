"""A caller that is interrupted, gives up or is refused leaves no request behind and returns its cores."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import Any

import pytest

from iosched.jobs.serving.core_pool import CorePool
from iosched.jobs.serving.policy import ModelPolicy, ServingPolicy
from iosched.models.errors import BusyError


class Interrupted:
    """A gate whose caller gets an exception while it waits; a `threading.Lock` otherwise."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.release = self._lock.release

    def acquire(self, timeout: float | None = None) -> bool:
        if timeout is not None:
            raise KeyboardInterrupt
        return self._lock.acquire()


def is_idle(pool: CorePool) -> bool:
    return not (pool._dispatcher.running or pool._dispatcher.waiting) and len(pool._dispatcher._free) == 1


def test_a_waiting_caller_that_is_interrupted_is_dropped() -> None:
    pool = CorePool(1, ServingPolicy(), new_gate=Interrupted)  # type: ignore[arg-type]
    with pool.cores("a"):
        with pytest.raises(KeyboardInterrupt), pool.cores("a"):
            pass
        assert pool._dispatcher.waiting == ()
    assert is_idle(pool)


def test_a_caller_that_fails_returns_its_cores() -> None:
    pool = CorePool(1, ServingPolicy())
    with pytest.raises(ZeroDivisionError), pool.cores("a"):
        _ = 1 / 0
    assert is_idle(pool)


def test_a_time_limit_applies_only_to_waiting_calls_inside_it() -> None:
    pool = CorePool(1, ServingPolicy())
    with pool.limit(0.0), pool.cores("a"), pytest.raises(BusyError, match="in time"), pool.cores("a"):
        pass
    done: list[Any] = []

    def wait() -> None:
        with pool.cores("a"):
            done.append(True)

    with pool.cores("a"):
        other = threading.Thread(target=wait)
        with pool.limit(0.0):  # of this thread
            other.start()
        other.join(0.05)
        assert not done
    other.join(60)
    assert done == [True]
    assert is_idle(pool)


def test_a_request_that_starts_as_its_limit_passes_runs() -> None:
    running = ExitStack()

    class Late(Interrupted):
        def acquire(self, timeout: float | None = None) -> bool:
            if timeout is not None:
                running.close()
            return timeout is None and self._lock.acquire()

    pool = CorePool(1, ServingPolicy(), new_gate=Late)  # type: ignore[arg-type]
    running.enter_context(pool.cores("a"))
    with pool.cores("a") as block:
        assert block == (0,)
    assert is_idle(pool)


def test_a_refused_request_does_not_occupy_the_queue() -> None:
    pool = CorePool(1, ServingPolicy({"a": ModelPolicy(most_waiting=0)}))
    with pool.cores("b"), pytest.raises(BusyError, match="wait already"), pool.cores("a"):
        pass
    assert is_idle(pool)
    pool.wait_until_idle()
