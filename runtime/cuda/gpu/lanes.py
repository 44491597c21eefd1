"""Streams of one GPU with their workspaces, captures on them, and timing by events."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from threading import Lock
from typing import Any

from iosched.models.errors import DeviceError, ExecutionError
from iosched.runtime.cuda.gpu.driver import Driver, Memory

_CAPTURING = Lock()
"""Of two concurrent captures, the first to end would resume garbage collection."""


class Lanes:
    """A stream and a workspace for each lane, created on first use and shared by all executors.

    A stream costs a cuDNN handle, and a handle GPU memory; a search runs hundreds of stages.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._streams: list[Any] = []
        self._workspaces: dict[int, tuple[int, Memory]] = {}

    @property
    def origin(self) -> Any:
        """The stream of lane 0, from which others fork and to which they join."""
        return self.streams(1)[0]

    def streams(self, count: int) -> Sequence[Any]:
        """Streams of the first `count` lanes."""
        while len(self._streams) < count:
            self._streams.append(self._driver.new_stream())
        return self._streams[:count]

    def workspace(self, lane: int, nbytes: int) -> Memory:
        """At least `nbytes` for the lane; keep the result while its address is in use.

        Raises:
            DeviceError: the GPU is out of memory.
        """
        known_nbytes, known = self._workspaces.get(lane, (-1, None))
        if known is None or known_nbytes < nbytes:
            known = self._driver.allocate(nbytes)
            self._workspaces[lane] = (nbytes, known)
        return known

    def capture(self, origin: Any, launch: Callable[[], object]) -> Any:
        """Captures what `launch` enqueues on `origin` and on streams forked from it.

        On failure, new streams replace these, whose state is unknown.
        """
        with _CAPTURING, _gc_paused():
            self._driver.begin_capture(origin)
            try:
                launch()
                return self._driver.end_capture(origin)
            except BaseException:
                with suppress(DeviceError, ExecutionError):
                    self._driver.end_capture(origin)
                _synchronize_all(self._driver, self._streams)
                self.discard()
                raise

    def discard(self) -> None:
        """Creates new streams on next use."""
        self._streams = []
        self._workspaces = {}


@contextmanager
def synchronized_on_error(driver: Driver, streams: Iterable[Any]) -> Iterator[None]:
    """Synchronizes the streams if the block raises.

    Memory freed by the exception may be reused at once: CuPy orders that by the default stream, for which these
    streams do not wait.

    Raises:
        DeviceLostError: the GPU is lost, whatever else was raised.
    """
    try:
        yield
    except BaseException:
        _synchronize_all(driver, streams)
        raise


def _synchronize_all(driver: Driver, streams: Iterable[Any]) -> None:
    for stream in streams:
        with suppress(DeviceError, ExecutionError):
            driver.synchronize(stream)


@contextmanager
def _gc_paused() -> Iterator[None]:
    """Destroying a graph may end a capture. Collecting garbage before each capture would take milliseconds."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def recorded_events(driver: Driver, stream: Any, launch: Callable[[], object]) -> tuple[Any, Any]:
    """Timing events before and after what `launch` enqueues; does not wait."""
    start, end = driver.new_event(timing=True), driver.new_event(timing=True)
    driver.record(start, stream)
    launch()
    driver.record(end, stream)
    return start, end


def elapsed_us(driver: Driver, stream: Any, launch: Callable[[], object]) -> float:
    """Microseconds of what `launch` enqueues; waits for it."""
    return driver.elapsed_us(*recorded_events(driver, stream, launch))


def elapsed_each_us(
    driver: Driver,
    stream: Any,
    launch: Callable[[], object],
    repeats: int,
    before: Callable[[], object] | None = None,
) -> list[float]:
    """Microseconds of each of `repeats` launches, the first of which waits for the host.

    Args:
        before: enqueues untimed work before each launch; then no launch waits for the host.
    """
    if before is not None:
        pairs = []
        for _ in range(repeats):
            before()
            pairs.append(recorded_events(driver, stream, launch))
        return [driver.elapsed_us(*pair) for pair in pairs]
    events = [driver.new_event(timing=True) for _ in range(repeats + 1)]
    driver.record(events[0], stream)
    for event in events[1:]:
        launch()
        driver.record(event, stream)
    return [driver.elapsed_us(*pair) for pair in pairwise(events)]
