"""The place of an operator in a schedule, and the other places that it could have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from iosched.scheduler.schedule import Stage

ElsewhereKind = Literal["alone", "fewer", "with_stage", "by_stages"]
Verdict = Literal["too_wide", "only_place", "unknown", "best", "as_good", "worse", "within_tolerance", "undecided"]
"""What the operator's place is, beside all others that it could have; see `Places.verdict`."""


@dataclass(frozen=True)
class Elsewhere:
    """A place that an operator could have in another stage, and the best schedule that puts it there.

    Attributes:
        kind: what shares the stage with the operator: nothing ("alone"), only some of the operators that share its
            present stage ("fewer"), or operators that are in another stage now ("with_stage"); or, where it runs in a
            session, any stage instead ("by_stages").
        stage: for "with_stage", the number of that other stage in its block.
        possible: whether the pruning allows any such stage.
        at_least_us: no schedule that has the operator in this place takes less.
        at_most_us: latency of `stages`; infinite where too many latencies are unknown to name any schedule.
        stages: the best schedule known that has the operator in this place.
    """

    kind: ElsewhereKind
    stage: int | None
    possible: bool
    at_least_us: float
    at_most_us: float
    stages: tuple[Stage, ...]

    @property
    def is_exact(self) -> bool:
        """Whether `stages` is proven to be the best schedule that has the operator in this place."""
        return self.at_least_us >= self.at_most_us * (1 - 1e-9)


@dataclass(frozen=True)
class Places:
    """The place of an operator in a schedule, the other places it could have, and what the schedule takes with each.

    Compared are stages `first_stage` to `last_stage` of the operator's block. These are the whole block, unless it is
    more than one block of `blocks.partition`, or has too many states to be searched. Of a session, it is that session
    alone, against the best stages of all its operators.

    Attributes:
        operator: its name.
        block: the block's number.
        stage: the number of the operator's stage in the block.
        group: the number of the operator's group in the stage.
        first_stage: number of the first of `stages` in the block.
        stages: the stages that are compared, as they are now.
        present_us: what these stages take now; None where not known.
        elsewhere: the other places.
        is_weighed: whether other places were looked for; else the operator's stage alone has too many states for that.
    """

    operator: str
    block: int
    stage: int
    group: int
    first_stage: int
    stages: tuple[Stage, ...]
    present_us: float | None
    elsewhere: tuple[Elsewhere, ...]
    is_weighed: bool = True

    @property
    def last_stage(self) -> int:
        """Number of the last of the stages that are weighed."""
        return self.first_stage + len(self.stages) - 1

    @property
    def present(self) -> Stage:
        """The stage that the operator is in."""
        return self.stages[self.stage - self.first_stage]

    @property
    def possible(self) -> tuple[Elsewhere, ...]:
        """The other places that the pruning allows."""
        return tuple(other for other in self.elsewhere if other.possible)

    @property
    def rival(self) -> Elsewhere | None:
        """The other place that may take least; None where the operator has no other."""
        return min(self.possible, key=lambda other: other.at_least_us, default=None)

    def verdict(self, tolerance: float) -> Verdict:
        """What the present place is beside the `rival`; differences below `tolerance` of a latency mean nothing.

        "too_wide" where none was looked for; "only_place" where there is no rival; "unknown" where the present latency
        is; "best" where the rival takes longer, and "as_good" where it does not by more than the tolerance. The rival
        may take less in all other cases: "worse" where it does, "within_tolerance" where it does by too little to
        matter, and "undecided" where too little is known.
        """
        if not self.is_weighed:
            return "too_wide"
        rival, now = self.rival, self.present_us
        if rival is None or now is None:
            return "only_place" if rival is None else "unknown"
        if rival.at_least_us >= now:
            return "best" if rival.at_least_us > now * (1 + max(tolerance, 1e-9)) else "as_good"
        if rival.at_most_us >= now:
            return "undecided"
        return "worse" if rival.at_most_us < now * (1 - tolerance) else "within_tolerance"
