"""Lists the devices of a cluster, with a description from a worker or the reason why a device is unusable."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from iosched.jobs.pool import messages
from iosched.jobs.pool.messages import Facts, Unusable
from iosched.jobs.pool.ray.places import CPU_RESOURCE
from iosched.jobs.pool.transport import Event, Lost, Place, Places, Said, Start, Stop, Transport, Unreached
from iosched.models.errors import DeviceError, ExecutionError
from iosched.profiler.devices.gpus import gpu_named

_STEP_S = 0.2


@dataclass(frozen=True)
class Surveyed:
    """A place of a cluster.

    Attributes:
        place: the devices.
        facts: the worker's description; None if no worker started.
        problem: why the devices cannot be used; empty if they can.
    """

    place: Place
    facts: Facts | None = None
    problem: str = ""


def survey(transport: Transport, timeout_s: float) -> tuple[Surveyed, ...]:
    """Starts a worker on one device of each place, reads its description, and stops it.

    Args:
        transport: connects to the cluster; the caller closes it.
        timeout_s: timeout for the workers, in seconds.

    Raises:
        DeviceError: the cluster cannot be reached, or the connection was lost.
    """
    late = f"no worker came up there within {timeout_s:.0f} s"
    places = _places(transport, time.monotonic() + timeout_s)
    found = {place: Surveyed(place, problem=_problem_of(place) or late) for place in places}
    pending = {f"survey-{number}": place for number, place in enumerate(found) if not _problem_of(place)}
    for worker, place in pending.items():
        transport.send(Start(worker, place))
    until = time.monotonic() + timeout_s
    while pending and time.monotonic() < until:
        for event in _received(transport):
            if isinstance(event, Said | Lost) and event.worker in pending:
                transport.send(Stop(event.worker))
                place = pending.pop(event.worker)
                found[place] = _surveyed(place, event)
    return tuple(found.values())


def _places(transport: Transport, until: float) -> Sequence[Place]:
    while time.monotonic() < until:
        for event in _received(transport):
            if isinstance(event, Places):
                return event.places
    raise DeviceError("the cluster does not say which machines it has")


def _received(transport: Transport) -> Sequence[Event]:
    events = transport.receive(_STEP_S)
    for event in events:
        if isinstance(event, Unreached):
            raise DeviceError(event.reason)
    return events


def _problem_of(place: Place) -> str:
    if place.count == 0:
        return f"its CPU is not offered: start Ray there with --resources '{{\"{CPU_RESOURCE}\": 1}}'"
    if place.device != "cpu" and gpu_named(place.device) is None:
        return "the table of GPUs does not have it: see `iosched devices`"
    return ""


def _surveyed(place: Place, event: Said | Lost) -> Surveyed:
    if isinstance(event, Lost):
        return Surveyed(place, problem=event.reason)
    try:
        said = messages.worker_message(event.message)
    except ExecutionError as error:
        return Surveyed(place, problem=f"it says what is not understood here: {error}")
    if isinstance(said, Facts):
        return Surveyed(place, said, said.other_version)
    return Surveyed(place, problem=said.reason if isinstance(said, Unusable) else "it does not say what it is")
