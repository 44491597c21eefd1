"""Binds a process to processors."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path


def bind(cpus: Sequence[int]) -> None:
    """Lets this process run on these processors alone, with all threads that it has and will have; none means all."""
    if not cpus:
        return
    for thread in Path("/proc/self/task").iterdir():
        with suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread.name), cpus)
