"""How well latencies are known that are computed and not measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from iosched.scheduler.schedule import Stage

LEVEL = 0.9
"""The probability with which an interval is meant to hold what would be measured."""
_ROUNDING = 1e-9  # sums of the same latencies in another order differ by less


@dataclass(frozen=True)
class Interval:
    """Where a computed latency in microseconds, or the ratio of two, lies with the probability `LEVEL`.

    Attributes:
        value: what was computed; it lies within.
        low: lower end.
        high: upper end.
    """

    value: float
    low: float
    high: float

    def __contains__(self, value: object) -> bool:
        """Whether a number lies in the interval, ends included."""
        return isinstance(value, int | float) and self.low <= value <= self.high

    @property
    def is_equal(self) -> bool:
        """Of a ratio: whether the two are equal as far as is known, which is where 1 lies in the interval."""
        return self.low <= 1 + _ROUNDING and self.high >= 1 - _ROUNDING


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
