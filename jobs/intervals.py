"""Where computed latencies and their ratios lie. Measured ones have intervals of their own, see `decision.Ratio`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from iosched.profiler.devices.uncertainty import LEVEL, Interval, Uncertainty
from iosched.scheduler.schedule import Schedule


@dataclass(frozen=True)
class Intervals:
    """How well the latencies of a schedule that was found, and of the baselines, are known.

    Attributes:
        latency_us: of the schedules "iosched", "sequential" and "greedy", in microseconds.
        speedup: by "sequential" and "greedy", how many times as fast the schedule found is.
        level: the probability with which the intervals are meant to hold what would be measured.
    """

    latency_us: Mapping[str, Interval]
    speedup: Mapping[str, Interval]
    level: float = LEVEL


def intervals_of(uncertainty: Uncertainty | None, schedules: Mapping[str, Schedule]) -> Intervals | None:
    """Intervals of computed latencies; None where latencies are measured.

    Args:
        schedules: by name; "iosched" is the one found, and compared with all others.
    """
    if uncertainty is None:
        return None
    stages = {name: tuple(schedule.stages) for name, schedule in schedules.items()}
    found = stages["iosched"]
    return Intervals(
        {name: uncertainty.latency_us(each) for name, each in stages.items()},
        {name: uncertainty.ratio(each, found) for name, each in stages.items() if name != "iosched"},
    )
