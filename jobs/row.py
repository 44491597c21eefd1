"""A row of a table of alternatives that were compared."""

from __future__ import annotations

from dataclasses import dataclass

from iosched.profiler.measuring.statistics import Interval, Measurement


@dataclass(frozen=True)
class Row:
    """An alternative that was compared with others.

    Attributes:
        name: the alternative's name.
        latency: of one run, in a row with others; without samples where it is computed.
        how: what runs it, for people.
        in_flight: how many runs go on at the same time, each of which takes `latency`.
        speedup: over one operator after another, of the time from the end of one run to that of the next; None where it
            is not known.
        speedup_over_baseline: the same over the baseline that was named; None if none was.
    """

    name: str
    latency: Measurement
    how: str = ""
    in_flight: int = 1
    speedup: Interval | None = None
    speedup_over_baseline: Interval | None = None

    @property
    def latency_us(self) -> float:
        """The median of the latency."""
        return self.latency.median_us

    @property
    def rested_us(self) -> float | None:
        """The median of the first runs after a rest; None if they were not measured."""
        return None if self.latency.rested is None else self.latency.rested.median_us

    def per_second(self, count: int) -> float | None:
        """The throughput, if `count` images or models are done in a run; None if a run takes no time."""
        return count * self.in_flight / self.latency_us * 1e6 if self.latency_us else None
