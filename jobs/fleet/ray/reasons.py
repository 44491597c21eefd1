"""Why a worker was lost, in a sentence for people, out of what Ray raises."""

from __future__ import annotations

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
    return next((said for sign, said in _SIGNS if sign in text), None) or last_line(text) or type(error).__name__


def last_line(text: str) -> str:
    """The last line that is not empty, shortened."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:_MOST] if lines else ""
