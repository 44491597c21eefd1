"""Workers that are up, as the driver knows them, and which of them are of no use."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from iosched.jobs.fleet.leases import Lease
from iosched.jobs.fleet.messages import Facts
from iosched.jobs.fleet.transport import Place
from iosched.models.version import iosched_version
from iosched.profiler.store.tables import Row, StageRow

WATCHED, MOST_DISTURBED = 10, 7
"""Of so many stages that a worker measured last so many may have been disturbed."""


@dataclass(eq=False)
class Member:
    """A worker that may be given work.

    Attributes:
        done: works that it has answered.
        knows_others: whether it was sent rows of other devices.
        heard_s: when it was given something, or said something, last.
    """

    facts: Facts
    place: Place
    leases: dict[str, Lease] = field(default_factory=dict)
    done: int = 0
    knows_others: bool = False
    heard_s: float = 0.0
    _disturbed: deque[str] = field(default_factory=lambda: deque(maxlen=WATCHED))

    def __post_init__(self) -> None:
        self._disturbed.extend(WATCHED * self.facts.disturbed_by[-1:])

    def measured(self, rows: Sequence[Row]) -> None:
        """The worker has measured these stages, among others."""
        self._disturbed.extend(row.disturbed_by for row in rows if isinstance(row, StageRow))

    @property
    def noise(self) -> str:
        """What disturbed nearly all that this worker measured last; empty where nothing did."""
        disturbed = [reason for reason in self._disturbed if reason]
        return disturbed[-1] if len(disturbed) > MOST_DISTURBED else ""


def other_version(facts: Facts) -> str:
    """Why a worker is not of this version of iosched; empty where it is."""
    here = iosched_version()
    return "" if facts.iosched == here else f"it has iosched {facts.iosched}, and this is {here}"
