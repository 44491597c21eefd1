"""Owns objects of C libraries that are called through ctypes."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from threading import Lock

from iosched.models.errors import ExecutionError

_pid = os.getpid()


def _note_fork() -> None:
    global _pid  # asking the system takes a large part of a call's time
    _pid = os.getpid()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)


class Handle:
    """Owns one object of a library, which `release` frees once, by `close` or garbage collection.

    A forked child releases nothing, since it does not have the threads to join.
    """

    def __init__(self, pointer: int, release: Callable[[int], None]) -> None:
        self.pointer = pointer
        self.pid = os.getpid()
        self.close = weakref.finalize(self, _release_in, self.pid, release, pointer)

    @property
    def is_inherited(self) -> bool:
        """Whether this process is a forked child, which cannot use the object."""
        return _pid != self.pid

    def guarded_by(self, lock: Lock, forked: str) -> Lock:
        """Return the object's lock to the process that created it.

        A forked child must not wait for it: a thread that the child lacks may hold it.

        Raises:
            ExecutionError: this is a forked child; with the message `forked`.
        """
        if _pid != self.pid:
            raise ExecutionError(forked)
        return lock


def _release_in(pid: int, release: Callable[[int], None], pointer: int) -> None:
    if os.getpid() == pid:
        release(pointer)
