"""Opens the pool for `--cluster`."""

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
    """Creates the pool of a cluster. Entering the pool connects to the cluster; leaving it stops the workers.

    Args:
        profile_db: the profile database for all measurements; by default the user's.
        threads: threads per CPU worker of a local cluster; None for as many as possible.

    Raises:
        UsageError: `cluster` is invalid, or the file is not a profile database.
    """
    wanted = parse_cluster(cluster)
    return ClusterPool(lambda: RayTransport(wanted, threads), profile_db or default_path(), observer)
