"""A worker whose measurements count as if nothing else ran, so that tests may run beside each other."""

from __future__ import annotations

import os

import msgspec

from iosched.jobs.fleet import messages
from iosched.jobs.fleet.messages import Facts
from iosched.jobs.fleet.worker import Worker
from iosched.profiler.measuring import disturbance


def quiet(device: str, threads: int) -> Worker:
    """A `Worker` of this process, in which nothing is ever called disturbed."""
    disturbance.disturbances = lambda *_: ()  # type: ignore[assignment]
    disturbance.doubts = lambda *_: ()  # type: ignore[assignment]
    return Worker(device, threads)


class Older(Worker):
    """A worker of an iosched before the first."""

    def facts(self) -> bytes:
        found: Facts = messages.decoded(super().facts(), Facts)
        return messages.encoded(msgspec.structs.replace(found, versions={**found.versions, "iosched": "0.0.0"}))


def unlike(device: str, threads: int) -> Worker:
    """A quiet worker if it may use all processors; else an older one if it has the first, or one that is disturbed."""
    mine = os.sched_getaffinity(0)
    of_all = os.sched_getaffinity(os.getppid())  # Ray's own process, which is not bound
    if mine == of_all:
        return quiet(device, threads)
    if min(of_all) in mine:
        return Older(device, threads)
    disturbance.doubts = lambda *_: ("the yardstick took 3.0 times its reference",)  # type: ignore[assignment]
    return Worker(device, threads)
