"""Models of one composed model in a session of onnxruntime each, as people run several models without this program."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

from iosched.models.composition.extraction import member_alone
from iosched.models.composition.members import Member
from iosched.models.errors import UsageError
from iosched.models.model import Model
from iosched.runtime.inputs import Arrays, check_names
from iosched.runtime.reference import Reference, ReferenceSettings
from iosched.runtime.session import running


@dataclass(frozen=True)
class SessionsSettings:
    """How sessions run.

    Attributes:
        lanes: how many of them run at the same time; with 1, one runs after another.
        threads: of each session.
    """

    lanes: int = 1
    threads: int = 1

    def __post_init__(self) -> None:
        if self.lanes < 1 or self.threads < 1:
            raise UsageError("the number of threads must be at least 1")

    @property
    def description(self) -> str:
        """What runs and with how many threads, for people."""
        if self.lanes == 1:
            return f"a session for each model, one after another, {self.threads} threads"
        return f"a session for each model, {self.lanes} at a time with {self.threads} threads each"


def one_after_another(threads: int) -> tuple[SessionsSettings, ...]:
    """The settings that a user of `threads` cores would try for sessions one after another; the usual one first."""
    return tuple(SessionsSettings(1, count) for count in dict.fromkeys((threads, 1)))


class SideBySide:
    """A session for each member of a composed model, with threads of its own; a composed model has the same inputs.

    Sessions of several threads stop spinning after a run: eight of two threads that do not took five times as long.
    Larger models begin before smaller ones, whatever the order of the members.
    """

    def __init__(self, whole: Model, members: Sequence[Member], settings: SessionsSettings) -> None:
        """Opens the sessions.

        Raises:
            InvalidModelError: where onnxruntime refuses a model.
            DeviceError: where onnxruntime is not installed.
        """
        models = sorted((member_alone(whole, member) for member in members), key=_flops, reverse=True)
        own = ReferenceSettings("sequential", settings.threads)
        self.settings = settings
        self._inputs = [spec.name for spec in whole.graph.inputs]
        self._fed = [[spec.name for spec in model.graph.inputs] for model in models]
        self._sessions = [Reference(model, own, keeps_spinning=False) for model in models]
        self._pool = ThreadPoolExecutor(settings.lanes) if settings.lanes > 1 else None

    def close(self) -> None:
        """Frees the sessions and all threads."""
        if self._pool is not None:
            self._pool.shutdown()
        for session in self._sessions:
            session.close()

    def run(self, inputs: Arrays) -> dict[str, Any]:
        """Outputs of all models by the names that they have in the composed model.

        Raises:
            UsageError: where an input is missing or unknown.
            ExecutionError: where onnxruntime fails.
        """
        check_names(inputs, self._inputs)
        found: dict[str, Any] = {}
        for session, fed in self._each():
            found.update(session.run({name: inputs[name] for name in fed}))
        return found

    def time(self, inputs: Arrays, repeats: int) -> tuple[float, ...]:
        """Microseconds of each of `repeats` runs of all models.

        Of sessions side by side the first run is timed alone. The others are handed out at once, and have the mean as
        their latency: a model of the next run begins as soon as there is a lane for it, as it does where each process
        or thread serves a model of its own.

        Raises:
            UsageError: where an input is missing or unknown.
            ExecutionError: where onnxruntime fails.
        """
        check_names(inputs, self._inputs)
        runs = [
            _Bound([session.bound({name: inputs[name] for name in fed}) for _ in range(self.settings.lanes)])
            for session, fed in self._each()
        ]
        with running():
            if self._pool is None:
                return tuple(self._elapsed_us(runs) for _ in range(repeats))
            first_us, more = self._elapsed_us(runs), repeats - 1
            return (first_us, *[self._elapsed_us(runs * more) / more] * more) if more else (first_us,)

    def _elapsed_us(self, runs: Sequence[_Bound]) -> float:
        """Microseconds until all have run."""
        began = time.perf_counter_ns()
        for _ in map(_Bound.run, runs) if self._pool is None else self._pool.map(_Bound.run, runs):
            pass
        return (time.perf_counter_ns() - began) / 1e3

    def _each(self) -> Iterable[tuple[Reference, list[str]]]:
        return zip(self._sessions, self._fed, strict=True)


class _Bound:
    """One session as often on the same inputs as it may run at the same time, each with outputs of its own."""

    def __init__(self, ways: Sequence[Callable[[], object]]) -> None:
        self._idle: SimpleQueue[Callable[[], object]] = SimpleQueue()
        for way in ways:
            self._idle.put(way)

    def run(self) -> None:
        """Runs once."""
        way = self._idle.get()
        try:
            way()
        finally:
            self._idle.put(way)


def _flops(model: Model) -> float:
    return sum(operator.flops for operator in model.graph.operators)
