"""The job `matrix` on a cluster: cells side by side on all workers of several devices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from iosched.jobs.fleet.asking import AskedFleet, ahead_on, device_in, errand, first_of, read, refuse_measuring_anew
from iosched.jobs.fleet.messages import Stop
from iosched.jobs.fleet.work.matrix import Price, Priced, Search, Searched
from iosched.jobs.matrix import (
    MatrixResult,
    MatrixSettings,
    MatrixTarget,
    check_same_operators,
    chosen,
    fastest,
)
from iosched.jobs.progress import Observer, Silence
from iosched.models.model import Model
from iosched.profiler.devices.open_settings import refuse_for_planned_gpus

_R = TypeVar("_R")


@dataclass(frozen=True)
class _Target:
    device: str
    batch_size: int
    model: Model

    @property
    def text(self) -> str:
        return f"{self.device}, batch size {self.batch_size}"


def matrix_there(
    fleet: AskedFleet,
    batches: Iterable[tuple[int, Model]],
    settings: MatrixSettings,
    observer: Observer | None = None,
) -> MatrixResult:
    """Finds a schedule for every device of a cluster at every batch size, and its latency on every target.

    See `jobs.matrix.matrix`. All is measured: searches go side by side, and then the targets' prices of all schedules.

    Args:
        settings: `devices` are those of the cluster; the profile database is the fleet's.

    Raises:
        UsageError: a setting is wrong, the cluster lacks a device, or the operators depend on the batch size.
        DeviceError: there is no cluster, or a library is missing on it.
        DeviceLostError: all workers of a device were lost.
        ExecutionError: too many workers were lost with one cell.
        KeyboardInterrupt: the user interrupts; what was measured is kept.
    """
    refuse_measuring_anew(settings.resume)
    refuse_for_planned_gpus(settings.opening)
    devices = tuple(dict.fromkeys(device_in(fleet, device) for device in settings.devices))
    models = list(batches)
    for batch_size, model in models:
        check_same_operators(models[0][1].graph, model.graph, batch_size)
    targets = [_Target(device, *each) for device in devices for each in models]
    cells = _Cells(fleet, observer or Silence(), 2 * len(targets))
    how = (settings.opening, settings.strategy, settings.pruning)
    searches = [Search(*how, ahead_on(fleet, target.device, len(models))) for target in targets]
    found = cells.of([(target, "search", each) for target, each in zip(targets, searches, strict=True)], Searched, 0)
    price = Price(settings.opening, tuple(each.schedule for each in found))
    priced = cells.of([(target, "price", price) for target in targets], Priced, done=len(targets))
    return _result(targets, found, priced)


@dataclass(frozen=True)
class _Cells:
    fleet: AskedFleet
    observer: Observer
    total: int

    def of(self, asked: Sequence[tuple[_Target, str, object]], kind: type[_R], done: int) -> list[_R]:
        """The results of work on targets, in its order."""
        futures = [self.fleet.submit(errand(target.device, name, work, target.model)) for target, name, work in asked]
        texts = {future: target.text for future, (target, _, _) in zip(futures, asked, strict=True)}
        try:
            self._wait(texts, done)
            return [read(future.result(), kind) for future in futures]
        finally:
            for future in futures:
                if not future.done():
                    self.fleet.tell(future, Stop(how="now"))

    def _wait(self, texts: Mapping[Future[Any], str], done: int) -> None:
        """Waits for all; raises what the first that fails raises."""
        waiting = dict(texts)
        while waiting:
            first_of(waiting)
            for future in [each for each in waiting if each.done()]:
                future.result()
                done += 1
                self.observer.progress(done, self.total, f"{waiting.pop(future)} done")


def _result(targets: Sequence[_Target], found: Sequence[Searched], priced: Sequence[Priced]) -> MatrixResult:
    costs = [each.latency_us for each in priced]
    sources = [fastest(row, own) for own, row in enumerate(costs)]
    nothing: list[list[None]] = [[None] * len(targets) for _ in targets]
    return MatrixResult(
        tuple(
            MatrixTarget(
                target.device,
                priced[own].device_name,
                target.batch_size,
                "measured",
                found[sources[own]].schedule,
                found[own].proven if sources[own] == own else None,
                priced[own].sequential_us,
                None if sources[own] == own else sources[own],
            )
            for own, target in enumerate(targets)
        ),
        chosen(costs, sources),
        chosen(nothing, sources),
        chosen(nothing, sources),
    )
