"""The job `optimize` as a whole."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import msgspec

from iosched.jobs.fleet.ahead import Ahead, FleetAhead
from iosched.jobs.fleet.work.kind import Kind, Order
from iosched.jobs.opening import Lent
from iosched.jobs.optimize import optimize
from iosched.jobs.result import OptimizeResult
from iosched.jobs.settings import OptimizeSettings
from iosched.profiler.devices.device import OpenModel
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
    settings = order.station.settings(order.work.settings)
    model = order.station.loaded(order.sent, order.files)
    order.station.device_for(model)
    lent = lent_to(order, settings, order.work.ahead)
    return optimize(model, settings, order.conversation, order.conversation, lent)


def lent_to(order: Order[Any], settings: OptimizeSettings, how: Ahead | None) -> Lent:
    """What a job on this worker is lent: its database, and other workers to ask."""
    end = None if settings.budget_s is None else time.monotonic() + settings.budget_s
    ahead = None if how is None else partial(_ahead, order, settings, how, end)
    return Lent(order.station.database, ahead)


def _ahead(
    order: Order[Any], settings: OptimizeSettings, how: Ahead, end: float | None, model: OpenModel
) -> Prefetchable:
    assert model.here is not None
    return FleetAhead(
        *(how, order.station, order.conversation, order.sent, settings.opening, model.here),
        is_over=lambda: end is not None and time.monotonic() >= end,
    )


KIND = Kind("optimize", Optimize, OptimizeResult, _do)
