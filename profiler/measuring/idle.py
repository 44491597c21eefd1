"""Waits until the threads of this process are quiet, so that they do not disturb the next measurement."""

from __future__ import annotations

import time
from collections.abc import Callable

WINDOW_SECONDS = 0.01
QUIET_SHARE = 0.1
LONGEST_SECONDS = 0.5


def wait_until_idle(
    *,
    process_time: Callable[[], float] = time.process_time,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Returns once all threads of this process together use less than a tenth of one core, or after half a second.

    The worker threads of some runtimes spin after a run, and would take the cores from whatever runs next. How long
    they spin depends on the processor: onnxruntime counts iterations, not time (60 to 90 ms were seen).

    Args:
        process_time: returns the processor time of this process in seconds.
        sleep: sleeps for a number of seconds.
    """
    before = process_time()
    for _ in range(round(LONGEST_SECONDS / WINDOW_SECONDS)):
        sleep(WINDOW_SECONDS)
        now = process_time()
        if now - before < QUIET_SHARE * WINDOW_SECONDS:
            return
        before = now
