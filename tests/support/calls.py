"""Effort without a clock: how many functions are called."""

from __future__ import annotations

from collections.abc import Callable
from cProfile import Profile


def count_calls(run: Callable[[], object]) -> int:
    """Calls of Python's and of C functions while `run` runs; the same on every machine."""
    profile = Profile()
    profile.runcall(run)
    return sum(each.callcount for each in profile.getstats())
