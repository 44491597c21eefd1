"""What a model costs on a GPU that the cluster lacks, by its analytic model: likewise a row of `rank` or `explore`."""

from __future__ import annotations

import msgspec

from iosched.jobs.fleet.work.kind import Kind, Order
from iosched.jobs.fleet.work.optimize import lent_to, within
from iosched.jobs.ranking.cost import ModelCost, model_cost
from iosched.jobs.ranking.measures import DEFAULT_MEASURE
from iosched.jobs.settings import OptimizeSettings


class Simulation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How to search; `settings.device` is the GPU."""

    settings: OptimizeSettings


def _do(order: Order[Simulation]) -> ModelCost:
    settings = within(order.work.settings, order.left_s)
    model = order.station.loaded(order.sent, order.files)
    lent = lent_to(order, settings.opening, None)
    return model_cost(model, DEFAULT_MEASURE, settings, order.conversation, order.conversation, lent)


KIND = Kind("simulation", Simulation, ModelCost, _do)
