"""What the child process is told first, and the environment that it and Ray below it run in."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from pathlib import Path

import msgspec

from iosched.jobs.pool.ray.address import Cluster, RunningCluster
from iosched.jobs.pool.transport import Command, Event, Place
from iosched.models.prepared import prepare

_RECONNECT_S = 30
_GRACE_S = 10  # of the child's silence; it gives the head no longer either


class Setup(msgspec.Struct, frozen=True):
    """The first line that the child process reads.

    Attributes:
        address: where to connect; None for a cluster of its own.
        made_by: what makes workers; see `WorkerActor`.
        folder: a private folder, which is removed when the cluster is left.
        places: of a cluster of its own; empty for the places that the cluster's nodes tell.
    """

    address: str | None
    made_by: str
    folder: str
    places: tuple[Place, ...] = ()


prepare(Setup, Command, Event)


def encoded(said: Setup | Command | Event) -> bytes:
    """A line of JSON, with its end."""
    return msgspec.json.encode(said) + b"\n"


def environment(cluster: Cluster, folder: Path, of: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment of the child process, out of this one's.

    A local cluster listens on the loopback interface alone and has a token, which only the user can read; of the user's
    settings of Ray, made for other clusters, nothing holds. All that has to be so before `ray` is imported.
    """
    found = {**of, "RAY_USAGE_STATS_ENABLED": "0", **_search_path(of)}
    if isinstance(cluster, RunningCluster):
        # After so long the server of Ray Client forgets a driver that is gone, and one that it could not serve: else 30
        return {"RAY_CLIENT_RECONNECT_GRACE_PERIOD": str(_GRACE_S), **found}
    return {
        **{name: value for name, value in found.items() if not name.startswith("RAY_")},
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # so that Ray takes 127.0.0.1 for the address of this machine
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(_token(folder)),  # else Ray writes it into the home folder, for all to read
        "RAY_worker_niceness": "0",  # else 15: whatever else runs would take the processors from what is measured
        "RAY_enable_worker_prestart": "0",
        "RAY_gcs_rpc_server_reconnect_timeout_s": str(_RECONNECT_S),
    }


def _search_path(of: Mapping[str, str]) -> dict[str, str]:
    """PYTHONPATH as it is understood from another working folder."""
    folders = [str(Path(folder).absolute()) for folder in of.get("PYTHONPATH", "").split(os.pathsep) if folder]
    return {"PYTHONPATH": os.pathsep.join(folders)} if folders else {}


def _token(folder: Path) -> Path:
    path = folder / "token"
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(secrets.token_hex(32))
    return path
