"""The budget of a job on a cluster, as the driver counts it."""

from __future__ import annotations

from dataclasses import dataclass

_GRACE, _GRACE_S = 1.1, 5.0
"""A job without a result is given up after so many times its budget, and so many seconds more."""


@dataclass(eq=False)
class Budget:
    """Seconds of wall time from when a first worker has a model open. All errands of a job share one.

    Attributes:
        seconds: the budget.
        opened_s: when it began, by the fleet's clock, `time.monotonic`; None before.
    """

    seconds: float
    opened_s: float | None = None

    def open(self, now_s: float) -> None:
        """A worker has a model open."""
        if self.opened_s is None:
            self.opened_s = now_s

    def left_s(self, now_s: float) -> float | None:
        """The seconds that are left; None before the first model is open."""
        return None if self.opened_s is None else max(self.opened_s + self.seconds - now_s, 0.0)

    def is_exceeded(self, now_s: float, longest_stage_s: float) -> bool:
        """Whether no more result is waited for; a worker may finish the stage that it measures."""
        return self.opened_s is not None and now_s >= self.opened_s + _GRACE * self.seconds + _GRACE_S + longest_stage_s
