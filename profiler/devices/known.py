"""What the profile database knows of stages, asked without measuring anything."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from iosched.profiler.measuring.statistics import Measurement
from iosched.profiler.store.database import ProfileDatabase
from iosched.scheduler.cost import CostModel
from iosched.scheduler.schedule import Stage, Strategy


class MeasuredCost(CostModel, Protocol):
    """A cost model that measures stages of one model on one device, and keeps what it finds."""

    @property
    def database(self) -> ProfileDatabase:
        """Where it keeps what it finds."""
        ...

    @property
    def device(self) -> str:
        """What is measured there stands in the database under this key."""
        ...

    @property
    def lanes(self) -> int:
        """See `OperatorBounds`."""
        ...

    @property
    def measurements(self) -> int:
        """Stages that were really measured so far."""
        ...

    @property
    def cache_hits(self) -> int:
        """Stages that the profile database knew."""
        ...

    @property
    def signatures(self) -> int:
        """Distinct stages met so far."""
        ...

    def remeasure(self, stage: Stage) -> float:
        """See `Remeasurable`."""
        ...

    def operator_key(self, name: str) -> str:
        """See `OperatorKeys`."""
        ...

    def known(self, stage: Stage) -> Measurement | None:
        """What was measured of the stage before, the later where it was twice; None where nothing was."""
        ...

    def known_work_us(self, name: str) -> float | None:
        """What `OperatorBounds.operator_work_us` answers; None where it would have to measure."""
        ...


@dataclass(frozen=True, eq=False)
class KnownStages:
    """The stages of one model on this machine as far as they were measured before, by `cost` or an earlier one."""

    cost: MeasuredCost

    def latency_us(self, stage: Stage) -> float | None:
        """Median latency with all lanes, the later of two measurements where there are two; None where not known."""
        found = self.cost.known(stage)
        return None if found is None else found.median_us

    def operator_latency_us(self, name: str) -> float | None:
        """Median latency of one operator alone with all lanes to itself, None where not known."""
        return self.latency_us(Stage(Strategy.CONCURRENT, ((name,),)))

    def operator_work_us(self, name: str) -> float | None:
        """What the cost's `operator_work_us` answers, None where it would have to measure."""
        return self.cost.known_work_us(name)
