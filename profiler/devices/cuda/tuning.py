"""Chooses cuDNN's plans inside the stage where they run: a plan that is fastest alone may slow its neighbours."""

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
"""How long a graph with several runs of a stage should take, so that its launch of some microseconds does not count."""

ROUNDS = 7
MOST_TRIED = 8
LEAST_GAIN = 1.01
"""A plan is kept only if the stage is faster with it by this factor in the median, and faster in every round."""

Timed = Callable[[int], tuple[float, ...]]


@dataclass(frozen=True)
class Tuned:
    """The best choice of plans that was found for a stage.

    Attributes:
        names: by their keys, the plans that are faster in this stage than those that are fastest alone.
        time: runs the stage with these plans a number of times, and returns the microseconds of each run.
    """

    names: CudnnPlanNames
    time: Timed


def copies_of(executor: CudaExecutor) -> int:
    """How many runs of the stage one graph gets, so that it takes about `GRAPH_US`: few if a run takes long."""
    once_us = min(executor.time_launches(2))
    return max(LEAST_COPIES, min(MOST_COPIES, math.ceil(GRAPH_US / max(once_us, 1.0))))


def tune(executor: CudaExecutor) -> Tuned:
    """Tries other plans one at a time, and keeps those that make the stage faster (coordinate descent).

    The plans that are second best alone are tried first, those of the slowest kernels before others. Each is compared
    in turn with the best choice so far; a plan that fails is no candidate. There are at most `MOST_TRIED` comparisons
    of `ROUNDS` graphs with `copies_of` runs. The executor is left with the plan that was tried last.

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
    """Whether other plans can make a difference: several kernels run in one graph, and a plan has alternatives."""
    return executor.is_captured and executor.kernel_count > 1 and bool(_alternatives(executor))


def _alternatives(executor: CudaExecutor) -> list[tuple[str, str]]:
    """Keys and names of the plans to try: first the second best plan of each key, the slowest key first, and so on."""
    cost_us: dict[str, float] = {}
    others: dict[str, list[tuple[str, str]]] = {}
    for _, plan in executor.cudnn_plans:
        cost_us[plan.key] = cost_us.get(plan.key, 0.0) + (plan.candidates[0].latency_us or 0.0)
        others[plan.key] = [(plan.key, each.name) for each in plan.candidates[1:]]
    ranked = sorted(others, key=lambda key: (-cost_us[key], key))
    return [each for rank in zip_longest(*(others[key] for key in ranked)) for each in rank if each is not None]


def _is_faster(challenger: Timed, best: Timed) -> bool:
    """Compares round by round, and ends at the first round that the challenger loses, which is mostly the first."""
    best(1), challenger(1)  # to warm up
    before_us: list[float] = []
    after_us: list[float] = []
    for _ in range(ROUNDS):
        before_us += best(1)
        after_us += challenger(1)
        if before_us[-1] <= after_us[-1]:
            return False
    return median(before_us) >= LEAST_GAIN * median(after_us)
