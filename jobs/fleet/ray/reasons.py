"""Why a worker was lost, or no cluster reached, in a sentence for people, out of what Ray raises."""

from __future__ import annotations

from iosched.jobs.fleet.ray.reach import UnreachedError
from iosched.models.errors import IoschedError

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


def reason(error: BaseException) -> str:
    """Why Ray's exception means that a worker cannot be used: a known sign, or the last line of what it says."""
    cause = getattr(error, "cause", None)  # what a worker has raised, in Ray's error about it
    if isinstance(cause, IoschedError):
        return " ".join(str(cause).split())[:_MOST]
    text = str(error)
    return next((said for sign, said in _SIGNS if sign in text), None) or _last(text) or type(error).__name__


def unreached(error: Exception) -> str:
    """Why there is no cluster; to whom it does not know, Ray says no more than that it cannot connect."""
    if isinstance(error, UnreachedError):
        return str(error)
    told = _lines(str(error)) or _lines(repr(error))
    if isinstance(error, ConnectionAbortedError):
        return f"the Ray cluster cannot be used: its head could not start a server for Ray Client: {_cause(told)}"
    if not (isinstance(error, ConnectionError) and "connect" in told[0]):
        return f"the Ray cluster cannot be used: {told[0]}"
    return (
        f"the Ray cluster does not let this machine in: {told[0]}\nIf it has a token, set RAY_AUTH_MODE=token and"
        " the cluster's token, by RAY_AUTH_TOKEN_PATH; have the same versions of Python and Ray everywhere; and name"
        " the right port, which is 10001 for ray://HOST:PORT and 6379 for HOST:PORT where the head was told no other"
    )


def _cause(told: list[str]) -> str:
    """What went wrong on the head: the end of its traceback, or the line after Ray's own."""
    return told[-1] if any(line.startswith("Traceback") for line in told) else told[min(1, len(told) - 1)]


def _last(text: str) -> str:
    return _lines(text)[-1] if _lines(text) else ""


def _lines(text: str) -> list[str]:
    """The lines that are not empty, shortened."""
    return [line.strip()[:_MOST] for line in text.splitlines() if line.strip()]
