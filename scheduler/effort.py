"""How hard to search for a schedule."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Effort:
    """How hard to search.

    Attributes:
        exhaustive: measures every stage instead of searching lazily.
        bound_slack: factor on all lower bounds, at most 1; less keeps noisy measurements from hiding the optimum.
        tolerance: a block is done when its schedule is within this part of its lower bound: measured latencies
            are not known better than that.
        max_measurements: after so many, beside the single operators, a block is left as it is at the end of the round;
            None is no limit. The schedule is then not proven, and no worse than the block's greedy one.
        remeasure_rounds: with a cost that is `Remeasurable`, how often at most a block's search goes on after the
            stages of its best schedule, or of those within the tolerance of it, were measured once more. Where that
            does not suffice, the best schedule of stages that were all measured twice is taken. 0 trusts every
            latency. These measurements are beside the limit above.
    """

    exhaustive: bool = False
    bound_slack: float = 1.0
    tolerance: float = 0.0
    max_measurements: int | None = None
    remeasure_rounds: int = 8

    def __post_init__(self) -> None:
        if not 0 < self.bound_slack <= 1:
            raise ValueError(f"bound_slack must be positive and at most 1, not {self.bound_slack}")

    def exhausted(self) -> Effort:
        """The same, but for every stage."""
        return replace(self, exhaustive=True, tolerance=0.0, max_measurements=None)
