"""Finds and checks cluster addresses, retries connections, and explains Ray's exceptions.

Addresses are checked first: if nothing listens, Ray takes long to fail or ends the process.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

_WAIT_S = 5.0
_TRIES = 3
_SIGNS = (
    ("No module named 'iosched'", "iosched is not installed on its machine"),
    ("out of memory", "its machine ran out of memory"),
    ("OutOfMemory", "its machine ran out of memory"),
    ("its node has died", "its machine left the cluster"),
    ("its owner has died", "the process that talks to Ray ended"),
    ("worker process has died", "its process ended"),
    ("is temporarily unavailable", "it cannot be reached"),
)
_MOST = 300


class ClusterUnreachableError(Exception):
    """The cluster cannot be reached; the text gives the reason."""


def known_address(of: Mapping[str, str] = os.environ) -> str:
    """Returns the address for `auto`: RAY_ADDRESS, or the cluster that this machine has joined.

    Raises:
        ClusterUnreachableError: there is neither.
    """
    named = of.get("RAY_ADDRESS", "").strip()
    if named and named not in ("auto", "local"):
        return named
    noted = Path(of.get("RAY_TMPDIR", "/tmp"), "ray", "ray_current_cluster")
    if noted.is_file():
        return noted.read_text().strip()
    raise ClusterUnreachableError(
        "no Ray cluster is known on this machine: start one with `ray start --head`, name one with"
        " --cluster HOST:PORT or RAY_ADDRESS, or use this machine alone with --cluster local:N"
    )


def check(address: str) -> None:
    """Checks that a server listens at "HOST:PORT" or "ray://HOST:PORT".

    Raises:
        ClusterUnreachableError: nothing listens, or the host is unknown.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_WAIT_S).close()
    except ValueError:
        raise ClusterUnreachableError(
            f"{address!r} is no address of a cluster: that is HOST:PORT or ray://HOST:PORT"
        ) from None
    except OSError as error:
        why = error.strerror or str(error) or type(error).__name__
        raise ClusterUnreachableError(f"no Ray cluster at {address}: {why[:1].lower()}{why[1:]}") from None


def patiently(connect: Callable[[], object]) -> None:
    """Connects, with up to three attempts if the head fails to start a Ray Client server.

    Ray starts one server process per driver. It sometimes dies when it is forked (github.com/ray-project/ray, issue
    63202), or starts too late on a busy head. Ray cleans up afterwards, so `ray.init` can be called again.

    Raises:
        Exception: any other exception of `connect`, or its last one.
    """
    for _ in range(_TRIES - 1):
        with suppress(ConnectionAbortedError):
            connect()
            return
    connect()


def reason(error: BaseException) -> str:
    """Explains the loss of a worker by a known phrase in Ray's exception, or by its last line."""
    text = str(error)
    _, is_ours, raised = text.rpartition("iosched.models.errors.")  # the worker's error ends a traceback
    if is_ours:
        return " ".join(raised.partition(": ")[2].split())[:_MOST]
    known = (said for sign, said in _SIGNS if sign in text)
    return next(known, [type(error).__name__, *_lines(text)][-1])


def unreached(error: Exception) -> str:
    """Explains a failed connection. For a wrong token, Ray only reports that it cannot connect."""
    if isinstance(error, ClusterUnreachableError):
        return str(error)
    lines = _lines(str(error)) or _lines(repr(error))
    if isinstance(error, ConnectionAbortedError):  # the end of the head's traceback, or the line after Ray's own
        cause = lines[-1] if "Traceback" in str(error) else lines[:2][-1]
        return f"the Ray cluster cannot be used: its head could not start a server for Ray Client: {cause}"
    if not (isinstance(error, ConnectionError) and "connect" in lines[0]):
        return f"the Ray cluster cannot be used: {lines[0]}"
    return (
        f"the Ray cluster does not let this machine in: {lines[0]}\nIf it has a token, set RAY_AUTH_MODE=token and"
        " the cluster's token, by RAY_AUTH_TOKEN_PATH; have the same versions of Python and Ray everywhere; and name"
        " the right port, which is 10001 for ray://HOST:PORT and 6379 for HOST:PORT where the head was told no other"
    )


def _lines(text: str) -> list[str]:
    return [line.strip()[:_MOST] for line in text.splitlines() if line.strip()]
