"""Parses `--cluster` without importing Ray."""

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
    """A cluster on this machine that runs for one command.

    Attributes:
        workers: number of workers, each with its own processors.
    """

    workers: int

    def __str__(self) -> str:
        return f"local:{self.workers}"


@dataclass(frozen=True)
class RunningCluster:
    """A cluster that is already running.

    Attributes:
        address: "HOST:PORT" of the head, for a driver on a machine of the cluster; "ray://HOST:PORT" of the Ray Client
            server, for other drivers; None for the cluster that this machine has joined.
    """

    address: str | None

    def __str__(self) -> str:
        return self.address or "auto"


Cluster = LocalCluster | RunningCluster


def parse_cluster(text: str) -> Cluster:
    """Parses the value of `--cluster`; does not connect.

    Raises:
        UsageError: the value has none of the accepted forms.
    """
    asked = text.strip()
    if asked == "auto":
        return RunningCluster(None)
    if asked.partition(":")[0] == "local":
        count = re.fullmatch("local:([0-9]{1,4})", asked)
        if count is None or not 1 <= int(count[1]) <= _MOST_LOCAL:
            raise _usage_error(text, f"say how many workers, 1 to {_MOST_LOCAL}, as in local:2")
        return LocalCluster(int(count[1]))
    found = _RUNNING.fullmatch(asked)
    if found is None:
        raise _usage_error(text, _hint(asked))
    if not 1 <= int(found["port"]) <= _LAST_PORT:
        raise _usage_error(text, f"ports are numbers from 1 to {_LAST_PORT}")
    return RunningCluster(asked)


def _hint(asked: str) -> str:
    if "://" in asked and not asked.startswith("ray://"):
        return "only ray:// is understood"
    if re.fullmatch(rf"(?:ray://)?{_HOST}", asked):
        port = "10001" if asked.startswith("ray://") else "6379"
        return f"the port is missing, as in {asked}:{port}"
    return "no such form"


def _usage_error(text: str, why: str) -> UsageError:
    return UsageError(f"--cluster {text!r}: {why}\nIt is {FORMS}")
