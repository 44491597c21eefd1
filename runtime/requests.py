"""Several runs of a model at the same time, each on cores of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from queue import SimpleQueue
from statistics import fmean
from typing import Any, Protocol

from iosched.runtime.inputs import Arrays


class Runnable(Protocol):
    """Runs a whole model, one run at a time."""

    def run(self, inputs: Arrays) -> dict[str, Any]:
        """Runs once and returns the outputs by name."""
        ...

    def time(self, inputs: Arrays, repeats: int) -> tuple[float, ...]:
        """Runs `repeats` times and returns the microseconds of each run."""
        ...

    def close(self) -> None:
        """Frees sessions, buffers and threads."""
        ...


class Requests:
    """A model that as many threads run at the same time as there are `runnables`; further callers wait.

    Attributes:
        in_flight: how many runs go on at the same time.
    """

    def __init__(self, runnables: Sequence[Runnable], frees: Callable[[], None] = lambda: None) -> None:
        """Takes over what is ready to run.

        Args:
            runnables: the same model, each on cores of its own.
            frees: is called on closing, after these are closed.
        """
        self.in_flight = len(runnables)
        self._runnables, self._frees = tuple(runnables), frees
        self._free: SimpleQueue[Runnable] = SimpleQueue()
        for each in self._runnables:
            self._free.put(each)

    def run(self, inputs: Arrays) -> dict[str, Any]:
        """Runs once and returns the outputs by name."""
        with self._one() as runnable:
            return runnable.run(inputs)

    def time(self, inputs: Arrays, repeats: int) -> tuple[float, ...]:
        """Has all of them run `repeats` times in a row; microseconds of each run, the mean of those at one time."""
        if self.in_flight == 1:
            return self._runnables[0].time(inputs, repeats)
        with ThreadPoolExecutor(self.in_flight) as callers:
            times_us = list(callers.map(lambda runnable: runnable.time(inputs, repeats), self._runnables))
        return tuple(map(fmean, zip(*times_us, strict=True)))

    def close(self) -> None:
        """Frees sessions, buffers and threads."""
        for each in self._runnables:
            each.close()
        self._frees()

    @contextmanager
    def _one(self) -> Iterator[Runnable]:
        runnable = self._free.get()
        try:
            yield runnable
        finally:
            self._free.put(runnable)
