"""What a model costs, as a task of a worker."""

from __future__ import annotations

import msgspec

from iosched.jobs.pool.budget import Budget
from iosched.jobs.pool.task import Context, Kind, Pool, Target, Task
from iosched.jobs.ranking.cost import ModelCost, model_cost
from iosched.jobs.ranking.measures import Measure
from iosched.jobs.settings import OptimizeSettings
from iosched.models.model import Model


class Cost(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How to find it, see `model_cost`."""

    measure: Measure
    settings: OptimizeSettings


def _cost(work: Cost, here: Context) -> ModelCost:
    settings = here.settings(work.settings)
    return model_cost(here.model, work.measure, settings, here.observer, here.interrupt, here.lent(settings.opening))


COST = Kind("cost", Cost, ModelCost, _cost)
SIMULATION = Kind("simulation", Cost, ModelCost, _cost)
"""The same on a GPU that is not there, by its analytic model."""


def cost_task(
    pool: Pool,
    target: Target,
    measure: Measure,
    settings: OptimizeSettings,
    model: Model,
    jobs: int,
    budget: Budget | None = None,
) -> Task[ModelCost]:
    """Asks what a model costs, one of so many: where workers are left without one, searches ask them, too."""
    work = Cost(measure, target.on(settings))
    if target.is_simulated:
        return Task(SIMULATION, work, model, target.workers, budget=budget, rows=target.rows)
    return Task(COST, work, model, target.workers, asks=pool.count(target.workers) > jobs, budget=budget)
