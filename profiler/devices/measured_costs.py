"""The latencies of stages that a search requests from a device."""

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
    """Latencies of the stages of one model on one device, and keys of equal operators."""


class MeasuredCosts(StageCosts, OperatorBounds, Remeasurable, Protocol):
    """Latencies of stages, measured on this machine and kept in the profile database."""

    @property
    def database(self) -> ProfileDatabase:
        """The profile database."""
        ...

    @property
    def device(self) -> str:
        """The key of the device in the database."""
        ...

    @property
    def measurements(self) -> int:
        """Number of requested stages that were measured, by this process or by others."""
        ...

    @property
    def cache_hits(self) -> int:
        """Number of other requested stages that were found in the database."""
        ...

    @property
    def signatures(self) -> int:
        """Number of different signatures of the requested stages."""
        ...

    @property
    def repeated(self) -> int:
        """Number of measurements that were repeated because of interference."""
        ...

    @property
    def disturbed(self) -> int:
        """Number of `signatures` that were only measured with interference."""
        ...

    @property
    def repeatable(self) -> int:
        """Number of measurements that may still be repeated because of interference."""
        ...

    def with_own_counts(self) -> MeasuredCosts:
        """The same open model and database, with separate counts."""
        ...

    def measured_by_others(self, rows: Iterable[Row]) -> None:
        """Counts these rows as measured, not as cache hits, once they are requested."""
        ...

    def known(self, stage: Stage) -> Measurement | None:
        """The latest thorough measurement of the stage on all lanes; None if there is none. Measures nothing."""
        ...

    def known_work_us(self, name: str) -> float | None:
        """`operator_work_us`, or None if it would have to measure."""
        ...


@runtime_checkable
class ComparesSegments(Protocol):
    """Optional part of `MeasuredCosts`: compares segments of stages."""

    def in_turn(self, segments: Mapping[str, Sequence[Stage]]) -> Mapping[str, Measurement]:
        """The interleaved latency of each segment that can run; keeps nothing. Sample k of each is of round k."""
        ...


def known_us(cost: MeasuredCosts, stage: Stage) -> float | None:
    """The median of `cost.known(stage)` in microseconds; None if unknown."""
    found = cost.known(stage)
    return None if found is None else found.median_us
