"""Opens the fleet that `--cluster` means, for the time of a job."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from iosched.jobs.fleet.fleet import Fleet
from iosched.jobs.fleet.ray.address import parse_cluster
from iosched.jobs.fleet.ray.transport import RayTransport
from iosched.jobs.fleet.status import FleetObserver
from iosched.profiler.store.database import ProfileDatabase, default_path


@contextmanager
def opened_fleet(
    cluster: str, profile_db: Path | None, threads: int | None, observer: FleetObserver | None = None
) -> Iterator[Fleet]:
    """A fleet of the workers of a cluster; its workers end with it.

    Args:
        cluster: as `--cluster` has it.
        profile_db: the profile database that all they measure comes to; by default the user's own.
        threads: of each worker on a CPU of a local cluster; None for as many as there can be.
        observer: is shown what happens.

    Raises:
        UsageError: the text means no cluster, or a local one of more threads than processors.
        DeviceError: there is no such cluster, or Ray is not installed.
    """
    wanted, path = parse_cluster(cluster), profile_db or default_path()
    with Fleet(lambda: RayTransport(wanted, threads), lambda: ProfileDatabase(path), observer) as fleet:
        fleet.devices()  # raises where there is none
        yield fleet
