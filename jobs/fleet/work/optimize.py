"""The job `optimize` as a whole."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec

from iosched.jobs.fleet.messages import Opened
from iosched.jobs.fleet.work.ahead import Ahead, FleetAhead
from iosched.jobs.fleet.work.kind import Kind, Order
from iosched.jobs.opening import Lent
from iosched.jobs.optimize import optimize
from iosched.jobs.pace import Pace
from iosched.jobs.result import OptimizeResult
from iosched.jobs.settings import OptimizeSettings
from iosched.profiler.devices.device import OpenModel, attached
from iosched.profiler.devices.open_settings import OpenSettings
from iosched.scheduler.cost import Prefetchable


class Optimize(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to optimize for.

    Attributes:
        settings: device and profile database are the worker's own.
        ahead: how other workers of the device are asked the questions of the search; None where they are not.
    """

    settings: OptimizeSettings
    ahead: Ahead | None = None


def _do(order: Order[Optimize]) -> OptimizeResult:
    order.station.close_model()
    settings = within(order.station.settings(order.work.settings), order.left_s)
    model = order.station.loaded(order.sent, order.files)
    order.station.device_for(model)
    lent = lent_to(order, settings.opening, order.work.ahead)
    return optimize(model, settings, order.conversation, order.conversation, lent)


def within(settings: OptimizeSettings, left_s: float | None) -> OptimizeSettings:
    """The settings of a job for which so many seconds are left."""
    if left_s is None:
        return settings
    return replace(settings, budget_s=min(left_s, math.inf if settings.budget_s is None else settings.budget_s))


def lent_to(order: Order[Any], opening: OpenSettings, how: Ahead | None) -> Lent:
    """What a job on this worker is lent: its database, and other workers to ask."""
    ahead = partial(_ahead, order, opening, how)
    return Lent(order.station.database, ahead, counts_opening=order.left_s is not None)


def _ahead(
    order: Order[Any], opening: OpenSettings, how: Ahead | None, model: OpenModel, pace: Pace
) -> Prefetchable | None:
    order.conversation.say(Opened())
    if how is None:
        return None
    return FleetAhead(
        *(how, order.station, order.conversation, order.sent, opening, attached(model)),
        is_over=lambda: pace.search_left_s <= 0,
    )


KIND = Kind("optimize", Optimize, OptimizeResult, _do)
