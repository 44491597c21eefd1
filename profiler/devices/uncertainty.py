"""How well latencies are known that are computed and not measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from iosched.profiler.measuring.statistics import Interval
from iosched.scheduler.schedule import Stage

LEVEL = 0.9
"""The probability with which an interval is meant to hold what would be measured."""


class Uncertainty(Protocol):
    """Intervals of computed latencies of one model on one device."""

    def latency_us(self, stages: Sequence[Stage]) -> Interval:
        """The latency of stages that run one after another."""
        ...

    def ratio(self, stages: Sequence[Stage], others: Sequence[Stage]) -> Interval:
        """The latency of `stages` over that of `others`, both on this device.

        What both have in common cancels, so that the ratio is known better than either latency, and exactly of equal
        schedules.
        """
        ...
