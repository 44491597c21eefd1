"""What a user should read where a model runs slower than it could: cores are shared, or an executor is missing."""

from __future__ import annotations

import math

from iosched.runtime.cores import allowed_cpus, cpu_count
from iosched.runtime.cpu import library
from iosched.runtime.cpu.claims import Claim
from iosched.runtime.cpu.lane_cpus import LaneCpus
from iosched.runtime.quota import cpu_quota


def core_remarks(cpus: LaneCpus) -> tuple[str, ...]:
    """Remarks on the processors that a backend's lanes run on, none before they were needed, and on its executor."""
    shared = () if cpus.taken is None else _shared(cpus.taken, cpus.lanes)
    return (*_executor_remarks(), *shared, *thread_remarks(cpus.lanes))


def remarks_before(threads: int | None) -> tuple[str, ...]:
    """The remarks on a model that is about to run on so many threads, by default one for each core."""
    cpus = LaneCpus(threads or cpu_count())
    cpus.of(cpus.lanes)
    cpus.close()
    return core_remarks(cpus)


def _executor_remarks() -> tuple[str, ...]:
    missing = library.missing()
    return () if missing is None else (f"Models run by the executor in Python, which is slower: {missing}.",)


def thread_remarks(threads: int) -> tuple[str, ...]:
    """Says so if so many threads have to take turns, or use up more time than the process gets."""
    return (*_crowded(threads), *_over_quota(threads))


def _crowded(threads: int) -> tuple[str, ...]:
    processors = len(allowed_cpus())
    if threads <= processors:
        return ()
    return (
        f"{threads} threads take turns on {processors} processors, and wait for each other: that is slower than"
        f" --threads {processors}.",
    )


def _over_quota(threads: int) -> tuple[str, ...]:
    quota = cpu_quota()
    if quota is None or threads <= quota:
        return ()
    fits = f": --threads {math.floor(quota)} fits" if quota >= 1 else ""
    return (
        f"The CPU quota is the time of {quota:g} cores: {threads} threads use it up and are then stopped, many times a"
        f" second{fits}.",
    )


def _shared(taken: Claim, lanes: int) -> tuple[str, ...]:
    if taken.n_shared == 0:
        return ()
    others = "processes of iosched" + (f" (PID {', '.join(map(str, taken.pids))})" if taken.pids else "")
    slower = "both are slower while both run, and what is measured here is too slow"
    if taken.n_free == 0:
        return (
            f"Other {others} have taken all cores, {taken.n_shared} of which this one uses too: {slower}."
            " Give each process fewer --threads.",
        )
    return (
        f"Of the {lanes} cores that this runs on, other {others} have taken {taken.n_shared} too: {slower}."
        f" --threads {taken.n_free} leaves them alone.",
    )
