"""Waits until the threads of this process are idle, so that they do not interfere with the next measurement."""

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

    Worker threads of some runtimes spin after a run. How long depends on the processor: onnxruntime counts iterations,
    not time (60 to 90 ms were seen).
    """
    before = process_time()
    for _ in range(round(LONGEST_SECONDS / WINDOW_SECONDS)):
        sleep(WINDOW_SECONDS)
        now = process_time()
        if now - before < QUIET_SHARE * WINDOW_SECONDS:
            return
        before = now
