"""A measurement waits for threads that still run, but not forever."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from iosched.profiler.measuring.idle import LONGEST_SECONDS, wait_until_idle


@pytest.fixture(autouse=True)
def _measurements_are_brief() -> None:
    """Overrides the shared fixture: these tests are about the waiting itself."""


def spinning(seconds: float) -> tuple[Callable[[], float], Callable[[float], None], list[float]]:
    """A process with a thread that spins for `seconds`: its processor time, its sleep, and how long it has slept."""
    slept: list[float] = []
    return lambda: min(sum(slept), seconds), slept.append, slept


def test_it_waits_as_long_as_threads_spin_and_little_longer() -> None:
    process_time, sleep, slept = spinning(0.085)
    wait_until_idle(process_time=process_time, sleep=sleep)
    assert 0.085 <= sum(slept) <= 0.12


def test_a_quiet_process_does_not_wait() -> None:
    process_time, sleep, slept = spinning(0.0)
    wait_until_idle(process_time=process_time, sleep=sleep)
    assert len(slept) == 1


def test_it_gives_up_on_threads_that_never_rest() -> None:
    process_time, sleep, slept = spinning(1e9)
    wait_until_idle(process_time=process_time, sleep=sleep)
    assert abs(sum(slept) - LONGEST_SECONDS) < 0.05
