"""Which lanes each group of a stage runs on."""

from __future__ import annotations

from collections.abc import Sequence


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
