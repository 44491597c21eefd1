"""A worker that searches as every worker does, and sleeps instead of measuring: there may be more of them than cores.

A stage takes the same whoever asks, so that a search finds the same on any number of workers.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from typing import Any

from scripted import stage_us
from thread_cluster import Say

from iosched.jobs.pool.worker import Worker as AnyWorker
from iosched.jobs.worker import Worker
from iosched.models.errors import ExecutionError
from iosched.profiler.devices.cpu import measured_cost as cpu_cost
from iosched.profiler.measuring import disturbance
from iosched.profiler.measuring.statistics import Measurement, summarize
from iosched.scheduler.schedule import Stage

MEAN_S, SPREAD = 0.1, 0.4
WARMING = "IOSCHED_TEST_WARMING"
"""Names a file: while it is there nothing is measured, and whoever asks has only the model opened."""

_NOISE = 0.03


def sleeping(device: str, threads: int, say: Say) -> AnyWorker:
    """A `Worker` of this process, in which a measurement is a sleep of a seeded length."""
    disturbance.disturbances = lambda *_: ()  # type: ignore[assignment]
    disturbance.doubts = lambda *_: ()  # type: ignore[assignment]
    cpu_cost.CpuStageCost._timed = _slept  # type: ignore[method-assign, assignment]
    return Worker(device, threads, say)


def _slept(cost: Any, stage: Stage, lanes: int, worse_than_us: float | None = None) -> Measurement:
    """What a stage is said to take, after as long as measuring it is said to take."""
    is_probe = len(cost.backend.graph.operators) == 1  # by which a worker comes up
    if not is_probe and Path(os.environ[WARMING]).exists():
        time.sleep(MEAN_S)
        raise ExecutionError("nothing is measured yet")
    numbers = random.Random(f"{stage.strategy} {stage.groups} {lanes}")
    time.sleep(numbers.lognormvariate(0.0, SPREAD) * MEAN_S)
    return summarize([stage_us(cost, stage, lanes) * numbers.gauss(1.0, _NOISE)] * 24)
