"""Opens the pool that `--cluster` means, for the time of a job."""

from __future__ import annotations

from pathlib import Path

from iosched.jobs.pool.cluster import ClusterPool
from iosched.jobs.pool.ray.address import parse_cluster
from iosched.jobs.pool.ray.transport import RayTransport
from iosched.jobs.pool.status import PoolObserver
from iosched.profiler.store.database import default_path


def cluster_pool(
    cluster: str, profile_db: Path | None, threads: int | None, observer: PoolObserver | None = None
) -> ClusterPool:
    """The workers of a cluster, which is reached as the pool is entered; its workers end with it.

    Args:
        cluster: as `--cluster` has it.
        profile_db: the profile database that all they measure comes to; by default the user's own.
        threads: of each worker on a CPU of a local cluster; None for as many as there can be.
        observer: is shown what happens.

    Raises:
        UsageError: the text means no cluster, or the file is no profile database.
    """
    wanted = parse_cluster(cluster)
    return ClusterPool(lambda: RayTransport(wanted, threads), profile_db or default_path(), observer)
