"""Owns objects of C libraries that are called through ctypes."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable


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


def _release_in(pid: int, release: Callable[[int], None], pointer: int) -> None:
    if os.getpid() == pid:
        release(pointer)
