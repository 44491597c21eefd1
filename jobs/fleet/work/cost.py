"""What a model costs: a row of `rank`, a latency of `explore`."""

from __future__ import annotations

import msgspec

from iosched.jobs.fleet.work.ahead import Ahead
from iosched.jobs.fleet.work.kind import Kind, Order
from iosched.jobs.fleet.work.optimize import lent_to, within
from iosched.jobs.ranking.cost import ModelCost, model_cost
from iosched.jobs.ranking.measures import Measure
from iosched.jobs.settings import OptimizeSettings


class Cost(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is measured of the model, and how.

    Attributes:
        settings: device and profile database are the worker's own.
        ahead: how other workers of the device are asked the questions of the search; None where they are not.
    """

    measure: Measure
    settings: OptimizeSettings
    ahead: Ahead | None = None


def _do(order: Order[Cost]) -> ModelCost:
    order.station.close_model()
    settings = within(order.station.settings(order.work.settings), order.left_s)
    model = order.station.loaded(order.sent, order.files)
    order.station.device_for(model)
    lent = lent_to(order, settings.opening, order.work.ahead)
    return model_cost(model, order.work.measure, settings, order.conversation, order.conversation, lent)


KIND = Kind("cost", Cost, ModelCost, _do)
