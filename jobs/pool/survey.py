"""What a cluster has: each device, what a worker on it says of itself, and why it cannot be used where it cannot."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from iosched.jobs.pool import messages
from iosched.jobs.pool.messages import Facts, Unusable
from iosched.jobs.pool.ray.nodes import CPU_RESOURCE
from iosched.jobs.pool.transport import Event, Lost, Place, Places, Said, Start, Stop, Transport, Unreached
from iosched.models.errors import DeviceError, ExecutionError
from iosched.profiler.devices.gpus import gpu_named

_STEP_S = 0.2


@dataclass(frozen=True)
class Surveyed:
    """One place of a cluster, as a worker there has it.

    Attributes:
        place: the devices.
        facts: what the worker said of itself; None where there was none.
        problem: why the devices cannot be used, for people; empty where they can.
    """

    place: Place
    facts: Facts | None = None
    problem: str = ""


def survey(transport: Transport, patience_s: float) -> tuple[Surveyed, ...]:
    """Starts a worker on one device of each place, has it say what it is, and ends it.

    Args:
        transport: reaches the cluster, or will; is closed by whoever opened it.
        patience_s: how long to wait for the workers.

    Raises:
        DeviceError: there is no cluster, or it is lost meanwhile.
    """
    places = _places(transport, time.monotonic() + patience_s)
    found = {f"survey-{number}": Surveyed(place) for number, place in enumerate(places)}
    found |= {
        worker: replace(each, problem=problem) for worker, each in found.items() if (problem := _kept_out(each.place))
    }
    asked = {worker for worker, each in found.items() if not each.problem}
    for worker in sorted(asked):
        transport.send(Start(worker, found[worker].place))
    until = time.monotonic() + patience_s
    while asked and time.monotonic() < until:
        for event in transport.receive(_STEP_S):
            _refuse_loss(event)
            if isinstance(event, Said | Lost) and event.worker in asked:
                asked.remove(event.worker)
                transport.send(Stop(event.worker))
                found[event.worker] = _told(found[event.worker].place, event)
    for worker in asked:
        found[worker] = replace(found[worker], problem=f"no worker came up there within {patience_s:.0f} s")
    return tuple(found.values())


def _places(transport: Transport, until: float) -> Sequence[Place]:
    while time.monotonic() < until:
        for event in transport.receive(_STEP_S):
            _refuse_loss(event)
            if isinstance(event, Places):
                return event.places
    raise DeviceError("the cluster does not say which machines it has")


def _refuse_loss(event: Event) -> None:
    if isinstance(event, Unreached):
        raise DeviceError(event.reason)


def _kept_out(place: Place) -> str:
    if place.count == 0:
        return f"its CPU is not offered: start Ray there with --resources '{{\"{CPU_RESOURCE}\": 1}}'"
    if place.device != "cpu" and gpu_named(place.device) is None:
        return "the table of GPUs does not have it: see `iosched devices`"
    return ""


def _told(place: Place, event: Said | Lost) -> Surveyed:
    if isinstance(event, Lost):
        return Surveyed(place, problem=event.reason)
    try:
        said = messages.said(event.message)
    except ExecutionError as error:
        return Surveyed(place, problem=f"it says what is not understood here: {error}")
    if isinstance(said, Unusable):
        return Surveyed(place, problem=said.reason)
    if not isinstance(said, Facts):
        return Surveyed(place, problem="it does not say what it is")
    return Surveyed(place, said, said.other_version)
