"""Detects interference from other processes during measurements.

A median over some twenty runs tolerates rare interference, but not a neighbour with half of the cores' time, which
doubles latencies and distorts the calibration. The samples alone do not show it, since all may be slow, so the system's
counters are read.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from iosched.profiler.measuring.statistics import Measurement

STAT = Path("/proc/stat")
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100  # none on Windows, which has no STAT

OTHERS_SHARE, OTHERS_SECONDS = 0.35, 0.03
"""Thresholds of other processes: the share of the cores' time, and seconds, since the system counts ticks of 10 ms.
With a fifth of the cores interference, medians stay within the noise (docs/measurement.md).
"""

STOLEN_SHARE, STOLEN_SECONDS = 0.06, 0.02
"""The same for the host of a virtual machine."""

FAR_OFF = 2.0
"""Limit of the calibration kernel over its reference: up to 1.5 was seen on a quiet machine."""

UNSTEADY = 1.75
"""Limit of the slowest over the fastest calibration kernel of one stage: on a quiet machine one stage in ten exceeds
it, as with 1.5 and a kernel of 2 ms.
"""


SCATTERED = 0.75
"""Limit of an interval's width over the median: a stage with interference in every second run has no median."""

LEAST, MOST = 0.4, 2.5
"""Bounds of the true median over the one measured under interference."""

_IDLE, _WAITING, _STOLEN = 3, 4, 7  # columns of /proc/stat, see proc(5); the first two are not work


@dataclass(frozen=True)
class Load:
    """Counters until now; the difference of two describes the time between them.

    Attributes:
        own_s: processor time of this process, all threads.
        busy_s: processor time of everybody on the watched cores; 0 if unknown.
        stolen_s: time in which the host ran something else on these cores; 0 if unknown.
    """

    wall_s: float
    own_s: float
    busy_s: float
    stolen_s: float


def read_load(cpus: Collection[int], stat: Path = STAT) -> Load:
    """The load of these processors until now. Takes some 20 us."""
    busy, stolen = _ticks(cpus, stat)
    return Load(time.monotonic(), time.process_time(), busy / TICKS_PER_SECOND, stolen / TICKS_PER_SECOND)


@dataclass(frozen=True)
class Interference:
    """Shares of the cores' time, from 0 to 1, of other processes and of the host; 0 if insignificant."""

    others: float = 0.0
    stolen: float = 0.0

    @property
    def disturbs(self) -> bool:
        """Whether latencies measured meanwhile are unreliable."""
        return self.others >= OTHERS_SHARE or self.stolen >= STOLEN_SHARE


def interference(before: Load, after: Load, cores: int) -> Interference:
    """The interference on `cores` processors between two readings."""
    wall_s = after.wall_s - before.wall_s
    if wall_s <= 0:
        return Interference()
    others_s = after.busy_s - before.busy_s - (after.own_s - before.own_s)
    stolen_s = after.stolen_s - before.stolen_s
    return Interference(
        others_s / (wall_s * cores) if others_s >= OTHERS_SECONDS else 0.0,
        stolen_s / (wall_s * cores) if stolen_s >= STOLEN_SECONDS else 0.0,
    )


def disturbances(before: Load, after: Load, cores: int) -> tuple[str, ...]:
    """The interference between two readings in words; empty if harmless."""
    share = interference(before, after, cores)
    found = []
    if share.others >= OTHERS_SHARE:
        found.append(f"other processes used {share.others:.0%} of the cores")
    if share.stolen >= STOLEN_SHARE:
        found.append(f"the host took {share.stolen:.0%} of the cores")
    return tuple(found)


def interference_since_now(cpus: Collection[int]) -> Callable[[], Interference]:
    """A function that returns the interference on these processors since now."""
    before = read_load(cpus)
    return lambda: interference(before, read_load(cpus), max(len(cpus), 1))


def since_now(cpus: Collection[int]) -> Callable[[], tuple[str, ...]]:
    """A function that returns the interference on these processors since now, in words."""
    before = read_load(cpus)
    return lambda: disturbances(before, read_load(cpus), max(len(cpus), 1))


def watch(cpus: Collection[int]) -> Callable[[], bool]:
    """A function that returns whether there was no interference since it was made, or last called."""
    others = since_now(cpus)

    def is_quiet() -> bool:
        nonlocal others
        found, others = others(), since_now(cpus)
        return not found

    return is_quiet


def doubts(slowness: Sequence[float], relative_width: float = math.inf) -> tuple[str, ...]:
    """The reasons against a latency that follow from its samples, in words.

    Args:
        slowness: latencies of the calibration kernel during the runs, over its reference.
        relative_width: of the latency's interval; infinite with too few runs.
    """
    found = []
    least, most = min(slowness, default=1.0), max(slowness, default=1.0)
    if most > FAR_OFF or least < 1 / FAR_OFF:
        found.append(f"the calibration kernel took {most if most > FAR_OFF else least:.1f} times its reference")
    elif most > least * UNSTEADY:
        found.append(f"the latency of the calibration kernel varied by a factor of {most / least:.1f}")
    if SCATTERED < relative_width < math.inf:
        found.append(f"the width of the interval is {relative_width:.0%} of the median")
    return tuple(found)


def disturbed(found: Measurement, reasons: tuple[str, ...]) -> Measurement:
    """The measurement with these reasons, which widen its interval to `LEAST` and `MOST`."""
    if not reasons:
        return found
    low_us, high_us = min(found.low_us, LEAST * found.median_us), max(found.high_us, MOST * found.median_us)
    return replace(found, low_us=low_us, high_us=high_us, disturbed_by=reasons)


def _ticks(cpus: Collection[int], stat: Path) -> tuple[int, int]:
    """Ticks in which these processors worked, and ticks that the host took from them; 0 if unknown."""
    try:
        lines = stat.read_text(encoding="ascii").splitlines()
    except (OSError, ValueError):
        return 0, 0
    wanted = {f"cpu{cpu}" for cpu in cpus}
    busy = stolen = 0
    for name, *columns in (line.split() for line in lines if line.startswith("cpu")):
        if name in wanted and len(columns) > _STOLEN:
            ticks = list(map(int, columns[: _STOLEN + 1]))  # the next columns, guests, are part of "user"
            stolen += ticks[_STOLEN]
            busy += sum(ticks) - ticks[_IDLE] - ticks[_WAITING] - ticks[_STOLEN]
    return busy, stolen
