"""A row of a table of alternatives that were compared."""

from __future__ import annotations

from dataclasses import dataclass

from iosched.profiler.baselines.names import ON_CPU, ON_GPU
from iosched.profiler.measuring.statistics import Interval, Measurement
from iosched.scheduler.strategies import COMPARED, MEANINGS, ONE_SESSION


@dataclass(frozen=True)
class Row:
    """An alternative that was compared with others.

    Attributes:
        latency: of one of consecutive runs; without samples if computed.
        how: a description of the way, for display.
        in_flight: the number of concurrent runs, each of which takes `latency`.
        over_sequential: the speed-up over one operator after another, of the time from the end of one run to that of
            the next; None if unknown.
        over_baseline: the same over the baseline that was named; None if none was.
        images: the number of images in a run.
    """

    name: str
    latency: Measurement
    how: str = ""
    in_flight: int = 1
    over_sequential: Interval | None = None
    over_baseline: Interval | None = None
    images: int = 1

    @property
    def latency_us(self) -> float:
        """The median of the latency."""
        return self.latency.median_us

    @property
    def low_us(self) -> float | None:
        """Lower end of the interval of the latency; None if unknown."""
        return None if self.latency.interval is None else self.latency.interval.low

    @property
    def high_us(self) -> float | None:
        """Upper end of that interval."""
        return None if self.latency.interval is None else self.latency.interval.high

    @property
    def samples_us(self) -> tuple[float, ...]:
        """Latencies of consecutive runs; sample k of every row is from round k."""
        return self.latency.samples_us

    @property
    def rested_us(self) -> float | None:
        """The median of the first runs after idle time; None if they were not measured."""
        return None if self.latency.rested is None else self.latency.rested.median_us

    def per_second(self, count: int) -> float | None:
        """The throughput, if `count` images or models are done in a run; None if a run takes no time."""
        return count * self.in_flight / self.latency_us * 1e6 if self.latency_us else None

    @property
    def images_per_s(self) -> float | None:
        """The throughput in images a second; None if a run takes no time."""
        return self.per_second(self.images)

    @property
    def median_us(self) -> float:
        """The median of the samples, each of which is the median of a few runs."""
        return self.latency.median_us

    @property
    def p10_us(self) -> float:
        """The latency that one run in ten is faster than."""
        return self.latency.p10_us

    @property
    def p90_us(self) -> float:
        """The latency that nine runs in ten are faster than."""
        return self.latency.p90_us

    @property
    def min_us(self) -> float:
        """The fastest of all runs."""
        return min(self.latency.every_run_us)

    @property
    def samples(self) -> int:
        """The number of rounds."""
        return len(self.latency.samples_us)

    @property
    def runs(self) -> int:
        """The total number of runs."""
        return len(self.latency.every_run_us)

    @property
    def p99_us(self) -> float | None:
        """The latency that 99 runs in 100 are faster than; None from too few runs."""
        return None if self.latency.p99 is None else self.latency.p99.value

    @property
    def p99_low_us(self) -> float | None:
        """Lower end of the interval of `p99_us`."""
        return None if self.latency.p99 is None else self.latency.p99.low

    @property
    def p99_high_us(self) -> float | None:
        """Upper end of the interval of `p99_us`."""
        return None if self.latency.p99 is None else self.latency.p99.high

    @property
    def speedup(self) -> float | None:
        """Speedup over one operator after another, see `over_sequential`; None if unknown."""
        return None if self.over_sequential is None else self.over_sequential.value

    @property
    def speedup_low(self) -> float | None:
        """Lower end of the interval of `speedup`."""
        return None if self.over_sequential is None else self.over_sequential.low

    @property
    def speedup_high(self) -> float | None:
        """Upper end of the interval of `speedup`."""
        return None if self.over_sequential is None else self.over_sequential.high

    @property
    def speedup_over_baseline(self) -> float | None:
        """Speedup over the baseline, see `over_baseline`; None if unknown."""
        return None if self.over_baseline is None else self.over_baseline.value


ROWS: dict[str, str] = {
    "iosched": "the choice of 'optimize' for this model",
    **{name: MEANINGS[name] for name in COMPARED},
    ONE_SESSION: "one operator after another, in a single onnxruntime session",
    **ON_CPU,
    **ON_GPU,
}
"""Descriptions of rows by name."""
