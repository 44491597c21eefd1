"""Models of one composed model in a session of a library each, as people run several models without this program."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import cycle, islice
from math import ceil
from queue import SimpleQueue
from typing import Any, Literal, Protocol

from iosched.models.composition.members import Member, member_alone
from iosched.models.errors import UsageError
from iosched.models.model import Model
from iosched.runtime.inputs import Arrays, check_names
from iosched.runtime.openvino.model import OpenvinoModel, open_requests
from iosched.runtime.reference import Reference, ReferenceSettings
from iosched.runtime.session import running

Library = Literal["onnxruntime", "openvino"]
LIBRARIES: Mapping[Library, str] = {"onnxruntime": "onnxruntime", "openvino": "OpenVINO"}
"""What can run sessions, and what people call it."""

SETTLED_SECONDS = 0.05
"""How long sessions side by side are timed in a row at least."""


@dataclass(frozen=True)
class SessionsSettings:
    """How sessions run.

    Attributes:
        lanes: how many of them run at the same time; with 1, one runs after another.
        threads: of each session.
        library: whose sessions they are.
    """

    lanes: int = 1
    threads: int = 1
    library: Library = "onnxruntime"

    def __post_init__(self) -> None:
        if self.lanes < 1 or self.threads < 1:
            raise UsageError("the number of threads must be at least 1")

    @property
    def description(self) -> str:
        """What runs and with how many threads, for people."""
        each = f"{LIBRARIES[self.library]}, a session for each model"
        threads = f"{self.threads} thread{'s' * (self.threads > 1)}"
        if self.lanes == 1:
            return f"{each}, one after another, {threads}"
        return f"{each}, {self.lanes} at a time with {threads} each"


def one_after_another(threads: int) -> tuple[SessionsSettings, ...]:
    """The settings that a user of `threads` cores would try for sessions one after another; the usual one first."""
    return tuple(SessionsSettings(1, count) for count in dict.fromkeys((threads, 1)))


def at_a_time(count: int, threads: int) -> SessionsSettings | None:
    """How a user of `threads` cores would run `count` models at the same time; None where that means nothing."""
    lanes = min(count, threads)
    return SessionsSettings(lanes, threads // lanes) if lanes > 1 else None


class _Session(Protocol):
    """One model that a library runs, by the names of its own inputs and outputs."""

    def run(self, inputs: Arrays) -> dict[str, Any]: ...

    def bound(self, inputs: Arrays) -> Callable[[], object]: ...

    def close(self) -> None: ...


class SideBySide:
    """A session for each member of a composed model, with threads of its own; a composed model has the same inputs.

    Sessions of several threads stop spinning after a run: eight of two threads that do not took five times as long.
    Larger models begin before smaller ones, whatever the order of the members.
    """

    def __init__(self, whole: Model, members: Sequence[Member], settings: SessionsSettings) -> None:
        """Opens the sessions.

        Raises:
            InvalidModelError: where onnxruntime refuses a model.
            DeviceError: where the library is not installed, or OpenVINO refuses a model.
        """
        models = sorted((member_alone(whole, member) for member in members), key=_flops, reverse=True)
        self.settings = settings
        self._inputs, self._outputs = [spec.name for spec in whole.graph.inputs], whole.graph.outputs
        self._fed = [[spec.name for spec in model.graph.inputs] for model in models]
        self._sessions: list[Sequence[_Session]] = []
        try:
            self._sessions.extend(_opened(model, settings) for model in models)
        except BaseException:
            self._close_sessions()
            raise
        self._pool = ThreadPoolExecutor(settings.lanes) if settings.lanes > 1 else None

    def close(self) -> None:
        """Frees the sessions and all threads."""
        if self._pool is not None:
            self._pool.shutdown()
        self._close_sessions()

    def _close_sessions(self) -> None:
        for sessions in self._sessions:
            for session in sessions:
                session.close()

    def run(self, inputs: Arrays) -> dict[str, Any]:
        """Outputs of all models by the names that they have in the composed model, and in its order.

        Raises:
            UsageError: where an input is missing or unknown.
            ExecutionError: where the library fails.
        """
        check_names(inputs, self._inputs)

        def run(each: tuple[Sequence[_Session], list[str]]) -> dict[str, Any]:
            (session, *_), fed = each
            return session.run({name: inputs[name] for name in fed})

        found: dict[str, Any] = {}
        for outputs in map(run, self._each()) if self._pool is None else self._pool.map(run, self._each()):
            found.update(outputs)
        return {name: found[name] for name in self._outputs}

    def time(self, inputs: Arrays, repeats: int) -> tuple[float, ...]:
        """Microseconds of each of `repeats` runs of all models.

        Of sessions side by side the first run is timed alone. The others are handed out at once, and have the mean as
        their latency: a model of the next run begins as soon as there is a lane for it, as it does where each process
        or thread serves a model of its own. They are so many that they last for `SETTLED_SECONDS` at least, whatever
        `repeats`: threads that wake up together may share a core for some milliseconds.

        Raises:
            UsageError: where an input is missing or unknown.
            ExecutionError: where the library fails.
        """
        check_names(inputs, self._inputs)
        lanes = self.settings.lanes
        runs = [
            _Bound([each.bound({name: inputs[name] for name in fed}) for each in islice(cycle(sessions), lanes)])
            for sessions, fed in self._each()
        ]
        with running():
            if self._pool is None:
                return tuple(self._elapsed_us(runs) for _ in range(repeats))
            first_us = self._elapsed_us(runs)
            if repeats == 1:
                return (first_us,)
            in_a_row = max(repeats - 1, ceil(SETTLED_SECONDS * 1e6 / first_us))
            return (first_us, *[self._elapsed_us(runs * in_a_row) / in_a_row] * (repeats - 1))

    def _elapsed_us(self, runs: Sequence[_Bound]) -> float:
        """Microseconds until all have run; a thread that is done with one takes the next that nobody has taken."""
        waiting = iter(runs)

        def take(_: int) -> None:
            for run in waiting:
                run.run()

        began = time.perf_counter_ns()
        if self._pool is None:
            take(0)
        else:
            deque(self._pool.map(take, range(self.settings.lanes)), maxlen=0)
        return (time.perf_counter_ns() - began) / 1e3

    def _each(self) -> Iterable[tuple[Sequence[_Session], list[str]]]:
        return zip(self._sessions, self._fed, strict=True)


def _opened(model: Model, settings: SessionsSettings) -> Sequence[_Session]:
    """One session that may run as often at the same time as there are lanes, or as many that may run once each."""
    if settings.library == "onnxruntime":
        return (Reference(model, ReferenceSettings("sequential", settings.threads), keeps_spinning=False),)
    if settings.lanes == 1:
        return (OpenvinoModel(model, settings.threads),)
    return open_requests(model, settings.lanes * settings.threads, settings.lanes)


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
