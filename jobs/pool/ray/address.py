"""Parses `--cluster`, without Ray."""

from __future__ import annotations

import re
from dataclasses import dataclass

from iosched.models.errors import UsageError

FORMS = "auto, local:N, HOST:PORT or ray://HOST:PORT"

_HOST = r"(?:[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+(?:%[A-Za-z0-9]+)?\])"
_RUNNING = re.compile(rf"(?:ray://)?{_HOST}:(?P<port>[0-9]{{1,5}})")
_LAST_PORT = 65535
_MOST_LOCAL = 1024


@dataclass(frozen=True)
class LocalCluster:
    """A cluster of this machine alone, which is started for one command and ends with it.

    Attributes:
        workers: number of workers, each with processors of its own.
    """

    workers: int

    def __str__(self) -> str:
        return f"local:{self.workers}"


@dataclass(frozen=True)
class RunningCluster:
    """A cluster that is running already.

    Attributes:
        address: "HOST:PORT" of its head, for a driver on one of its machines, or "ray://HOST:PORT" of its Ray Client
            server, for a driver elsewhere; None for the cluster that this machine knows.
    """

    address: str | None

    def __str__(self) -> str:
        return self.address or "auto"


Cluster = LocalCluster | RunningCluster


def parse_cluster(text: str) -> Cluster:
    """Parses the value of `--cluster`; does not look for the cluster.

    Raises:
        UsageError: it has none of the forms.
    """
    asked = text.strip()
    if asked == "auto":
        return RunningCluster(None)
    if asked.partition(":")[0] == "local":
        count = re.fullmatch("local:([0-9]{1,4})", asked)
        if count is None or not 1 <= int(count[1]) <= _MOST_LOCAL:
            raise _refused(text, f"say how many workers, 1 to {_MOST_LOCAL}, as in local:2")
        return LocalCluster(int(count[1]))
    found = _RUNNING.fullmatch(asked)
    if found is None:
        raise _refused(text, _hint(asked))
    if not 1 <= int(found["port"]) <= _LAST_PORT:
        raise _refused(text, f"ports are numbers from 1 to {_LAST_PORT}")
    return RunningCluster(asked)


def _hint(asked: str) -> str:
    if "://" in asked and not asked.startswith("ray://"):
        return "only ray:// is understood"
    if re.fullmatch(rf"(?:ray://)?{_HOST}", asked):
        port = "10001" if asked.startswith("ray://") else "6379"
        return f"the port is missing, as in {asked}:{port}"
    return "no such form"


def _refused(text: str, why: str) -> UsageError:
    return UsageError(f"--cluster {text!r}: {why}\nIt is {FORMS}")
