"""The effort of a search."""

from __future__ import annotations

from dataclasses import dataclass, replace

DEFAULT_GAP_PERCENT = 2.0
"""Of searches that measure; no stage is known better."""


@dataclass(frozen=True)
class Effort:
    """The effort of a search.

    Attributes:
        exhaustive: measures every stage instead of searching lazily.
        bound_slack: factor on all lower bounds, at most 1; lower values keep noise from hiding the optimum.
        tolerance: a block's search ends when its best schedule exceeds its lower bound by no more than this share.
        gap: above 0, unmeasured stages of several operators count as predicted (`exploration.factors`), and a block's
            search ends once predictions leave no more than this share of its best schedule.
        long_after: number of measurements after which a block's search counts as long; None for never.
        long_tolerance: the tolerance of a long search, if larger.
        max_measurements: a block's search ends with the round that reaches this number, single operators not counted.
            The schedule is then unproven, and no worse than the greedy one.
        remeasure_rounds: with a `Remeasurable` cost, how often a block's search continues after second measurements of
            its best schedules, which `max_measurements` does not count. Then the best schedule of stages measured twice
            is taken. 0 trusts every latency.
    """

    exhaustive: bool = False
    bound_slack: float = 1.0
    tolerance: float = 0.0
    gap: float = 0.0
    long_after: int | None = None
    long_tolerance: float = 0.0
    max_measurements: int | None = None
    remeasure_rounds: int = 8

    def __post_init__(self) -> None:
        if not 0 < self.bound_slack <= 1:
            raise ValueError(f"bound_slack must be positive and at most 1, not {self.bound_slack}")

    def tolerance_after(self, n_measured: int) -> float:
        """The tolerance after `n_measured` measurements of a block."""
        is_long = self.long_after is not None and n_measured >= self.long_after
        return max(self.tolerance, self.gap, self.long_tolerance if is_long else 0.0)

    def exhausted(self) -> Effort:
        """The same, measuring every stage."""
        return replace(self, exhaustive=True, tolerance=0.0, gap=0.0, max_measurements=None)

    def with_gap(self, percent: float | None) -> Effort:
        """The same with predictions and a gap of `percent`, by default 2; 0 disables predictions."""
        return replace(self, gap=(DEFAULT_GAP_PERCENT if percent is None else percent) / 100)
