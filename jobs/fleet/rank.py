"""The job `rank` on a cluster: rows side by side on all its workers, on several devices at once."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

from iosched.jobs.fleet.asking import (
    AskedFleet,
    Target,
    cost_errand,
    first_of,
    read,
    refuse_measuring_anew,
    target_in,
    workers_of,
)
from iosched.jobs.fleet.budget import Budget
from iosched.jobs.fleet.messages import Stop
from iosched.jobs.progress import Observer, Silence
from iosched.jobs.rank import (
    RankInterruptedError,
    RankResult,
    RankRow,
    RankSettings,
    Source,
    UnreachedError,
    check_asked,
    limited,
    loaded,
    ranked,
)
from iosched.jobs.ranking.cost import ModelCost
from iosched.models.errors import DeviceLostError
from iosched.models.model import Model

_WAITING = 1
"""Rows of each worker that wait for it beside the one that it does: it never waits for a model to be read."""


def rank_there(
    fleet: AskedFleet,
    models: Mapping[str, Source],
    settings: RankSettings,
    observer: Observer | None = None,
) -> RankResult:
    """Finds what each model costs on each device of a cluster, and sorts the models by it; see `jobs.rank.rank`.

    Args:
        settings: `devices` are those of the cluster, and GPUs that its CPUs simulate; the profile database is the
            fleet's.

    Raises:
        UsageError: there is no model or device, a setting is wrong, or the cluster has no such device.
        DeviceError: there is no cluster.
        DeviceLostError: all workers of a device were lost.
        RankInterruptedError: the user interrupts; it is a `KeyboardInterrupt` that has the rows that were done.
        KeyboardInterrupt: the user interrupts before there is one.
    """
    check_asked(models, settings)
    refuse_measuring_anew(settings.resume)
    devices = tuple(dict.fromkeys(target_in(fleet, device, settings.profile_db) for device in settings.devices))
    budget = None if settings.budget_s is None else Budget(settings.budget_s)
    return _Ranking(fleet, settings, devices, models, observer or Silence(), time.monotonic(), budget).of()


@dataclass(eq=False)
class _Ranking:
    """One call of `rank_there`.

    Attributes:
        rows: those that are done, by model and device.
        asked: those that a worker has, or will have.
    """

    fleet: AskedFleet
    settings: RankSettings
    devices: tuple[Target, ...]
    models: Mapping[str, Source]
    observer: Observer
    started: float
    budget: Budget | None
    rows: dict[tuple[str, str], RankRow] = field(default_factory=dict)
    asked: dict[Future[Any], RankRow] = field(default_factory=dict)

    def of(self) -> RankResult:
        try:
            for name, source in self.models.items():
                self._ask(name, loaded(source))
                while len(self.asked) >= self._most:
                    self._take()
            while self.asked:
                self._take()
        except KeyboardInterrupt:
            self._stop()
            if not self.rows:
                raise
            raise RankInterruptedError(self._result()) from None
        except DeviceLostError:
            self._stop()
            raise
        return self._result()

    @property
    def _most(self) -> int:
        """How many rows are asked for at a time."""
        workers = sum(workers_of(self.fleet, [device]) for device in {each.workers for each in self.devices})
        return (1 + _WAITING) * workers

    @property
    def _began(self) -> float:
        """When the budget began to count: now, as long as it has not."""
        began = None if self.budget is None else self.budget.opened_s
        return time.monotonic() if began is None else began

    @property
    def _total(self) -> int:
        return len(self.models) * len(self.devices)

    def _ask(self, name: str, model: Model | Exception) -> None:
        for target in self.devices:
            row = RankRow(name, target.device)
            try:
                if isinstance(model, Exception):
                    raise model
                row = replace(row, flops=model.flops, params=model.n_parameters)
                left = self._total - len(self.rows) - len(self.asked)
                in_turn = left / workers_of(self.fleet, [target.workers])
                settings = limited(self.settings, target.device, self._began, in_turn)
                about = (self.settings.measure, settings, model, len(self.models), self.budget)
                self.asked[self.fleet.submit(cost_errand(self.fleet, target, *about))] = row
            except Exception as error:  # noqa: BLE001 - one model of a hundred is not the end of the others
                self._done(replace(row, failure=error))

    def _take(self) -> None:
        """Takes the rows that are done, or waits a moment for one."""
        first_of(self.asked)
        for future in [each for each in self.asked if each.done()]:
            row = self.asked.pop(future)
            try:
                cost = replace(read(future.result(), ModelCost), device=row.device)
                self._done(replace(row, cost=cost))
            except DeviceLostError:
                raise
            except Exception as error:  # noqa: BLE001 - one model of a hundred is not the end of the others
                self._done(replace(row, failure=error))

    def _done(self, row: RankRow) -> None:
        self.rows[row.model, row.device] = row
        self.observer.progress(len(self.rows), self._total, f"{row.model} on {row.device} done")

    def _stop(self) -> None:
        for future in self.asked:
            self.fleet.tell(future, Stop(how="now"))

    def _result(self) -> RankResult:
        pairs = [(name, target.device) for name in self.models for target in self.devices]
        rows = [self.rows.get(pair) or RankRow(*pair, failure=UnreachedError("interrupted")) for pair in pairs]
        return ranked(rows, len(self.devices), time.monotonic() - self.started)
