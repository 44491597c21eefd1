"""A worker on a machine where everything is disturbed; of several, the first that searches dies meanwhile."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from thread_cluster import Fetch, Say

from iosched.jobs.pool.messages import Call
from iosched.jobs.pool.worker import Worker
from iosched.jobs.worker import KINDS
from iosched.profiler.devices.cpu import measured_cost as cpu_cost
from iosched.profiler.measuring import disturbance

DIES = "IOSCHED_TEST_DIES"
"""Names a file that the worker makes which dies."""

_STAGES = 4


class Noisy(Worker):
    """A `Worker` of this process, in which everything is called disturbed."""

    def __init__(self, device: str, threads: int, say: Say) -> None:
        self._left = -1
        self._measured = cpu_cost.CpuStageCost._timed
        disturbance.doubts = lambda *_: ("other processes used 60% of the cores",)  # type: ignore[assignment]
        cpu_cost.CpuStageCost._timed = lambda *asked: self._timed(*asked)  # type: ignore[method-assign, assignment]
        super().__init__(device, threads, say, KINDS)

    def _do(self, call: Call, fetch: Fetch) -> None:
        self._left = _STAGES if call.kind == "optimize" else self._left
        super()._do(call, fetch)

    def _timed(self, *asked: Any) -> Any:
        self._left -= 1
        if self._left == 0:
            _die_once()
        return self._measured(*asked)


def _die_once() -> None:
    try:
        Path(os.environ[DIES]).touch(exist_ok=False)
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)
