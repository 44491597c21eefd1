"""Effort without a clock: how many functions are called."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType


def count_calls(run: Callable[[], object]) -> int:
    """Calls of Python's and of C functions while `run` runs; the same on every machine."""
    count = 0

    def called(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(called)
    try:
        run()
    finally:
        sys.setprofile(before)
    return count
