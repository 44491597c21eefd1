"""Opens a model on a device, and the profile database, for the time of a job."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from iosched.jobs.time_budget import TimeBudget
from iosched.models.errors import UsageError
from iosched.models.model import Model
from iosched.profiler.devices.open_settings import OpenSettings
from iosched.profiler.devices.profiled_device import OpenModel, ProfiledDevice, attached
from iosched.profiler.store.database import ProfileDatabase, default_path, path_exists
from iosched.scheduler.cost import Prefetchable
from iosched.scheduler.document import ScheduleDocument
from iosched.scheduler.teams import Teams


@dataclass(frozen=True)
class SharedResources:
    """Resources shared between jobs.

    Attributes:
        database: the open profile database; None if each job opens its own.
        prefetcher: makes a prefetcher for an open model (`scheduler.search`), or returns None.
        counts_opening: whether opening the model counts towards a budget.
    """

    database: ProfileDatabase | None = None
    prefetcher: Callable[[OpenModel, TimeBudget], Prefetchable | None] | None = None
    counts_opening: bool = True

    def prefetcher_of(self, open_model: OpenModel, time_budget: TimeBudget) -> Prefetchable | None:
        """The prefetcher of an open model, if any."""
        return None if self.prefetcher is None else self.prefetcher(open_model, time_budget)


NO_SHARED_RESOURCES = SharedResources()


@contextmanager
def opened(
    device: ProfiledDevice,
    model: Model,
    settings: OpenSettings,
    profile_db: Path | None,
    *,
    writes: bool = True,
    shared: SharedResources = NO_SHARED_RESOURCES,
) -> Iterator[OpenModel]:
    """Opens `model` on `device`, and the profile database if its latencies are used or kept; closes both at the end.

    Args:
        writes: whether to store measurements, and to create a missing database.
        shared: may have a profile database to use instead.
    """
    if shared.database is not None:
        with closing(device.open(model, settings, shared.database)) as open_model:
            yield open_model
        return
    with (
        profile_database(device, settings, profile_db, writes=writes) as database,
        closing(device.open(model, settings, database)) as open_model,
    ):
        yield open_model


@contextmanager
def profile_database(
    device: ProfiledDevice, settings: OpenSettings, profile_db: Path | None, *, writes: bool = True
) -> Iterator[ProfileDatabase | None]:
    """The profile database, if latencies on `device` are used or kept, else None; closed at the end.

    Args:
        writes: whether to store measurements, and to create a missing database.
    """
    path, keeps = profile_db or default_path(), writes and device.info.cost_kind == "measured"
    was_made = path is not None and path_exists(path)
    if device.info.cost_kind == "analytic" and not (was_made and settings.resume):
        yield None
        return
    if not (keeps or was_made):
        path = None
    with ProfileDatabase(path) as database:
        yield database


def check_schedulable(opened: OpenModel) -> None:
    """Raises `UsageError` if the model cannot be scheduled."""
    if not opened.is_schedulable:
        raise UsageError(
            "nothing to schedule: the model has inputs without a fixed size, such as strings, or no operators.\n"
            "Run it on plain onnxruntime with 'iosched run'."
        )


def of_a_team(opened: OpenModel, document: ScheduleDocument) -> tuple[OpenModel, Teams | None]:
    """The model as opened for one of the schedule's teams or requests, and the teams; the whole model without teams."""
    if document.shipped != "iosched":
        return opened, None
    if opened.teams is None:  # a request on a GPU
        return opened, document.teams
    teams = document.teams_on(attached(opened).cost.lanes)
    return (opened, None) if teams is None else (opened.teams.opened(teams), teams)
