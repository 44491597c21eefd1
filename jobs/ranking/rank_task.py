"""The cost of a model as a task."""

from __future__ import annotations

import msgspec

from iosched.jobs.pool.task import Context, JobBudget, Kind, Target, Task, WorkerPool
from iosched.jobs.ranking.measures import Measure
from iosched.jobs.ranking.model_cost import ModelCost, model_cost
from iosched.jobs.settings import OptimizeSettings
from iosched.models.model import Model


class Cost(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Arguments of `model_cost`."""

    measure: Measure
    settings: OptimizeSettings


def _cost(work: Cost, here: Context) -> ModelCost:
    settings = here.settings(work.settings)
    return model_cost(here.model, work.measure, settings, here.observer, here.interrupt, here.shared(settings.opening))


COST = Kind("cost", Cost, ModelCost, _cost)
SIMULATION = Kind("simulation", Cost, ModelCost, _cost)
"""The cost on a simulated GPU, by its analytic model."""


def cost_task(
    pool: WorkerPool,
    target: Target,
    measure: Measure,
    settings: OptimizeSettings,
    model: Model,
    jobs: int,
    budget: JobBudget | None = None,
) -> Task[ModelCost]:
    """Creates the task that computes the cost of a model, one of `jobs` such tasks.

    The search of an attached device may ask other workers if there are more workers than tasks.
    """
    work = Cost(measure, target.on(settings))
    if target.is_simulated:
        return Task(SIMULATION, work, model, target.workers, budget=budget, rows=target.rows)
    return Task(COST, work, model, target.workers, asks=pool.count(target.workers) > jobs, budget=budget)
