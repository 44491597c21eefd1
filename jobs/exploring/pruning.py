"""What a score command prints while it runs, by which it may be ended before it is done."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass


@dataclass
class Watched:
    """The steps of a score command: lines of JSON with a "step" and what is scored.

    Attributes:
        key: the name of what is scored.
        stops: says of a step and its value whether going on is not worth it.
        is_worse: whether it has said so.
        step: the last step.
    """

    key: str
    stops: Callable[[int, float], bool]
    is_worse: bool = False
    step: int = -1

    @property
    def reason(self) -> str:
        """Why the command was ended."""
        return pruned_after(self.step)

    def line(self, text: str) -> None:
        """Takes a line of the command's output; what is no step is passed over."""
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            return
        if not isinstance(found, dict):
            return
        step, value = found.get("step"), found.get(self.key)
        if not isinstance(step, int) or not self.step < step < 2**31 or not isinstance(value, int | float):
            return
        try:
            number = float(value)
        except OverflowError:  # a whole number larger than any float
            return
        self.step = step
        self.is_worse = self.is_worse or self.stops(step, number)


def pruned_after(step: int) -> str:
    """Why a command was ended after a step."""
    return f"pruned after step {step}: worse than the median of other trials"


def ignored(line: str) -> None:
    """Takes a line of which nothing is wanted."""
    del line
