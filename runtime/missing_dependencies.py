"""Tells what a machine lacks from what a model is wrong with, in the words of libraries."""

from __future__ import annotations

from iosched.models.errors import ExecutionError, ResourceError

_THREADS = "cannot start another thread: use fewer --threads, or raise the process limit of this user (ulimit -u)"
_MEMORY = "out of memory: close other programs, or use a smaller batch size or fewer threads"
_DISK = "the temporary folder is full: free space in it, or set TMPDIR to another folder"
_MEANINGS = (
    ("pthread_create failed", _THREADS),  # onnxruntime
    ("Resource temporarily unavailable", _THREADS),  # the C++ library, of our own executor
    ("bad_alloc", _MEMORY),
    ("Failed to write external initializers", _DISK),  # onnxruntime
    ("no memory for an arena", _MEMORY),  # our own executor
    ("failed to map segment", _MEMORY),  # the loader of libraries
    ("Failed to allocate memory", _MEMORY),  # onnxruntime
)


def way_to_install(extra: str | None, options: str = "") -> str:
    """The clause that tells people to install iosched with an extra: from a clone, since it is on no package index."""
    package = "." if extra is None else f"'.[{extra}]'"
    return f"run in a clone of iosched: pip install {options}{package}"


def lacking(text: str) -> str | None:
    """What the machine lacks, and the way out, where that is what a library's error says; else None."""
    return next((meaning for words, meaning in _MEANINGS if words in text), None)


def failure(text: str, said: str = "") -> ExecutionError:
    """The error for a library's text: a `ResourceError` if the machine lacks something, else one that says `said`."""
    lack = lacking(text)
    return ExecutionError(said or text) if lack is None else ResourceError(lack)
