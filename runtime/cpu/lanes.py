"""Which lanes each group of a stage runs on, and which processor each lane is."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path


def assign_lanes(work_us: Sequence[float], lanes: int) -> tuple[tuple[int, ...], ...]:
    """Gives each group its lanes.

    With at least as many groups as lanes, every group gets one lane, longest first to the least loaded (Graham's LPT:
    at most 4/3 - 1/(3 lanes) of the best makespan). With fewer, every group gets one lane and each lane that is left
    goes to the group with the most work per lane.

    Args:
        work_us: guessed single-core time of each group.
        lanes: how many there are.
    """
    if len(work_us) >= lanes:
        return _longest_first(work_us, lanes)
    counts = [1] * len(work_us)
    for _ in range(lanes - len(work_us)):
        counts[max(range(len(counts)), key=lambda group: (work_us[group] / counts[group], -group))] += 1
    starts = [sum(counts[:group]) for group in range(len(counts))]
    return tuple(tuple(range(start, start + count)) for start, count in zip(starts, counts, strict=True))


def _longest_first(work_us: Sequence[float], lanes: int) -> tuple[tuple[int, ...], ...]:
    load = [0.0] * lanes
    chosen = [0] * len(work_us)
    for group in sorted(range(len(work_us)), key=lambda g: (-work_us[g], g)):
        lane = min(range(lanes), key=lambda candidate: (load[candidate], candidate))
        chosen[group] = lane
        load[lane] += work_us[group]
    return tuple((lane,) for lane in chosen)


def lane_cpus(lanes: int, cpus: Sequence[int] | None = None) -> tuple[int, ...]:
    """The processor of each lane.

    Args:
        lanes: how many there are.
        cpus: processors to take, in turn; by default they are chosen among those that the process may use.
    """
    return _default_cpus(lanes) if cpus is None else tuple(cpus[lane % len(cpus)] for lane in range(lanes))


def _default_cpus(lanes: int) -> tuple[int, ...]:
    """A processor for each lane: one thread of every physical core first, among those this process may use.

    A single lane gets -1, no processor of its own: the system places it better than any fixed choice.
    """
    if lanes == 1:
        return (-1,)
    allowed = sorted(os.sched_getaffinity(0))
    first = [cpu for cpu in allowed if cpu == min(_siblings(cpu) & set(allowed), default=cpu)]
    ordered = first + [cpu for cpu in allowed if cpu not in first]
    return tuple(ordered[lane % len(ordered)] for lane in range(lanes))


@cache
def _siblings(cpu: int) -> frozenset[int]:
    """Processors that share a physical core with `cpu`, itself included; it alone where that is not known."""
    path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
    try:
        parts = [part.split("-") for part in path.read_text().strip().split(",")]
        return frozenset(number for part in parts for number in range(int(part[0]), int(part[-1]) + 1))
    except (OSError, ValueError):
        return frozenset((cpu,))
