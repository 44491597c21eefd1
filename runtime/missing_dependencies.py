"""Recognizes library errors that are caused by a missing resource of the machine."""

from __future__ import annotations

from iosched.models.errors import ExecutionError, ResourceError

_THREADS = "cannot start another thread: use fewer --threads, or raise the process limit of this user (ulimit -u)"
_MEMORY = "out of memory: close other programs, or use a smaller batch size or fewer threads"
_DISK = "the temporary folder is full: free space in it, or set TMPDIR to another folder"
_MEANINGS = (
    ("pthread_create failed", _THREADS),  # onnxruntime
    ("Resource temporarily unavailable", _THREADS),  # the C++ library, in our own executor
    ("bad_alloc", _MEMORY),
    ("Failed to write external initializers", _DISK),  # onnxruntime
    ("no memory for an arena", _MEMORY),  # our own executor
    ("failed to map segment", _MEMORY),  # the loader of libraries
    ("Failed to allocate memory", _MEMORY),  # onnxruntime
)


def way_to_install(extra: str | None, options: str = "") -> str:
    """The command to install iosched with an extra: from a clone, since it is on no package index."""
    package = "." if extra is None else f"'.[{extra}]'"
    return f"run in a clone of iosched: pip install {options}{package}"


def missing_resource(text: str) -> str | None:
    """The missing resource and how to fix it, if a library's error text means that one is missing; else None."""
    return next((meaning for fragment, meaning in _MEANINGS if fragment in text), None)


def failure(text: str, message: str = "") -> ExecutionError:
    """A `ResourceError` if a library's text means that a resource is missing, else an error with `message`."""
    missing = missing_resource(text)
    return ExecutionError(message or text) if missing is None else ResourceError(missing)
