"""What every device says of the cost of stages, and what a device says that measures them."""

from __future__ import annotations

from typing import Protocol

from iosched.profiler.measuring.statistics import Measurement
from iosched.profiler.store.database import ProfileDatabase
from iosched.scheduler.cost import CostModel, OperatorBounds, OperatorKeys, Remeasurable
from iosched.scheduler.schedule import Stage


class StageCosts(CostModel, OperatorKeys, Protocol):
    """Latencies of the stages of one model on one device, and which operators are alike there."""


class MeasuredCosts(StageCosts, OperatorBounds, Remeasurable, Protocol):
    """Latencies that are measured on a device at hand, and kept."""

    @property
    def database(self) -> ProfileDatabase:
        """Where they are kept."""
        ...

    @property
    def device(self) -> str:
        """The key of the device in the database."""
        ...

    @property
    def measurements(self) -> int:
        """How many stages were measured for this object."""
        ...

    @property
    def cache_hits(self) -> int:
        """How many stages the database knew already."""
        ...

    @property
    def signatures(self) -> int:
        """How many different stages were asked for."""
        ...

    def known(self, stage: Stage) -> Measurement | None:
        """The latency with all lanes as it was measured before, the later of two; None where it was not."""
        ...

    def known_work_us(self, name: str) -> float | None:
        """The answer of `operator_work_us`; None where it would have to measure."""
        ...


def known_us(cost: MeasuredCosts, stage: Stage) -> float | None:
    """The median latency of the stage as it was measured before; None where it was not."""
    found = cost.known(stage)
    return None if found is None else found.median_us
