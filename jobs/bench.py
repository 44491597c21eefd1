"""The job `bench`: measures schedules and other runtimes interleaved."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from iosched.jobs.observer import Observer
from iosched.jobs.open_model import check_schedulable, opened
from iosched.jobs.row import ROWS, Row
from iosched.jobs.run import warn_of_other_device
from iosched.jobs.schedules import schedule_by
from iosched.models.errors import DeviceError, ExecutionError, SeparateProcessError, UsageError
from iosched.models.model import Model
from iosched.models.source import StrPath
from iosched.profiler.baselines.names import FOR_THROUGHPUT, SLOW_TO_OPEN
from iosched.profiler.devices.open_settings import OpenSettings
from iosched.profiler.devices.profiled_device import AttachedModel, Way, attached
from iosched.profiler.devices.resolve import resolve
from iosched.profiler.measuring.interleave import compare
from iosched.profiler.measuring.interleaved_models import Budget, closing_all, interference_notes
from iosched.profiler.measuring.statistics import LEAST_SAMPLES, Measurement, least_samples, summarize
from iosched.runtime.device import Device
from iosched.runtime.executor import Candidate
from iosched.runtime.inputs import Arrays, random_inputs
from iosched.scheduler.document import ScheduleDocument
from iosched.scheduler.precision import DEFAULT_PRECISION
from iosched.scheduler.strategies import COMPARED, LIMITED, StrategyName
from iosched.scheduler.transfer import fitted

_BUSY = """
import os, signal, sys, threading
signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C reaches the whole group; the parent decides when to end
threading.Thread(target=lambda: (sys.stdin.buffer.read(), os._exit(0))).start()  # ends with the parent, however it ends
print(flush=True)
while True:
    pass
