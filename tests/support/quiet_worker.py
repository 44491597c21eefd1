"""A worker whose measurements count as if nothing else ran, so that tests may run beside each other."""

from __future__ import annotations

import os

import msgspec
from thread_cluster import Say

from iosched.jobs.pool import messages
from iosched.jobs.pool.messages import Facts
from iosched.jobs.pool.worker import Worker as AnyWorker
from iosched.jobs.worker import KINDS, Worker
from iosched.profiler.measuring import disturbance


def quiet(device: str, threads: int, say: Say) -> AnyWorker:
    """A `Worker` of this process, in which nothing is ever called disturbed."""
    disturbance.disturbances = lambda *_: ()  # type: ignore[assignment]
    disturbance.doubts = lambda *_: ()  # type: ignore[assignment]
    return Worker(device, threads, say)


class Older(AnyWorker):
    """A worker of an iosched before the first."""

    def say(self, message: messages.SaidMessage) -> None:
        if isinstance(message, Facts):
            message = msgspec.structs.replace(message, versions={**message.versions, "iosched": "0.0.0"})
        super().say(message)


def unlike(device: str, threads: int, say: Say) -> AnyWorker:
    """A quiet worker if it may use all processors; else an older one if it has the first, or one that is disturbed."""
    mine = os.sched_getaffinity(0)
    of_all = os.sched_getaffinity(os.getppid())  # Ray's own process, which is not bound
    if mine == of_all:
        return quiet(device, threads, say)
    if min(of_all) in mine:
        return Older(device, threads, say, KINDS)
    disturbance.doubts = lambda *_: ("the calibration kernel took 3.0 times its reference",)  # type: ignore[assignment]
    return Worker(device, threads, say)
