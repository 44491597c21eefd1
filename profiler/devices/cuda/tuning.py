"""cuDNN's plans chosen inside the stage that they run in: what is fastest alone may be in the way of its neighbours."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import zip_longest
from statistics import median

from iosched.models.errors import DeviceError, ExecutionError
from iosched.runtime.cuda.cudnn.chooser import CudnnPlanNames
from iosched.runtime.cuda.execute.executor import CudaExecutor

LEAST_COPIES, MOST_COPIES = 4, 24
GRAPH_US = 2000.0
"""What a graph of several runs of a stage should take: its launch, some microseconds, is then none of the latency."""

ROUNDS = 7
MOST_TRIED = 8
LEAST_GAIN = 1.01
"""What is kept has to be faster by this factor in the median, and faster in every round."""

Timed = Callable[[int], tuple[float, ...]]


@dataclass(frozen=True)
class Tuned:
    """The best choice found.

    Attributes:
        names: plans that are better here than the ones that are fastest alone, by their keys.
        time: measures the stage with them: microseconds of each of so many runs.
    """

    names: CudnnPlanNames
    time: Timed


def copies_of(executor: CudaExecutor) -> int:
    """Runs of a stage in one graph: so many that the launch does not count, and few of what takes long."""
    once_us = min(executor.time_launches(2))
    return max(LEAST_COPIES, min(MOST_COPIES, math.ceil(GRAPH_US / max(once_us, 1.0))))


def tune(executor: CudaExecutor) -> Tuned:
    """Tries other plans one at a time, next best alone first, costliest kernels first, and keeps what is faster.

    Coordinate descent: each is compared, in turn, with the best choice so far. A plan that fails here is no candidate.
    Takes at most `MOST_TRIED` comparisons of `ROUNDS` graphs of `copies_of` runs. The executor is left with the last
    plan that was tried.

    Raises:
        ExecutionError: the stage does not run with the plans that are fastest alone.
    """
    best: CudnnPlanNames = {}
    copies = copies_of(executor)
    time = executor.repeated(copies)
    for key, name in _alternatives(executor)[:MOST_TRIED]:
        trial = {**best, key: name}
        try:
            executor.take_cudnn_plans([trial])
            challenger = executor.repeated(copies)
            faster = _is_faster(challenger, time)
        except (DeviceError, ExecutionError):
            continue
        if faster:
            best, time = trial, challenger
    return Tuned(best, time)


def is_tunable(executor: CudaExecutor) -> bool:
    """Whether a choice of plans can matter: more than one kernel, one graph, and a plan that has alternatives."""
    return executor.is_captured and executor.kernel_count > 1 and bool(_alternatives(executor))


def _alternatives(executor: CudaExecutor) -> list[tuple[str, str]]:
    """Keys and names of plans, first the second best alone of the key that costs most, then of the next, and so on."""
    cost_us: dict[str, float] = {}
    others: dict[str, list[tuple[str, str]]] = {}
    for _, plan in executor.cudnn_plans:
        cost_us[plan.key] = cost_us.get(plan.key, 0.0) + (plan.candidates[0].latency_us or 0.0)
        others[plan.key] = [(plan.key, each.name) for each in plan.candidates[1:]]
    ranked = sorted(others, key=lambda key: (-cost_us[key], key))
    return [each for rank in zip_longest(*(others[key] for key in ranked)) for each in rank if each is not None]


def _is_faster(challenger: Timed, best: Timed) -> bool:
    """Round by round, until it loses one: most do at once."""
    best(1), challenger(1)  # to warm up
    before_us: list[float] = []
    after_us: list[float] = []
    for _ in range(ROUNDS):
        before_us += best(1)
        after_us += challenger(1)
        if before_us[-1] <= after_us[-1]:
            return False
    return median(before_us) >= LEAST_GAIN * median(after_us)