"""

_NO_SCHEDULE = "the model has no schedule: create one with 'iosched optimize'"

MAX_SECONDS = 600.0
"""No further round begins once all runs together have taken this many seconds."""

_FEW_ROUNDS = (
    f"Fewer than {LEAST_SAMPLES} rounds cannot show which is faster, so no speedup is given: use more --rounds."
)

_ON_REQUEST = (*LIMITED, *SLOW_TO_OPEN, *FOR_THROUGHPUT)
"""Alternatives that need a separate search, or take minutes to open: measured only if requested by name."""


@dataclass(frozen=True)
class BenchResult:
    """The result of a benchmark.

    Attributes:
        rows: one row for each alternative that was measured, `sequential` first.
        missing: names of alternatives that were not measured, each with the reason.
        baseline: the row that `Row.over_baseline` is over, if one was named.
        background_load: the number of processes that kept a core busy while the rows were measured.
    """

    device: str
    rows: tuple[Row, ...]
    missing: tuple[tuple[str, str], ...]
    notes: tuple[str, ...] = ()
    baseline: str | None = None
    background_load: int = 0

    @property
    def samples_us(self) -> Mapping[str, tuple[float, ...]]:
        """The samples of each alternative, round by round, in microseconds; each is the median of a few runs."""
        return {row.name: row.latency.samples_us for row in self.rows}

    @property
    def runs_us(self) -> Mapping[str, tuple[float, ...]]:
        """All consecutive single runs of each alternative, in microseconds."""
        return {row.name: row.latency.every_run_us for row in self.rows}


def bench(
    model: Model,
    document: ScheduleDocument | None,
    *,
    names: Sequence[str] = (),
    baseline: str | None = None,
    device: str = "auto",
    threads: int | None = None,
    rounds: int = 50,
    background_load: int = 0,
    profile_db: StrPath | None = None,
    observer: Observer | None = None,
    on_start: Callable[[Sequence[str]], None] = lambda names: None,
) -> BenchResult:
    """Measures the alternatives `names` interleaved, A B C A B C, always with `sequential` and the model's schedule.

    On a GPU, each schedule is one CUDA graph, and all latencies are measured between events on the GPU.

    Args:
        document: its schedule, which "iosched" measures; None if it has none.
        names: alternatives of `ROWS`; by default all of the device, except those measured only on request.
        baseline: one of the alternatives measured, for `Row.over_baseline`.
        device: the device, as for `--device`.
        threads: the number of CPU cores; by default all of one socket that affinity and quota allow.
        rounds: the number of rounds, if there is time.
        background_load: the number of processes that keep a core busy while alternatives are measured.
        profile_db: the profile database; by default the user's.
        on_start: is called with the names of the alternatives before the work begins.

    Raises:
        InvalidScheduleError: the schedule was made for another structure, shape or type.
        UsageError: a name is unknown, the baseline is not measured, or inputs of the model cannot be made up.
        DeviceError: the device is not attached, onnxruntime is not installed, or the baseline cannot be opened.
        ExecutionError: a process of the background load ended early.
    """
    resolved = resolve(device, model)
    _check_names([*names, *([] if baseline is None else [baseline])])
    if document is not None:
        document = fitted(document, model)
        warn_of_other_device(document, device)
    if resolved.info.cost_kind == "analytic":
        resolved.executor(model, document)  # raises an error, since a simulated device runs nothing
    precision = _precision(document, resolved)
    settings = OpenSettings(threads, precision)
    database = None if profile_db is None else Path(profile_db)
    with opened(resolved, model, settings, database) as open_model:
        check_schedulable(open_model)
        alternatives = _Alternatives(model, document, attached(open_model), threads, observer, background_load)
        return alternatives.measured(names, baseline, rounds, on_start)


def _precision(document: ScheduleDocument | None, device: Device) -> str:
    """The precision of the schedule file, if it was made for this kind of device."""
    if document is None or document.device_kind != device.info.kind:
        return DEFAULT_PRECISION
    if document.shipped == "openvino" and document.precision != DEFAULT_PRECISION:
        raise UsageError(
            f"only OpenVINO runs this model in {document.precision}, so there is nothing to compare it with: time it"
            " with 'iosched run --repeat', or benchmark the original model"
        )
    return document.precision


@dataclass(frozen=True, eq=False)
class _Alternatives:
    model: Model
    document: ScheduleDocument | None
    here: AttachedModel
    threads: int | None
    observer: Observer | None
    background_load: int

    def measured(
        self, names: Sequence[str], baseline: str | None, rounds: int, on_start: Callable[[Sequence[str]], None]
    ) -> BenchResult:
        inputs = random_inputs(self.model.graph.inputs)
        openers = self._openers(inputs)
        shipped = [] if self.document is None else ["iosched"]
        usual = (name for name in openers if name not in _ON_REQUEST)
        asked = list(dict.fromkeys(["sequential", *shipped, *(names or usual)]))
        if baseline is not None and baseline not in asked:
            raise UsageError(
                f"the baseline {baseline!r} is not one of the rows {', '.join(asked)}: add --with {baseline}"
            )
        on_start(asked)
        candidates: dict[str, Candidate] = {}
        missing: list[tuple[str, str]] = []
        with closing_all(candidates):
            for name in dict.fromkeys([*asked[:1], *([] if baseline is None else [baseline]), *asked]):
                try:
                    candidates[name] = openers[name]() if name in openers else self._refused()
                except DeviceError as error:
                    if name in ("sequential", baseline):
                        raise
                    missing.append((name, str(error)))
            budget = Budget(rounds, MAX_SECONDS, repeats=rounds // 2, is_loaded=self.background_load > 0)
            with busy_processes(self.background_load):
                found = self._in_turn(candidates, budget, missing, baseline)
            of_candidates = (note for candidate in candidates.values() for note in candidate.notes())
            notes = tuple(dict.fromkeys((*interference_notes(found), *of_candidates)))
            in_flight = {name: each.in_flight for name, each in candidates.items()}
            rows = tuple(_rows(found, in_flight, baseline, self.model.batch_size))
            notes = (*_few_notes(rows), *notes)
            name = self.here.device.info.name
            return BenchResult(name, rows, tuple(missing), notes, baseline, self.background_load)

    def _in_turn(
        self, candidates: dict[str, Candidate], budget: Budget, missing: list[tuple[str, str]], baseline: str | None
    ) -> Mapping[str, Measurement]:
        """The latencies; if the process of a candidate ends, measures again without it."""
        try:
            return self.here.in_turn(candidates, budget, _progress(self.observer))
        except SeparateProcessError as error:
            if error.candidate == baseline:
                raise
            candidates.pop(error.candidate).close()
            missing.append((error.candidate, str(error)))
            return self._in_turn(candidates, budget, missing, baseline)

    def _openers(self, inputs: Arrays) -> Mapping[str, Callable[[], Candidate]]:
        """For each alternative of this device, by name, a function that opens it."""
        in_turn = self.here.one_after_another()
        return {
            "iosched": partial(self._shipped, inputs),
            **{name: partial(self._scheduled, name, inputs) for name in COMPARED},
            **{name: partial(self.here.ready, way, inputs) for name, way in in_turn.items() if name not in COMPARED},
            **{name: partial(opener, inputs) for name, opener in self.here.baselines.openers.items()},
        }

    def _shipped(self, inputs: Arrays) -> Candidate:
        if self.document is None:
            raise DeviceError(_NO_SCHEDULE)
        executor = self.here.device.executor(self.model, self.document, self.threads)
        return executor.ready(inputs)

    def _scheduled(self, strategy: StrategyName, inputs: Arrays) -> Candidate:
        found = schedule_by(self.here, strategy, observer=self.observer)
        return self.here.ready(Way(found.schedule), inputs)

    def _refused(self) -> Candidate:
        raise DeviceError(self.here.measuring.wording.other_device)


def _few_notes(rows: Sequence[Row]) -> Iterator[str]:
    if rows[0].samples < LEAST_SAMPLES:
        yield _FEW_ROUNDS
    fewest, least = min(rows, key=lambda row: row.runs), least_samples(0.99)
    runs = fewest.runs
    if runs < least:
        rounds = math.ceil(least * fewest.samples / runs)
        rough = "a reliable p90 or any p99" if runs < least_samples(0.9) else "p99"
        yield f"{runs} runs of {fewest.name} are too few for {rough}: use --rounds {rounds}."


def _check_names(names: Sequence[str]) -> None:
    unknown = [name for name in names if name not in ROWS]
    if unknown:
        raise UsageError(f"unknown alternative {unknown[0]!r}: choose from {', '.join(ROWS)}")


def _progress(observer: Observer | None) -> Callable[[int, int], None] | None:
    if observer is None:
        return None
    return lambda done, total: observer.progress(done, total, "interleaved runs")


def _per_run(found: Measurement, in_flight: int) -> Measurement:
    """Time between the ends of consecutive runs, with `in_flight` concurrent runs."""
    return found if in_flight == 1 else summarize([each / in_flight for each in found.samples_us])


def _rows(
    found: Mapping[str, Measurement], in_flight: Mapping[str, int], baseline: str | None, images: int
) -> Iterator[Row]:
    per_run = {name: _per_run(each, in_flight[name]) for name, each in found.items()}
    for name, each in found.items():
        over_sequential, over_baseline = (
            None if over is None else compare(per_run[over], per_run[name]) for over in ("sequential", baseline)
        )
        yield Row(name, each, "", in_flight[name], over_sequential, over_baseline, images)


@contextmanager
def busy_processes(count: int) -> Iterator[tuple[int, ...]]:
    """The ids of `count` processes that each keep a core busy within the context.

    Raises:
        OSError: the system starts no further process.
        ExecutionError: one of them ended early.
    """
    with ExitStack() as stack:
        running = [stack.enter_context(_busy_process()) for _ in range(count)]
        for each in running:
            assert each.stdout is not None
            each.stdout.readline()
        yield tuple(each.pid for each in running)
        if any(each.poll() is not None for each in running):
            raise ExecutionError("a process of the background load ended early: measure again")


@contextmanager
def _busy_process() -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-I", "-S", "-c", _BUSY]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.kill()
