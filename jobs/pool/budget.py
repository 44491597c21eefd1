"""The driver's budget of a job on a cluster."""

from __future__ import annotations

from dataclasses import dataclass

_GRACE, _GRACE_S = 1.1, 5.0
"""A job without a result fails after this multiple of its budget plus these seconds."""


@dataclass(eq=False)
class Budget:
    """Limits the wall time of a job, from when the first worker has a model open. All tasks of a job share one budget.

    Attributes:
        seconds: the limit.
        opened_s: the start, by `time.monotonic`; None before.
    """

    seconds: float
    opened_s: float | None = None

    def open(self, now_s: float) -> None:
        """Starts the budget unless it has started."""
        if self.opened_s is None:
            self.opened_s = now_s

    def left_s(self, now_s: float) -> float | None:
        """Returns the remaining seconds; None before the start."""
        return None if self.opened_s is None else max(self.opened_s + self.seconds - now_s, 0.0)

    def is_exceeded(self, now_s: float, longest_stage_s: float) -> bool:
        """Whether the job has failed; a worker may finish its current stage."""
        return self.opened_s is not None and now_s >= self.opened_s + _GRACE * self.seconds + _GRACE_S + longest_stage_s
