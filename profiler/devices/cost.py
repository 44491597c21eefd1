"""The latencies of stages that a search asks a device for: of any device, and of one that measures them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from iosched.scheduler.cost import CostModel, OperatorBounds, OperatorKeys, Remeasurable
from iosched.scheduler.schedule import Stage

if TYPE_CHECKING:
    from iosched.profiler.measuring.statistics import Measurement
    from iosched.profiler.store.database import ProfileDatabase
    from iosched.profiler.store.tables import Row


class StageCosts(CostModel, OperatorKeys, Protocol):
    """Latencies of the stages of one model on one device, and keys that are equal for operators that are alike."""


class MeasuredCosts(StageCosts, OperatorBounds, Remeasurable, Protocol):
    """Latencies of stages that are measured on this machine and kept in the profile database."""

    @property
    def database(self) -> ProfileDatabase:
        """The profile database that keeps the latencies."""
        ...

    @property
    def device(self) -> str:
        """The key of the device in the database."""
        ...

    @property
    def measurements(self) -> int:
        """How many stages this object was asked for that it has measured, or others for it."""
        ...

    @property
    def cache_hits(self) -> int:
        """How many others it found in the database."""
        ...

    @property
    def signatures(self) -> int:
        """How many stages with different signatures this object was asked for."""
        ...

    @property
    def repeated(self) -> int:
        """How many of the measurements repeated one that something had disturbed."""
        ...

    @property
    def disturbed(self) -> int:
        """How many of `signatures` have only measurements that something disturbed."""
        ...

    @property
    def repeatable(self) -> int:
        """How many measurements of these stages may still be repeated because something disturbed them."""
        ...

    def with_own_counts(self) -> MeasuredCosts:
        """The same open model and database, for questions of somebody else: they are not counted here."""
        ...

    def measured_by_others(self, rows: Iterable[Row]) -> None:
        """Says what others have measured for this object: when it asks for that, it counts as measured."""
        ...

    def known(self, stage: Stage) -> Measurement | None:
        """The latest thorough measurement of the stage, with all lanes; None where the stage was never measured.

        Measures nothing.
        """
        ...

    def known_work_us(self, name: str) -> float | None:
        """What `operator_work_us` answers; None where it would have to measure something first."""
        ...


@runtime_checkable
class ComparesSegments(Protocol):
    """Optional part of `MeasuredCosts`: says which of several stretches of stages is the fastest."""

    def in_turn(self, stretches: Mapping[str, Sequence[Stage]]) -> Mapping[str, Measurement]:
        """The latency of each stretch, its stages one after another, measured in turn; keeps nothing.

        What cannot be run is left out. Sample k of each is of round k, so that two can be compared round by round.
        """
        ...


def known_us(cost: MeasuredCosts, stage: Stage) -> float | None:
    """The median of `cost.known(stage)` in microseconds; None where the stage was never measured."""
    found = cost.known(stage)
    return None if found is None else found.median_us
