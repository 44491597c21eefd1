"""Divides the processors of this machine among the workers of `--cluster local:N`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from platform import node

from iosched.jobs.pool.transport import Place
from iosched.models.errors import UsageError
from iosched.runtime.cores import allowed_cpus, cpu_count, siblings


def local_places(workers: int, threads: int | None) -> tuple[Place, ...]:
    """Returns the places of a local cluster, within this process's processors and CPU quota.

    Raises:
        UsageError: the workers need more threads than there are processors.
    """
    return divided(workers, threads, allowed_cpus(), cpu_count(), siblings)


def divided(
    workers: int, threads: int | None, cpus: Sequence[int], most: int, siblings_of: Callable[[int], Collection[int]]
) -> tuple[Place, ...]:
    """Gives each worker `len(cpus) // workers` processors of its own, and keeps physical cores whole if possible.

    Under a quota a worker may have fewer threads than processors.

    Args:
        threads: threads per worker; None for `most // workers`.
        most: maximum number of threads for the processors and the quota.
        siblings_of: returns the processors of the same physical core, including the argument.

    Raises:
        UsageError: the workers need more than `most` threads.
    """
    each = threads if threads is not None else most // workers
    if each < 1 or workers * each > most:
        wanted = "one thread each" if threads is None else f"{each} thread{'s' if each > 1 else ''} each"
        raise UsageError(
            f"--cluster local:{workers} with {wanted} needs {workers * max(each, 1)} cores, and this process may use"
            f" {most}: take fewer workers{'' if threads in (None, 1) else ' or fewer --threads'}"
        )
    share = len(cpus) // workers
    ordered = sorted(cpus, key=lambda cpu: (min(set(siblings_of(cpu)) & set(cpus), default=cpu), cpu))
    machine = node() or "localhost"
    return tuple(
        Place(machine, "127.0.0.1", "cpu", threads=each, cores=tuple(sorted(ordered[start : start + share])))
        for start in range(0, workers * share, share)
    )
