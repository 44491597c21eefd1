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
    """

    facts: Facts
    place: Place
    leases: dict[str, Lease] = field(default_factory=dict)
    done: int = 0
    _disturbed: deque[str] = field(default_factory=lambda: deque(maxlen=WATCHED))

    def noise(self, rows: Sequence[Row]) -> str:
        """What disturbed nearly all that this worker measured lately, these rows last; empty where nothing did."""
        self._disturbed.extend(row.disturbed_by for row in rows if isinstance(row, StageRow))
        disturbed = [reason for reason in self._disturbed if reason]
        return disturbed[-1] if len(disturbed) > MOST_DISTURBED else ""


def other_version(facts: Facts) -> str:
    """Why a worker is not of this version of iosched; empty where it is."""
    here = iosched_version()
    return "" if facts.iosched == here else f"it has iosched {facts.iosched}, and this is {here}"
