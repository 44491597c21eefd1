"""Notes for users on why a model runs slower than it could: shared cores, a quota, or the Python executor."""

from __future__ import annotations

import math

from iosched.runtime.cores import allowed_cpus, cpu_quota
from iosched.runtime.cpu import library
from iosched.runtime.cpu.lane_cpus import Claim, LaneCpus
from iosched.runtime.topology import default_threads


def core_remarks(cpus: LaneCpus) -> tuple[str, ...]:
    """Notes on the processors of a backend's lanes, if they are claimed, and on its executor."""
    shared = () if cpus.taken is None else _shared(cpus.taken, cpus.lanes)
    return (*_executor_remarks(), *shared, *thread_remarks(cpus.lanes))


def remarks_before(threads: int | None) -> tuple[str, ...]:
    """Notes on a model that is about to run on `threads` threads; default: one for each core."""
    cpus = LaneCpus(threads or default_threads())
    cpus.of(cpus.lanes)
    cpus.close()
    return core_remarks(cpus)


def _executor_remarks() -> tuple[str, ...]:
    missing = library.missing()
    return () if missing is None else (f"Models run on the slower Python executor: {missing}.",)


def thread_remarks(threads: int) -> tuple[str, ...]:
    """Notes on threads that exceed the processors or the quota."""
    return (*_oversubscribed(threads), *_over_quota(threads))


def _oversubscribed(threads: int) -> tuple[str, ...]:
    processors = len(allowed_cpus())
    if threads <= processors:
        return ()
    return (
        f"{threads} threads share {processors} processors and wait for each other: --threads {processors} is faster.",
    )


def _over_quota(threads: int) -> tuple[str, ...]:
    quota = cpu_quota()
    if quota is None or threads <= quota:
        return ()
    advice = f": use --threads {math.floor(quota)}" if quota >= 1 else ""
    return (f"The CPU quota is {quota:g} cores: {threads} threads exceed it and are throttled{advice}.",)


def _shared(taken: Claim, lanes: int) -> tuple[str, ...]:
    if taken.n_shared == 0:
        return ()
    others = "Other iosched processes" + (f" (PID {', '.join(map(str, taken.pids))})" if taken.pids else "")
    effect = "all of them run slower, and latencies measured now are too high"
    if taken.n_free == 0:
        return (
            f"{others} use all cores, {taken.n_shared} of them together with this process: {effect}."
            " Give each process fewer --threads.",
        )
    return (
        f"{others} use {taken.n_shared} of the {lanes} cores of this process: {effect}."
        f" --threads {taken.n_free} avoids those cores.",
    )
