"""The streams of one GPU, and the scratch memory of each: all that runs on the GPU shares them."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from iosched.models.errors import DeviceError, ExecutionError
from iosched.runtime.cuda.gpu.driver import Driver, Memory


class Lanes:
    """A stream for each lane, made when it is first used, and a workspace beside it as large as any kernel there needs.

    A stream costs a cuDNN handle, and a handle memory of the GPU. A search runs hundreds of stages, so they run on the
    same streams, one stage after another.
    """

    def __init__(self, driver: Driver) -> None:
        """Makes no stream yet."""
        self._driver = driver
        self._streams: list[Any] = []
        self._workspaces: dict[int, tuple[int, Memory]] = {}

    @property
    def origin(self) -> Any:
        """The stream of lane 0, which others are forked from and joined to."""
        return self.streams(1)[0]

    def streams(self, count: int) -> Sequence[Any]:
        """Streams of the first `count` lanes."""
        while len(self._streams) < count:
            self._streams.append(self._driver.new_stream())
        return self._streams[:count]

    def workspace(self, lane: int, nbytes: int) -> Memory:
        """At least `nbytes` for whatever runs on the lane. The caller keeps the result as long as it uses the address.

        Raises:
            DeviceError: the device has not enough memory.
        """
        known_nbytes, known = self._workspaces.get(lane, (-1, None))
        if known is None or known_nbytes < nbytes:
            known = self._driver.allocate(nbytes)
            self._workspaces[lane] = (nbytes, known)
        return known

    def capture(self, origin: Any, launch: Callable[[], object]) -> Any:
        """The graph of what `launch` gives `origin`, and the streams that it forks from there and joins.

        Where it fails, new streams are used from then on: the state of these is not known.
        """
        with _no_collector():
            self._driver.begin_capture(origin)
            try:
                launch()
                return self._driver.end_capture(origin)
            except BaseException:
                with suppress(DeviceError, ExecutionError):
                    self._driver.end_capture(origin)
                _settle(self._driver, self._streams)
                self.discard()
                raise

    def discard(self) -> None:
        """Makes new streams from now on."""
        self._streams = []
        self._workspaces = {}


@contextmanager
def settled(driver: Driver, streams: Iterable[Any]) -> Iterator[None]:
    """Where something fails inside, waits until the streams are done with what they were given before.

    The memory that it concerns is freed next, and may be given to others at once: CuPy orders that by the default
    stream, for which these streams do not wait.

    Raises:
        DeviceLostError: nothing runs on the GPU any more, whatever was raised.
    """
    try:
        yield
    except BaseException:
        _settle(driver, streams)
        raise


def _settle(driver: Driver, streams: Iterable[Any]) -> None:
    for stream in streams:
        with suppress(DeviceError, ExecutionError):
            driver.synchronize(stream)


@contextmanager
def _no_collector() -> Iterator[None]:
    """Keeps Python from collecting garbage: to destroy another graph is no part of a capture, and may end it.

    What a caller dropped in a cycle is collected later. It is not collected before: that takes some milliseconds, and a
    search captures thousands of times.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
