"""Whether something listens where a cluster is said to be: Ray itself takes long to say so, or ends the process.

And what is done where something does, but Ray Client fails.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

_WAIT_S = 5.0
_TRIES = 3


class UnreachedError(Exception):
    """There is no cluster; the text says why."""


def known_address(of: Mapping[str, str] = os.environ) -> str:
    """The address that `auto` means: what RAY_ADDRESS says, or the cluster that this machine was made a part of.

    Raises:
        UnreachedError: there is none.
    """
    named = of.get("RAY_ADDRESS", "").strip()
    if named and named not in ("auto", "local"):
        return named
    noted = Path(of.get("RAY_TMPDIR", "/tmp"), "ray", "ray_current_cluster")
    try:
        found = noted.read_text().strip()
    except OSError:
        found = ""
    if not found:
        raise UnreachedError(
            "no Ray cluster is known on this machine: start one with `ray start --head`, name one with"
            " --cluster HOST:PORT or RAY_ADDRESS, or use this machine alone with --cluster local:N"
        )
    return found


def check(address: str) -> None:
    """Accepts that something listens at "HOST:PORT" or "ray://HOST:PORT".

    Raises:
        UnreachedError: nothing does, or the host is not known.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_WAIT_S).close()
    except ValueError:
        raise UnreachedError(f"{address!r} is no address of a cluster: that is HOST:PORT or ray://HOST:PORT") from None
    except OSError as error:
        why = error.strerror or str(error) or type(error).__name__
        raise UnreachedError(f"no Ray cluster at {address}: {why[:1].lower()}{why[1:]}") from None


def patiently(connect: Callable[[], object]) -> None:
    """Connects; tries it again, three times in all, where the head could not start a server for Ray Client.

    That is a process of its own for each driver, and dies now and then as it is forked (github.com/ray-project/ray,
    issue 63202), or takes too long on a busy head. Ray leaves nothing behind then, so that `ray.init` can be called
    again; it has waited for long itself.

    Raises:
        Exception: what `connect` raises otherwise, or the last time.
    """
    for _ in range(_TRIES - 1):
        with suppress(ConnectionAbortedError):
            connect()
            return
    connect()
