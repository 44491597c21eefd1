"""Sends the same requests to alternatives that serve several models, and compares their latencies."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from statistics import median

from iosched.jobs.load_test.alternatives import OPENERS, Calls, Served, default_settings
from iosched.jobs.load_test.arrivals import Arrival, Segment, divided, poisson
from iosched.jobs.load_test.latencies import LoadRow
from iosched.jobs.load_test.sender import Answer, send
from iosched.jobs.observer import Observer, Silence
from iosched.models.errors import DeviceError, IoschedError, MismatchError
from iosched.models.model import Model
from iosched.profiler.devices.resolve import resolve
from iosched.profiler.measuring.idle import wait_until_idle
from iosched.profiler.measuring.statistics import least_samples, quantile
from iosched.runtime.compare import compare
from iosched.runtime.cores import cpu_count
from iosched.runtime.inputs import random_inputs
from iosched.runtime.reference import Reference

TOTAL_S = 60.0
"""All alternatives together end after about this time by default."""

DEADLINE_RUNS = 5.0
"""The default deadline in runs of a model alone."""

_SEGMENT_S, _MOST_SEGMENTS = 2.0, 10
_WARM_UP_S = 0.5
"""Requests of this time before each segment are not counted, but at most a share `_WARM_UP` of the segment."""
_LEAST_S = 1.0
_WARM_UP = 0.25
_LEAST_TIMEOUT_S = 0.5
_SENDING = 0.7
"""Share of the time in which requests that count are sent by default; the rest warms up, waits and drains."""
_LONE_RUNS, _LONE_S = 30, 1.0
_MORE = 1.1
"""A random number of requests may be this much lower than expected."""
_LATE = 0.2
"""The sender is late if it exceeds this share of the latency of the fastest model."""


@dataclass(frozen=True)
class LoadSettings:
    """The requests, and the alternatives that get them.

    Attributes:
        rates: requests per second, by model; empty with `arrivals`.
        arrivals: planned arrivals instead of Poisson processes.
        duration_s: time of the requests that count, for each alternative; by default, all end after `TOTAL_S`.
        deadlines_s: by model; by default `DEADLINE_RUNS` times its latency alone.
        names: alternatives of `OPENERS`; by default all.
        threads: the number of CPU cores; by default all that affinity and quota allow.
        seed: of the arrivals.
    """

    rates: Mapping[str, float]
    arrivals: tuple[Arrival, ...] = ()
    duration_s: float | None = None
    deadlines_s: Mapping[str, float] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    threads: int | None = None
    seed: int = 0


@dataclass(frozen=True)
class LoadResult:
    """The result of a load test.

    Attributes:
        rows: one for each model and alternative.
        seed: of the arrivals.
        lone_us: latency of each model on onnxruntime without other requests.
        missing: names of alternatives that were not measured, each with the reason.
    """

    rows: tuple[LoadRow, ...]
    device: str
    threads: int
    seed: int
    lone_us: Mapping[str, float]
    missing: Mapping[str, str]

    @property
    def names(self) -> tuple[str, ...]:
        """The alternatives."""
        return tuple(dict.fromkeys(row.name for row in self.rows))

    @property
    def first(self) -> tuple[LoadRow, ...]:
        """The rows of the first alternative; all others got the same requests."""
        return tuple(row for row in self.rows if row.name == self.rows[0].name)

    @property
    def seconds(self) -> float:
        """The time in which the requests of each alternative were sent, without warm-up requests."""
        return self.rows[0].seconds

    @property
    def lag_us(self) -> Mapping[str, float]:
        """The 99th percentile of the sender's lag, by alternative."""
        lags: dict[str, list[float]] = {}
        for row in self.rows:
            lags.setdefault(row.name, []).extend(each.lag_us for each in row.answers)
        return {name: quantile(each, 0.99) for name, each in lags.items() if each}

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences for the user."""
        return (*self._counts(), *self._late(), *self._unanswered())

    def _counts(self) -> Iterator[str]:
        least = least_samples(0.99)
        for row in self.first:
            if row.requests < least:
                few = f"{row.requests} requests of {row.model} are too few for p99, which takes {least}"
                yield f"{few}: use --duration {math.ceil(_MORE * least * row.seconds / max(row.requests, 1))}."

    def _late(self) -> Iterator[str]:
        most_us = _LATE * min(self.lone_us.values())
        late = [f"{name} {lag_us / 1e3:.1f} ms" for name, lag_us in self.lag_us.items() if lag_us > most_us]
        if late:
            yield f"In one request of 100, the sender was at least so late: {', '.join(late)}. Latencies include that."

    def _unanswered(self) -> Iterator[str]:
        for row in self.rows:
            reasons = Counter(each.reason for each in row.answers if each.reason)
            for reason, count in reasons.items():
                yield f"{row.name} did not answer {count} of {row.requests} requests of {row.model}: {reason}."


def load_test(models: Mapping[str, Model], settings: LoadSettings, observer: Observer | None = None) -> LoadResult:
    """Sends the same requests to each alternative in turn, A B C A B C, in short segments.

    First, outputs of each alternative are compared with those of onnxruntime.

    Raises:
        UsageError: inputs of a model cannot be made up.
        DeviceError: onnxruntime is not installed, or no alternative can be opened.
        MismatchError: iosched computes other outputs than onnxruntime.
        ExecutionError: a run does not end.
    """
    observer, threads, began_s = observer or Silence(), settings.threads or cpu_count(), time.monotonic()
    device = resolve("cpu").info
    observer.progress(0, None, "measuring each model alone")
    served = {name: served_alone(model, threads) for name, model in models.items()}
    missing: dict[str, str] = {}
    with ExitStack() as stack:
        opened: dict[str, Calls] = {}
        for name in dict.fromkeys(settings.names or OPENERS):
            observer.progress(len(opened), None, f"opening {name}")
            try:
                opened[name] = _checked(name, served, threads)
            except IoschedError as error:
                if name == "iosched":
                    raise
                missing[name] = str(error)
            else:
                stack.callback(opened[name].close)
        if not opened:
            raise DeviceError(f"no alternative can be opened: {'; '.join(missing.values())}")
        lone_us = {name: each.lone_us for name, each in served.items()}
        deadlines_s = {name: DEADLINE_RUNS * each_us / 1e6 for name, each_us in lone_us.items()}
        test = LoadTest(settings, {**deadlines_s, **settings.deadlines_s}, opened, observer)
        rows = test.rows(began_s + TOTAL_S - time.monotonic())
    return LoadResult(rows, device.name, threads, settings.seed, lone_us, missing)


def _checked(name: str, served: Mapping[str, Served], threads: int) -> Calls:
    """Opens an alternative, and compares its outputs with onnxruntime's.

    Raises:
        MismatchError: they differ.
    """
    alternative = OPENERS[name](served, threads)
    try:
        for model, each in served.items():
            found = compare(alternative.submit(model).result(), each.expected)
            if not found.passed:
                raise MismatchError(f"{name} computes other outputs of {model}: {found.reasons[0]}")
    except BaseException:
        alternative.close()
        raise
    return alternative


@dataclass(frozen=True, eq=False)
class LoadTest:
    """Open alternatives, and the requests for them with the deadline of each model."""

    settings: LoadSettings
    deadlines_s: Mapping[str, float]
    opened: Mapping[str, Calls]
    observer: Observer

    def rows(self, left_s: float) -> tuple[LoadRow, ...]:
        """Sends the requests, by default for at most `left_s`."""
        end_s = time.monotonic() + left_s if self.settings.duration_s is None else math.inf
        segments = self._segments(end_s - time.monotonic())
        answers: dict[str, list[Answer]] = {name: [] for name in self.opened}
        timeout_s = max(_LEAST_TIMEOUT_S, *self.deadlines_s.values())
        for count, segment in enumerate(segments, 1):
            round_s = time.monotonic()
            for name, alternative in self.opened.items():
                self.observer.progress(count - 1, len(segments), f"sending requests to {name}")
                wait_until_idle()
                answers[name] += send(alternative.submit, segment, timeout_s)
            if 2 * time.monotonic() - round_s > end_s:  # another round would end too late
                break
        seconds = sum(segment.seconds for segment in segments[:count])
        return tuple(
            self._row(name, model, seconds, answers[name]) for model in self.deadlines_s for name in self.opened
        )

    def _segments(self, left_s: float) -> Sequence[Segment]:
        """Segments of requests; by default, all alternatives end within `left_s`."""
        settings, planned = self.settings, self.settings.arrivals
        duration_s = settings.duration_s or max(_LEAST_S, _SENDING * left_s / len(self.opened))
        if planned:
            duration_s = min(duration_s, planned[-1].at_s + _LEAST_S)
        count = max(1, min(_MOST_SEGMENTS, int(duration_s / _SEGMENT_S)))
        warm_up_s = min(_WARM_UP_S, _WARM_UP * duration_s / count)
        return divided(
            planned or poisson(settings.rates, -warm_up_s, duration_s, settings.seed), duration_s, count, warm_up_s
        )

    def _row(self, name: str, model: str, seconds: float, answers: Sequence[Answer]) -> LoadRow:
        own = tuple(each for each in answers if each.model == model)
        rate = self.settings.rates.get(model) or len(own) / seconds
        return LoadRow(name, model, rate, self.deadlines_s[model] * 1e6, seconds, own)


def served_alone(model: Model, threads: int) -> Served:
    """A model with its outputs and its latency on onnxruntime alone."""
    inputs = random_inputs(model.graph.inputs)
    with Reference(model, default_settings(threads)) as session:
        expected = session.run(inputs)
        (first_us,) = session.time(inputs, 1)
        runs = min(_LONE_RUNS, max(3, int(_LONE_S * 1e6 / first_us)))
        return Served(model, inputs, expected, median(session.time(inputs, runs)))
