"""The job `optimize` on a cluster: one worker searches, and all workers of its device answer its questions."""

from __future__ import annotations

from dataclasses import replace

from iosched.jobs.fleet.asking import (
    AskedFleet,
    ahead_on,
    device_in,
    errand,
    outcome,
    read,
    refuse_measuring_anew,
    shown_to,
)
from iosched.jobs.fleet.budget import Budget
from iosched.jobs.fleet.work.optimize import Optimize
from iosched.jobs.interrupt import Interrupt, Uninterrupted
from iosched.jobs.optimize import OptimizeResult, OptimizeSettings
from iosched.jobs.progress import Observer, Silence
from iosched.models.model import Model


def optimize_there(
    fleet: AskedFleet,
    model: Model,
    settings: OptimizeSettings,
    observer: Observer | None = None,
    interrupt: Interrupt | None = None,
    fill: int = 0,
) -> OptimizeResult:
    """Finds the fastest way to run `model` on a device of a cluster; see `jobs.optimize.optimize`.

    Args:
        settings: `device` is one of the cluster; the profile database is the fleet's.
        fill: rounds of questions are filled up with guesses to a multiple of this; see `ahead.Ahead`.

    Raises:
        UsageError: a setting is wrong, or the cluster has no such device.
        DeviceError: there is no cluster, or a library is missing on it.
        DeviceLostError: all workers of the device were lost.
        ExecutionError: too many workers were lost with this model, or the budget was over before there was a result.
        KeyboardInterrupt: the user interrupts, and does not want the best schedule known.
        And what `optimize` raises.
    """
    refuse_measuring_anew(settings.resume)
    device, held = device_in(fleet, settings.device), interrupt or Uninterrupted()
    work = Optimize(replace(settings, device=device, profile_db=None), ahead_on(fleet, device, fill=fill))
    budget = None if settings.budget_s is None else Budget(settings.budget_s)
    with held.holding():
        future = fleet.submit(errand(device, "optimize", work, model, shown_to(observer or Silence()), budget))
        return read(outcome(fleet, future, held), OptimizeResult)
