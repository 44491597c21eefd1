"""What the search asks of a device: the latency of a stage."""

from __future__ import annotations

from typing import Protocol

from iosched.scheduler.schedule import Stage


class CostModel(Protocol):
    """Latency of stages of one computation graph on one device."""

    def stage_latency_us(self, stage: Stage) -> float:
        """Latency of `stage` in microseconds; may measure it, so it may be slow the first time it is asked.

        `math.inf` says that the device cannot run the stage this way.
        """
        ...

    def lower_bound_us(self, stage: Stage) -> float:
        """A bound that `stage_latency_us` will not undercut, known without measuring `stage` itself; 0 if none."""
        ...
