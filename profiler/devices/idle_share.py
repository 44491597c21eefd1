"""The share of the lanes' time in which they wait while a stage runs: for longer groups, or because they have none."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace

from iosched.scheduler.schedule import Stage, Strategy, sum_us


def idle_share(latency_us: float | None, busy_us: Iterable[float | None], lanes: int) -> float | None:
    """1 - (sum of `busy_us`) / (`lanes` * `latency_us`), from 0 to 1; None where a number is missing or not finite.

    Args:
        latency_us: of the stage.
        busy_us: how long lanes are busy, in any number of parts.
        lanes: how many the stage has.
    """
    total_us = sum_us(busy_us)
    if not latency_us or total_us is None or not math.isfinite(latency_us):
        return None
    return min(max(1 - total_us / (lanes * latency_us), 0.0), 1.0)


def idle_streams(stage: Stage, latency_us: Callable[[Stage], float | None]) -> float | None:
    """The idle share of a GPU's streams, of which each group has one that is busy for as long as the group takes alone.

    Args:
        stage: None is returned for one that is not concurrent.
        latency_us: returns a stage's latency in microseconds; None where it is not known.
    """
    if stage.strategy is not Strategy.CONCURRENT:
        return None
    alone_us = (latency_us(replace(stage, groups=(group,), division=None)) for group in stage.groups)
    return idle_share(latency_us(stage), alone_us, len(stage.groups))
