"""Which cluster the text of `--cluster` means; Ray is not needed to tell."""

from __future__ import annotations

import re
from dataclasses import dataclass

from iosched.models.errors import UsageError

FORMS = "auto, local:N, HOST:PORT or ray://HOST:PORT"

_HOST = r"(?:[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+(?:%[A-Za-z0-9]+)?\])"
_RUNNING = re.compile(rf"(?P<client>ray://)?(?P<host>{_HOST}):(?P<port>[0-9]{{1,5}})")
_LAST_PORT = 65535
_MOST_LOCAL = 1024


@dataclass(frozen=True)
class LocalCluster:
    """A cluster of this machine alone, which is started for one command and ends with it.

    Attributes:
        workers: how many there are; each has processors of its own.
    """

    workers: int

    def __str__(self) -> str:
        return f"local:{self.workers}"


@dataclass(frozen=True)
class RunningCluster:
    """A cluster that somebody has started.

    Attributes:
        address: "HOST:PORT" of its head, for a driver on one of its machines, or "ray://HOST:PORT" of its Ray Client
            server, for a driver elsewhere; None for the one that this machine knows of.
    """

    address: str | None

    def __str__(self) -> str:
        return self.address or "auto"


Cluster = LocalCluster | RunningCluster


def parse_cluster(text: str) -> Cluster:
    """The cluster that the text of `--cluster` means; does not look for it.

    Raises:
        UsageError: the text has none of the forms.
    """
    asked = text.strip()
    if asked == "auto":
        return RunningCluster(None)
    kind, colon, count = asked.partition(":")
    if kind == "local":
        return _local(count, text) if colon else _refuse(text, "say how many workers, as in local:2")
    found = _RUNNING.fullmatch(asked)
    if found is None:
        return _refuse(text, _hint(asked))
    if not 1 <= int(found["port"]) <= _LAST_PORT:
        return _refuse(text, f"ports are numbers from 1 to {_LAST_PORT}")
    return RunningCluster(asked)


def _local(count: str, text: str) -> LocalCluster:
    if not (count.isascii() and count.isdecimal() and len(count) <= len(str(_MOST_LOCAL))):
        return _refuse(text, "say how many workers, as in local:2")
    if not 1 <= int(count) <= _MOST_LOCAL:
        return _refuse(text, f"there can be 1 to {_MOST_LOCAL} workers")
    return LocalCluster(int(count))


def _hint(asked: str) -> str:
    if "://" in asked and not asked.startswith("ray://"):
        return "only ray:// is understood"
    if re.fullmatch(rf"(?:ray://)?{_HOST}", asked):
        port = "10001" if asked.startswith("ray://") else "6379"
        return f"the port is missing, as in {asked}:{port}"
    return "no such form"


def _refuse(text: str, why: str) -> LocalCluster:
    raise UsageError(f"--cluster {text!r}: {why}\nIt is {FORMS}")
