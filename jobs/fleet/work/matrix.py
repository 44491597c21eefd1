"""Cells of `matrix`: the search of a schedule for one target, and what schedules take on one."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from iosched.jobs.costing import schedule_latency_us
from iosched.jobs.fleet.work.ahead import Ahead, FleetAhead
from iosched.jobs.fleet.work.kind import Kind, Order
from iosched.jobs.opening import check_schedulable
from iosched.jobs.schedules import schedule_by
from iosched.models.errors import UsageError
from iosched.profiler.devices.device import OpenModelHere
from iosched.profiler.devices.open_settings import OpenSettings
from iosched.scheduler.baselines import sequential
from iosched.scheduler.pruning import Pruning
from iosched.scheduler.schedule import Schedule, Scope
from iosched.scheduler.strategy_names import SearchStrategy


class Search(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How to search; `ahead` says how other workers of the device are asked its questions, if they are."""

    opening: OpenSettings
    strategy: SearchStrategy
    pruning: Pruning
    ahead: Ahead | None = None


class Searched(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A schedule of the model's operators, and of what it is proven to be the best."""

    schedule: Schedule
    proven: Scope | None


class Price(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Schedules of the model's operators; the sequential one is priced besides."""

    opening: OpenSettings
    schedules: tuple[Schedule, ...]


class Priced(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the device is, and what schedules take there, in microseconds."""

    device_name: str
    latency_us: tuple[float, ...]
    sequential_us: float


def _search(order: Order[Search]) -> Searched:
    work, conversation = order.work, order.conversation
    opening = order.station.opening(work.opening)
    opened = _opened(order, opening)
    about = (order.station, conversation, order.sent, opening, opened)
    ahead = None if work.ahead is None else FleetAhead(work.ahead, *about, is_over=lambda: False)
    found = schedule_by(
        *(opened, work.strategy, work.pruning), observer=conversation, deadline=lambda: conversation.came, ahead=ahead
    )
    _check_stopped(order)
    return Searched(opened.units.expanded(found.schedule), found.proven)


def _price(order: Order[Price]) -> Priced:
    opened = _opened(order, order.station.opening(order.work.opening))
    model = order.station.loaded(order.sent, order.files)
    latencies_us = []
    for schedule in (*order.work.schedules, sequential(model.graph)):
        _check_stopped(order)
        latencies_us.append(schedule_latency_us(opened, _known_in(schedule, model.graph.by_name)))
    return Priced(opened.device.info.name, tuple(latencies_us[:-1]), latencies_us[-1])


def _opened(order: Order[Search] | Order[Price], opening: OpenSettings) -> OpenModelHere:
    opened = order.station.opened(order.sent, order.files, opening)
    check_schedulable(opened)
    return opened


def _known_in(schedule: Schedule, operators: Mapping[str, object]) -> Schedule:
    """The schedule, which names operators of this model alone and each once."""
    names = [name for stage in schedule.stages for name in stage.operators]
    if sorted(names) != sorted(operators):
        raise UsageError("a schedule that was sent is not one of the model's operators")
    return schedule


def _check_stopped(order: Order[Search] | Order[Price]) -> None:
    if order.conversation.came:
        raise KeyboardInterrupt


SEARCH = Kind("search", Search, Searched, _search)
PRICE = Kind("price", Price, Priced, _price)
