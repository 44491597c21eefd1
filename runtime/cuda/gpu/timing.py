"""How long the GPU takes for what a stream is given, by events."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

from iosched.runtime.cuda.gpu.driver import Driver


def between(driver: Driver, stream: Any, launch: Callable[[], object]) -> tuple[Any, Any]:
    """Events with timing before and after what `launch` gives the stream; waits for nothing."""
    start, end = driver.new_event(timing=True), driver.new_event(timing=True)
    driver.record(start, stream)
    launch()
    driver.record(end, stream)
    return start, end


def elapsed_us(driver: Driver, stream: Any, launch: Callable[[], object]) -> float:
    """Microseconds of what `launch` gives the stream; waits until that is done."""
    return driver.elapsed_us(*between(driver, stream, launch))


def elapsed_in_a_row_us(
    driver: Driver,
    stream: Any,
    launch: Callable[[], object],
    repeats: int,
    before: Callable[[], object] | None = None,
) -> list[float]:
    """Microseconds of each of `repeats` launches; but for the first, the host is ahead and the GPU never waits.

    Args:
        before: gives the stream what comes before each launch and does not count; with it, no launch waits for the
            host.
    """
    if before is not None:
        pairs = []
        for _ in range(repeats):
            before()
            pairs.append(between(driver, stream, launch))
        return [driver.elapsed_us(*pair) for pair in pairs]
    events = [driver.new_event(timing=True) for _ in range(repeats + 1)]
    driver.record(events[0], stream)
    for event in events[1:]:
        launch()
        driver.record(event, stream)
    return [driver.elapsed_us(*pair) for pair in pairwise(events)]
