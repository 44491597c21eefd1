"""Schedules and other runtimes measured side by side, in turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from iosched.jobs.fitting import fitted
from iosched.jobs.opening import check_schedulable, opened
from iosched.jobs.progress import Observer
from iosched.jobs.schedules import schedule_by
from iosched.models.errors import DeviceError, UsageError
from iosched.models.model import Model
from iosched.profiler.devices.device import OpenModelHere, OpenSettings, Way
from iosched.profiler.devices.resolve import resolve
from iosched.profiler.measuring.in_turn import Budget, Candidate, close_all
from iosched.profiler.measuring.interleave import compare
from iosched.profiler.measuring.statistics import LEAST_SAMPLES, Measurement
from iosched.profiler.peers.names import ON_CPU, ON_GPU, SLOW_TO_OPEN
from iosched.runtime.inputs import Arrays, random_inputs
from iosched.scheduler.document import ScheduleDocument
from iosched.scheduler.precision import DEFAULT_PRECISION
from iosched.scheduler.strategy_names import COMPARED, LIMITED, StrategyName

_NO_SCHEDULE = "the model carries no schedule; make one with 'iosched optimize'"

NAMES = ("iosched", *COMPARED, *ON_CPU, *ON_GPU)

MAX_SECONDS = 600.0
"""Of running, after which no further round begins."""

_FEW_ROUNDS = f"From fewer than {LEAST_SAMPLES} rounds it cannot be told which is faster: no speed-up is given."

_ON_REQUEST = (*LIMITED, *SLOW_TO_OPEN)
"""What takes a search of its own, or minutes to be opened."""


@dataclass(frozen=True)
class BenchRow:
    """One alternative; latencies in microseconds, of runs in a row.

    `speedup` is against `sequential`, the median of ratios within rounds, and `speedup_low` and `speedup_high` are the
    ends of its confidence interval; None where there are too few rounds for one. `rested_us` is the median after a
    rest; None on a GPU.
    """

    name: str
    median_us: float
    p10_us: float
    p90_us: float
    min_us: float
    samples: int
    speedup: float | None
    speedup_low: float | None
    speedup_high: float | None
    rested_us: float | None = None


@dataclass(frozen=True)
class BenchResult:
    """All rows of one run, every sample, what was left out with the reason, and sentences on what should be known."""

    device: str
    rows: tuple[BenchRow, ...]
    samples_us: Mapping[str, tuple[float, ...]]
    missing: tuple[tuple[str, str], ...]
    notes: tuple[str, ...] = ()


def bench(
    model: Model,
    document: ScheduleDocument | None,
    *,
    names: Sequence[str] = (),
    device: str = "auto",
    threads: int | None = None,
    rounds: int = 50,
    profile_db: Path | None = None,
    observer: Observer | None = None,
) -> BenchResult:
    """Measures the alternatives `names` in turn, A B C A B C; `sequential` is always among them.

    Without names these are all that the device has, but for "dos" and what takes minutes to be opened. On a GPU,
    schedules are one CUDA graph each, and all is timed there.

    Raises:
        InvalidScheduleError: the schedule is one of another structure, shape or type.
        UsageError: a name is unknown, or the model's inputs cannot be made up.
        DeviceError: the device or onnxruntime is not there.
    """
    where = resolve(device, model)
    _check_names(names)
    document = None if document is None else fitted(document, model)
    if where.cost_kind == "analytic":
        where.executor(model, document)  # says that nothing runs there
    precision = DEFAULT_PRECISION if document is None else document.precision
    settings = OpenSettings(threads, precision)
    with opened(where, model, settings, profile_db) as there:
        assert there.here is not None
        check_schedulable(there)
        alternatives = _Alternatives(model, document, there.here, threads, observer)
        return alternatives.measured(names, rounds)


@dataclass(frozen=True, eq=False)
class _Alternatives:
    """What can be measured of one model on one device."""

    model: Model
    document: ScheduleDocument | None
    here: OpenModelHere
    threads: int | None
    observer: Observer | None

    def measured(self, names: Sequence[str], rounds: int) -> BenchResult:
        """Opens what is there of `names`, or of all, and measures it in turn."""
        inputs = random_inputs(self.model.graph.inputs)
        ready = self._openers(inputs)
        usual = [name for name in ready if name not in _ON_REQUEST]
        candidates = {"sequential": ready["sequential"]()}
        missing: list[tuple[str, str]] = []
        try:
            for name in dict.fromkeys(names or usual):
                try:
                    if name not in candidates:
                        candidates[name] = ready[name]() if name in ready else self._refused()
                except DeviceError as error:
                    missing.append((name, str(error)))
            found = self.here.in_turn(candidates, Budget(rounds, MAX_SECONDS), _progress(self.observer))
            return _result(self.here.device.name, found, missing, candidates["sequential"].notes())
        finally:
            close_all(candidates.values())

    def _openers(self, inputs: Arrays) -> Mapping[str, Callable[[], Candidate]]:
        """All that this device has, by name."""
        return {
            "iosched": partial(self._shipped, inputs),
            **{name: partial(self._scheduled, name, inputs) for name in COMPARED},
            **self.here.rivals(inputs),
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
        raise DeviceError(self.here.wording.elsewhere)


def _result(
    device: str, found: Mapping[str, Measurement], missing: Sequence[tuple[str, str]], notes: Sequence[str] = ()
) -> BenchResult:
    rows = tuple(_row(name, measured, found["sequential"]) for name, measured in found.items())
    samples_us = {name: measured.samples_us for name, measured in found.items()}
    few = () if len(samples_us["sequential"]) >= LEAST_SAMPLES else (_FEW_ROUNDS,)
    return BenchResult(device, rows, samples_us, tuple(missing), (*few, *notes))


def _check_names(names: Sequence[str]) -> None:
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        raise UsageError(f"unknown alternative {unknown[0]!r}: choose from {', '.join(NAMES)}")


def _progress(observer: Observer | None) -> Callable[[int, int], None] | None:
    if observer is None:
        return None
    return lambda done, total: observer.progress(done, total, "measuring in turn")


def _row(name: str, found: Measurement, baseline: Measurement) -> BenchRow:
    compared = compare(baseline, found)
    speedup = (None,) * 3 if compared is None else (compared.speedup, compared.low, compared.high)
    rested_us = None if found.rested is None else found.rested.median_us
    row = BenchRow(name, found.median_us, found.p10_us, found.p90_us, found.min_us, len(found.samples_us), *speedup)
    return replace(row, rested_us=rested_us)
