"""What the profile database knows of stages, asked without measuring anything."""

from __future__ import annotations

from dataclasses import dataclass

from iosched.profiler.cpu_cost import StageCost
from iosched.scheduler.schedule import Stage, Strategy


@dataclass(frozen=True, eq=False)
class KnownStages:
    """The stages of one model on this CPU as far as they were measured before, by `cost` or an earlier one."""

    cost: StageCost

    def latency_us(self, stage: Stage) -> float | None:
        """Median latency with all lanes, the later of two measurements where there are two; None where not known."""
        found = self.cost.known(stage)
        return None if found is None else found.median_us

    def operator_latency_us(self, name: str) -> float | None:
        """Median latency of one unit with all lanes to itself, None where not known."""
        return self.latency_us(_alone(name))

    def operator_work_us(self, name: str) -> float | None:
        """What `StageCost.operator_work_us` answers, None where it would have to measure."""
        alone_us = self.latency_us(_alone(name))
        if alone_us is None or not self.cost.backend.coarse.nodes[name]:
            return alone_us
        one = self.cost.known(_alone(name), lanes=1)
        return None if one is None else min(one.median_us, alone_us * self.cost.lanes)


def _alone(name: str) -> Stage:
    return Stage(Strategy.CONCURRENT, ((name,),))
