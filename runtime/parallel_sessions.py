"""Runs each member of a composed model in its own session, as users run several models without iosched."""

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
from iosched.runtime.openvino.openvino_model import OpenvinoModel, open_requests
from iosched.runtime.reference import Reference, ReferenceSettings
from iosched.runtime.session import running

Library = Literal["onnxruntime", "openvino"]
LIBRARIES: Mapping[Library, str] = {"onnxruntime": "onnxruntime", "openvino": "OpenVINO"}
"""Libraries that run sessions, with their display names."""

SETTLED_SECONDS = 0.05
"""Minimum duration of timed consecutive parallel runs."""


@dataclass(frozen=True)
class SessionsSettings:
    """Settings of sessions.

    Attributes:
        lanes: number of concurrent sessions; 1 runs them one after another.
        threads: threads of each session.
        library: the library of the sessions.
    """

    lanes: int = 1
    threads: int = 1
    library: Library = "onnxruntime"

    def __post_init__(self) -> None:
        if self.lanes < 1 or self.threads < 1:
            raise UsageError("the number of threads must be at least 1")

    @property
    def description(self) -> str:
        """Library and threads, for users."""
        each = f"{LIBRARIES[self.library]}, a session for each model"
        threads = f"{self.threads} thread{'s' * (self.threads > 1)}"
        if self.lanes == 1:
            return f"{each}, one after another, {threads}"
        return f"{each}, {self.lanes} at a time with {threads} each"


def serial_settings(threads: int) -> tuple[SessionsSettings, ...]:
    """Settings that a user of `threads` cores would try for serial sessions; the usual one first."""
    return tuple(SessionsSettings(1, count) for count in dict.fromkeys((threads, 1)))


def parallel_settings(count: int, threads: int) -> SessionsSettings | None:
    """The settings with which a user of `threads` cores would run `count` models concurrently; None for one lane."""
    lanes = min(count, threads)
    return SessionsSettings(lanes, threads // lanes) if lanes > 1 else None


class _MemberSession(Protocol):
    """One model in a library, with its own input and output names."""

    def run(self, inputs: Arrays) -> dict[str, Any]: ...

    def bound(self, inputs: Arrays) -> Callable[[], object]: ...

    def close(self) -> None: ...


class ParallelSessions:
    """A session for each member of a composed model, with its own threads; inputs are those of the composed model.

    Sessions of several threads stop spinning after a run: otherwise eight sessions of two threads took five times as
    long. Larger models start first.
    """

    def __init__(self, whole: Model, members: Sequence[Member], settings: SessionsSettings) -> None:
        """Open the sessions."""
        models = sorted((member_alone(whole, member) for member in members), key=_flops, reverse=True)
        self.settings = settings
        self._inputs, self._outputs = [spec.name for spec in whole.graph.inputs], whole.graph.outputs
        self._fed = [[spec.name for spec in model.graph.inputs] for model in models]
        self._sessions: list[Sequence[_MemberSession]] = []
        try:
            self._sessions.extend(_opened(model, settings) for model in models)
        except BaseException:
            self._close_sessions()
            raise
        self._pool = ThreadPoolExecutor(settings.lanes) if settings.lanes > 1 else None

    def close(self) -> None:
        """Free the sessions and all threads."""
        if self._pool is not None:
            self._pool.shutdown()
        self._close_sessions()

    def _close_sessions(self) -> None:
        for sessions in self._sessions:
            for session in sessions:
                session.close()

    def run(self, inputs: Arrays) -> dict[str, Any]:
        """Outputs of all models, in the names and the order of the composed model."""
        check_names(inputs, self._inputs)

        def run(each: tuple[Sequence[_MemberSession], list[str]]) -> dict[str, Any]:
            (session, *_), fed = each
            return session.run({name: inputs[name] for name in fed})

        found: dict[str, Any] = {}
        for outputs in map(run, self._each()) if self._pool is None else self._pool.map(run, self._each()):
            found.update(outputs)
        return {name: found[name] for name in self._outputs}

    def time(self, inputs: Arrays, repeats: int) -> tuple[float, ...]:
        """Microseconds of each of `repeats` runs of all models.

        For concurrent sessions, the first run is timed alone. All others are submitted at once and get the mean
        latency: a model of the next run starts as soon as a lane is free, as if each process or thread served its
        own model. They are timed for at least `SETTLED_SECONDS`, even beyond `repeats`: threads that wake up together
        may share a core for some milliseconds.
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
        """Microseconds until all runs are done; an idle thread takes the next run in the queue."""
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

    def _each(self) -> Iterable[tuple[Sequence[_MemberSession], list[str]]]:
        return zip(self._sessions, self._fed, strict=True)


def _opened(model: Model, settings: SessionsSettings) -> Sequence[_MemberSession]:
    if settings.library == "onnxruntime":
        return (Reference(model, ReferenceSettings("sequential", settings.threads), keeps_spinning=False),)
    if settings.lanes == 1:
        return (OpenvinoModel(model, settings.threads),)
    return open_requests(model, settings.lanes * settings.threads, settings.lanes)


class _Bound:
    """One session bound to the same inputs once for each concurrent run, each with its own outputs."""

    def __init__(self, runs: Sequence[Callable[[], object]]) -> None:
        self._idle: SimpleQueue[Callable[[], object]] = SimpleQueue()
        for run in runs:
            self._idle.put(run)

    def run(self) -> None:
        run = self._idle.get()
        try:
            run()
        finally:
            self._idle.put(run)


def _flops(model: Model) -> float:
    return sum(operator.flops for operator in model.graph.operators)
