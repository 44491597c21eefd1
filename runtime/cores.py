"""Which processors this process may use, how much of their time, and which of them are one core."""

from __future__ import annotations

import math
import os
from functools import cache
from pathlib import Path

from iosched.runtime.quota import cpu_quota


def allowed_cpus() -> tuple[int, ...]:
    """The numbers of the processors that the calling thread may run on, in ascending order."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def cpu_count() -> int:
    """How many threads this process can keep running: one for each processor that it may use, as far as its quota goes.

    A part of a processor counts for nothing, if there is a whole one: a thread too many uses the quota up before its
    period is over, and then all threads are stopped for the rest of it.
    """
    allowed, quota = len(allowed_cpus()), cpu_quota()
    return allowed if quota is None else max(1, min(allowed, math.floor(quota)))


def physical_cores() -> int:
    """How many physical cores the processors are on that this process may use."""
    return len({min(siblings(cpu)) for cpu in allowed_cpus()})


def has_whole_machine() -> bool:
    """Whether this process may use every processor of the machine."""
    return len(allowed_cpus()) >= (os.cpu_count() or 1)


def numbers_in(text: str) -> frozenset[int]:
    """The processors in a list as Linux writes it, such as "0-3,8"; none if it is no such list."""
    try:
        parts = [part.split("-") for part in text.strip().split(",")]
        return frozenset(number for part in parts for number in range(int(part[0]), int(part[-1]) + 1))
    except ValueError:
        return frozenset()


def is_time_shared() -> bool:
    """Whether a quota leaves this process less time than the processors have that it may use.

    Then others run on these processors, whom this process may not see: those of other containers.
    """
    quota = cpu_quota()
    return quota is not None and quota < len(allowed_cpus())


@cache
def siblings(cpu: int) -> frozenset[int]:
    """Processors that share a physical core with `cpu`, itself included; it alone where that is not known."""
    path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
    try:
        return numbers_in(path.read_text()) | {cpu}
    except (OSError, ValueError):
        return frozenset((cpu,))
