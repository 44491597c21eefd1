"""The job `optimize` as a task: one worker searches, and all workers of its device answer its questions."""

from __future__ import annotations

import msgspec

from iosched.jobs.interrupt import Interrupt, Uninterrupted
from iosched.jobs.optimize import optimize
from iosched.jobs.pool.messages import Progress, Step
from iosched.jobs.pool.task import Context, Kind, Pool, Task, outcome
from iosched.jobs.progress import Observer, Silence
from iosched.jobs.result import OptimizeResult
from iosched.jobs.settings import OptimizeSettings
from iosched.models.model import Model


class Optimize(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to optimize for."""

    settings: OptimizeSettings


def _optimize(work: Optimize, here: Context) -> OptimizeResult:
    settings = here.settings(work.settings)
    return optimize(here.model, settings, here.observer, here.interrupt, here.lent(settings.opening))


OPTIMIZE = Kind("optimize", Optimize, OptimizeResult, _optimize)


def optimize_on(
    pool: Pool,
    model: Model,
    settings: OptimizeSettings,
    observer: Observer | None = None,
    interrupt: Interrupt | None = None,
) -> OptimizeResult:
    """Finds the fastest way to run `model` on a device of a cluster; see `optimize`.

    Args:
        settings: `device` is one of the cluster; the profile database is the pool's.

    Raises:
        UsageError: a setting is wrong, or the cluster has no such device.
        DeviceError: there is no cluster, or a library is missing on it.
        DeviceLostError: all workers of the device were lost.
        ExecutionError: too many workers were lost with this model, or the budget was over before there was a result.
        KeyboardInterrupt: the user interrupts, and does not want the best schedule known.
        And what `optimize` raises.
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
