"""The job `optimize` as a task. One worker searches, and all workers of its device answer its questions."""

from __future__ import annotations

import msgspec

from iosched.jobs.observer import Interrupt, Observer, Silence, Uninterrupted
from iosched.jobs.optimize import optimize
from iosched.jobs.optimizing.result import OptimizeResult
from iosched.jobs.pool.messages import Progress, Step
from iosched.jobs.pool.task import Context, Kind, Task, WorkerPool, outcome
from iosched.jobs.settings import OptimizeSettings
from iosched.models.model import Model


class Optimize(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The input of the task."""

    settings: OptimizeSettings


def _optimize(work: Optimize, here: Context) -> OptimizeResult:
    settings = here.settings(work.settings)
    return optimize(here.model, settings, here.observer, here.interrupt, here.shared(settings.opening))


OPTIMIZE = Kind("optimize", Optimize, OptimizeResult, _optimize)


def optimize_on(
    pool: WorkerPool,
    model: Model,
    settings: OptimizeSettings,
    observer: Observer | None = None,
    interrupt: Interrupt | None = None,
) -> OptimizeResult:
    """Finds the fastest way to run `model` on a device of a cluster; see `optimize`, which raises further errors.

    Args:
        settings: `device` is a device of the cluster. The pool's profile database is used.
    """
    target = pool.target(settings.device, may_simulate=False)
    held, shown = interrupt or Uninterrupted(), observer or Silence()

    def show(said: Progress | Step) -> None:
        if isinstance(said, Progress):
            shown.progress(said.done, said.total, said.text)

    work, asks = Optimize(target.on(settings)), pool.count(target.workers) > 1
    task = Task(OPTIMIZE, work, model, target.workers, asks, pool.budget(settings.budget_s), on_said=show)
    with held.holding():
        return outcome(pool, pool.submit(task), held)
