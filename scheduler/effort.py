"""How hard to search for a schedule."""

from __future__ import annotations

from dataclasses import dataclass, replace

DEFAULT_GAP_PERCENT = 2.0
"""Of searches that measure; no stage is known better."""


@dataclass(frozen=True)
class Effort:
    """How hard to search.

    Attributes:
        exhaustive: measures every stage instead of searching lazily.
        bound_slack: factor on all lower bounds, at most 1; less keeps noisy measurements from hiding the optimum.
        tolerance: the search of a block ends when its best schedule exceeds its lower bound by no more than this part:
            measured latencies are not known better than that.
        gap: above 0, stages of several operators that were not measured count as predicted (`predictions.py`), and the
            search of a block ends once predictions leave no more than this part of its best schedule.
        long_after: the search of a block is long once it has made so many measurements; None is never.
        long_tolerance: the tolerance of a long search, where that is more.
        max_measurements: the search of a block ends with the round in which it has made so many, not counting those of
            single operators; None is no limit. The schedule is then not proven, and no worse than the greedy one.
        remeasure_rounds: with a cost that is `Remeasurable`, how often at most the search of a block goes on after the
            stages of its best schedule, or of those within the tolerance of it, were measured a second time. Where that
            does not suffice, the best schedule of stages that were all measured twice is taken. 0 trusts every
            latency. These measurements do not count towards `max_measurements`.
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
        """The tolerance once the search of a block has made so many measurements."""
        is_long = self.long_after is not None and n_measured >= self.long_after
        return max(self.tolerance, self.gap, self.long_tolerance if is_long else 0.0)

    def exhausted(self) -> Effort:
        """The same, but for every stage."""
        return replace(self, exhaustive=True, tolerance=0.0, gap=0.0, max_measurements=None)

    def with_gap(self, percent: float | None) -> Effort:
        """The same with predictions that may leave a gap of `percent`, by default 2; at 0 without predictions."""
        return replace(self, gap=(DEFAULT_GAP_PERCENT if percent is None else percent) / 100)
