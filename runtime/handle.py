"""Owns objects of C libraries that are called through ctypes."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from threading import Lock

from iosched.models.errors import ExecutionError


class Handle:
    """Owns one object of a library. A forked child lets go of nothing: the threads it would join are not there."""

    def __init__(self, pointer: int, release: Callable[[int], None]) -> None:
        """Takes an object that `release` frees.

        Args:
            pointer: to the object.
            release: called once, by `close` or when the handle is no longer used.
        """
        self.pointer = pointer
        self.pid = os.getpid()
        self.close = weakref.finalize(self, _release_in, self.pid, release, pointer)

    @property
    def is_inherited(self) -> bool:
        """Whether this process is a forked child, which cannot use the object."""
        return os.getpid() != self.pid

    def guarded_by(self, lock: Lock, forked: str) -> Lock:
        """The lock of the object, for the process that has made it.

        A forked child must not wait for it: it may be held by a thread that the child does not have.

        Args:
            lock: held by whoever uses the object.
            forked: what is wrong in a child, and the way out.

        Raises:
            ExecutionError: this is a child.
        """
        if self.is_inherited:
            raise ExecutionError(forked)
        return lock


def _release_in(pid: int, release: Callable[[int], None], pointer: int) -> None:
    if os.getpid() == pid:
        release(pointer)
