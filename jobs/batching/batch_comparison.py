"""The result of `batch`: ways to run several models are compared, and for each file it is decided which one ships."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite
from typing import cast

from iosched.jobs.batching.batch_baselines import Method, predicted_us
from iosched.jobs.decision import decide
from iosched.jobs.observer import Interrupt
from iosched.jobs.row import Row
from iosched.jobs.schedule_file import document_from, search_record
from iosched.jobs.time_budget import OPENED, TimeBudget
from iosched.models.composition.compose import MemoryUse
from iosched.models.errors import DeviceError, ExecutionError, IoschedError, MismatchError
from iosched.models.model import Model
from iosched.profiler.devices.profiled_device import AttachedModel, Running
from iosched.profiler.measuring.interleaved_models import Budget, closing_all, contenders, interference_notes
from iosched.profiler.measuring.statistics import LEAST_SAMPLES, Interval, Measurement
from iosched.runtime.device import Device
from iosched.runtime.executor import Candidate
from iosched.runtime.inputs import Arrays
from iosched.scheduler.batching.policy_names import ROW_NAMES, UNBATCHED, RowName
from iosched.scheduler.document import OPENVINO, Alternative, ScheduleDocument
from iosched.scheduler.pruning import DEFAULT_PRUNING
from iosched.scheduler.strategies import RecordedStrategy

_STRATEGIES: Mapping[RowName, RecordedStrategy] = {
    "serial": "both", "packed": "packed", "batched": "sequential", "mixed": "mixed",
}  # fmt: skip


@dataclass(frozen=True)
class BatchComparison:
    """The ways that were compared, and which one ships.

    Attributes:
        methods: the fastest way of each row.
        rows: their latencies, in the order of `ROW_NAMES`.
        shipped: the row that ships.
        reason: why.
        ratio: its speedup, or else that of the first other row, over the faster of serial and packed; None if there is
            one row, or too few runs.
        notes: notes for the user on the comparison.
    """

    methods: Mapping[RowName, Method]
    rows: tuple[Row, ...]
    shipped: RowName
    reason: str
    ratio: Interval | None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class MemberResult:
    """A model; `latency_us` is that of its own schedule alone, if known."""

    name: str
    n_nodes: int
    latency_us: float | None


@dataclass(frozen=True, eq=False)
class ClusterResult:
    """Several models in one file.

    Attributes:
        members: the models in it, in the given order.
        rows: the ways that were compared, in the order of `ROW_NAMES`.
        shipped: which of them runs the file.
        reason: why.
        ratio: the speedup of what ships, or else of the first other row, over the faster of serial and packed; None if
            unknown.
        batched: the number of operators of the models that are batched.
        shared: the number of nodes left out because another computes the same.
        memory: bytes of weights, of the models alone and together.
        estimated_nbytes: estimated memory of weights and tensors together, by which clusters are formed.
        plan_nbytes: the same by the plan that ships, see `Running`; None if no plan of ours ships, or the device is not
            attached.
    """

    model: Model
    document: ScheduleDocument
    members: tuple[MemberResult, ...]
    rows: tuple[Row, ...]
    shipped: RowName
    reason: str
    ratio: Interval | None
    batched: int
    shared: int
    memory: MemoryUse
    estimated_nbytes: int
    plan_nbytes: int | None = None
    notes: tuple[str, ...] = ()

    def latency_us(self, name: str) -> float | None:
        """The latency of a row; None if it was not compared."""
        return next((row.latency_us for row in self.rows if row.name == name), None)


@dataclass(frozen=True, eq=False)
class BatchResult:
    """The result of `batch`.

    Attributes:
        clusters: the files to write.
        device_kind: "cpu" or "cuda".
        cost: "measured" or "analytic".
        left_out: the models that are in no file, since they cannot be run, and why.
    """

    clusters: tuple[ClusterResult, ...]
    device_kind: str
    device_name: str
    cost: str
    seconds: float
    left_out: Mapping[str, str]
    notes: tuple[str, ...]

    @property
    def n_models(self) -> int:
        """The number of models in all files."""
        return sum(len(cluster.members) for cluster in self.clusters)

    @property
    def memory(self) -> MemoryUse:
        """Bytes of weights of all models, alone and in the files."""
        each = [cluster.memory for cluster in self.clusters]
        return MemoryUse(sum(one.alone_nbytes for one in each), sum(one.together_nbytes for one in each))

    @property
    def rows(self) -> tuple[Row, ...]:
        """The ways to run all models once, one cluster after another; leaves out ways that a cluster does not have.

        Several clusters have no intervals, since sums of medians have none.
        """
        if len(self.clusters) == 1:
            return self.clusters[0].rows
        named = ([row for cluster in self.clusters for row in cluster.rows if row.name == name] for name in ROW_NAMES)
        return tuple(_summed(rows) for rows in named if len(rows) == len(self.clusters))

    @property
    def shipped(self) -> RowName | None:
        """The row that ships; None if clusters differ."""
        found = {cluster.shipped for cluster in self.clusters}
        return found.pop() if len(found) == 1 else None


def _summed(rows: Sequence[Row]) -> Row:
    rested = [row.rested_us for row in rows if row.rested_us is not None]
    rested_us = (sum(rested),) if len(rested) == len(rows) else ()
    return Row(rows[0].name, Measurement(sum(row.latency_us for row in rows), 0.0, inf, (), rested_us=rested_us))


def document_of(device: Device, compared: BatchComparison, running: Running) -> ScheduleDocument:
    """The schedule file of the method that ships; others that run a schedule of the same model are its alternatives.

    Args:
        running: facts about running the one that ships.
    """
    method = compared.methods[compared.shipped]
    model, attached = method.target.model, method.target.opened.attached
    latency_us: dict[str, float | None] = {row.name: row.latency_us for row in compared.rows}
    return replace(
        document_from(model, device, attached, method.schedule),
        shipped=method.row,
        search=search_record(_STRATEGIES[method.row], DEFAULT_PRUNING, method.found, attached),
        latency_us={
            "predicted": method.found.schedule.predicted_us,
            "measured": None if attached is None else latency_us[method.row],
            **latency_us,
        },
        runtime=dict(running.runtime),
        alternatives=tuple(
            Alternative(other.row, other.schedule, None if attached is None else latency_us[other.row])
            for other in compared.methods.values()
            if other.row != method.row and other.target is method.target and other.library is None
        ),
    )


WORDS: Mapping[str, str] = {
    "serial": "running one model after another",
    "packed": "running models side by side",
    "batched": "batching operators of several models",
    "mixed": "one schedule for all models",
}
"""Names of rows in sentences."""

_FEW, _MORE = Budget(rounds=3, max_seconds=6.0, least_rounds=1), Budget(rounds=9)
"""Limits for measuring all ways, and then those that may be the fastest of their row."""

_HURRIED = Budget(rounds=LEAST_SAMPLES)

_NO_TIME = "OpenVINO was not compared in every setting because the time ran out: use a larger --budget."


_LEAST_GAIN = 1.005
"""Minimum speedup by computed latencies: a table would not show a smaller one."""

_Choice = tuple[RowName, str, Interval | None]
"""The row to ship, the reason, and the ratio."""

_Choose = Callable[[Mapping[str, Measurement], RowName, Sequence[RowName]], _Choice]
"""Chooses what ships by latencies: the plain row or another."""


def compare_methods(
    attached: AttachedModel,
    methods: Sequence[Method],
    inputs: Arrays,
    time_budget: TimeBudget,
    observer: Callable[[int, int], None],
) -> BatchComparison:
    """Measures methods interleaved: all ways of each row briefly, then the fastest way of each row.

    Methods that the device cannot run are left out, and OpenVINO if its outputs differ or time is too short to open it.

    Args:
        attached: a model that is open on the device.
        methods: ways to run the same models, at least one.
        inputs: of the composed model.
        time_budget: the available time.
        observer: is called after each round with the completed and the total number of rounds.
    """
    ready: dict[Method, Candidate] = {}
    with closing_all(ready):
        notes = _open(methods, inputs, time_budget, ready)
        usual_us = _usual_us(attached, ready, time_budget)
        best = _best_of_rows(usual_us)
        candidates: dict[str, Candidate] = {row: ready[method] for row, method in best.items()}
        budget = time_budget.comparison_of(attached.measuring.budget, [usual_us[method] for method in best.values()])
        measured = _interleaved(attached, candidates, budget, time_budget.interrupt, observer)
        return replace(_compared(best, measured, _choose_measured), notes=(*interference_notes(measured), *notes))


def _open(
    methods: Sequence[Method], inputs: Arrays, time_budget: TimeBudget, ready: dict[Method, Candidate]
) -> tuple[str, ...]:
    refused: list[IoschedError] = []
    notes: dict[str, None] = {}
    is_late = time_budget.is_over(OPENED)
    for method in sorted(methods, key=lambda method: method.library == OPENVINO):
        time_budget.ask()
        if method.library == OPENVINO and is_late():
            notes |= {} if time_budget.interrupt.accepted else {_NO_TIME: None}
            continue
        try:
            ready[method] = method.ready(inputs)
        except MismatchError as error:
            notes[f"OpenVINO was not compared because its outputs differ from those of onnxruntime: {error}."] = None
        except (DeviceError, ExecutionError) as error:
            refused.append(error)
    if not ready:
        raise refused[0]
    return tuple(notes)


def _usual_us(here: AttachedModel, ready: Mapping[Method, Candidate], time_budget: TimeBudget) -> dict[Method, float]:
    """Median latencies of a few interleaved rounds, or only of more rounds of the ways that may be the fastest of their
    row; or of the second of two runs, if time is short.

    Not the minimum, which is low when spinning threads happen to meet at once.
    """
    time_budget.ask()
    found_us = (
        {method: each.time(2)[-1] for method, each in ready.items()} if isfinite(time_budget.remaining_s()) else {}
    )
    left = [*ready]
    for usual in (_FEW, _MORE):
        budget = time_budget.choice(usual, [found_us.get(method, 0.0) for method in left])
        if budget is None or not left:
            break
        names = {str(index): method for index, method in enumerate(left)}
        taken = here.in_turn({name: ready[method] for name, method in names.items()}, budget)
        measured = {method: taken[name] for name, method in names.items()}
        again = {method.row for method in left}  # a dropped way may not win because the machine is slower now
        found_us = {method: us for method, us in found_us.items() if method.row not in again}
        found_us |= {method: each.median_us for method, each in measured.items()}
        left = _undecided(measured)
        time_budget.ask()
    return found_us


def _undecided(measured: Mapping[Method, Measurement]) -> list[Method]:
    """The ways of rows in which several may be the fastest."""
    rows = [{way: each for way, each in measured.items() if way.row == row} for row in ROW_NAMES]
    ways = [contenders(row) for row in rows if row]
    return [way for row in ways if len(row) > 1 for way in row]


def _best_of_rows(usual_us: Mapping[Method, float]) -> dict[RowName, Method]:
    rows = {row: [method for method in usual_us if method.row == row] for row in ROW_NAMES}
    return {row: min(ways, key=lambda way: usual_us[way]) for row, ways in rows.items() if ways}


def _choose_measured(measured: Mapping[str, Measurement], plain: RowName, others: Sequence[RowName]) -> _Choice:
    found = decide(measured, plain, others)
    return cast(RowName, found.chosen), found.reason(WORDS), found.ratio()


def predict_methods(methods: Sequence[Method]) -> BatchComparison:
    """Compares methods by the latencies of a simulated device; of equally fast ones, one without batching ships."""
    best = _best_of_rows({method: predicted_us(method.found.schedule) for method in methods})
    return _compared(best, {row: _predicted(method) for row, method in best.items()}, _choose_predicted)


def _choose_predicted(predicted: Mapping[str, Measurement], plain: RowName, others: Sequence[RowName]) -> _Choice:
    chosen, plain_us = plain, predicted[plain].median_us
    for name in others:
        chosen = name if predicted[name].median_us * _LEAST_GAIN < predicted[chosen].median_us else chosen
    if chosen == plain:
        return plain, f"the analytic model predicts nothing faster than {WORDS[plain]}", None
    times = plain_us / predicted[chosen].median_us
    return chosen, f"by the analytic model {WORDS[chosen]} runs at {times:.2f}x the speed of {WORDS[plain]}", None


def _compared(
    methods: Mapping[RowName, Method], latencies: Mapping[str, Measurement], choose: _Choose
) -> BatchComparison:
    """Compares batching with the faster of serial and packed, which ships if nothing is faster.

    Without batching, the faster one is compared with the other.
    """
    rows = tuple(Row(name, latencies[name], method.text) for name, method in methods.items())
    if len(rows) == 1:
        (only,) = methods
        return BatchComparison(methods, rows, only, f"{WORDS[only]} is the only alternative", None)
    fastest_first = sorted(methods, key=lambda name: latencies[name].median_us)
    plain, *slower = [name for name in fastest_first if name in UNBATCHED] or [*methods][:1]
    others = [name for name in methods if name not in (*UNBATCHED, plain)] or slower
    chosen, reason, ratio = choose(latencies, plain, others)
    if methods[chosen].target.fed is not None:  # its inputs differ from the requested ones
        chosen = next(name for name in fastest_first if methods[name].target.fed is None)
        reason += f"; because the models share inputs, {WORDS[chosen]} ships instead"
    return BatchComparison(methods, rows, chosen, reason, ratio)


def _predicted(method: Method) -> Measurement:
    known, schedule = method.target.opened.details.uncertainty, method.found.schedule
    found = Interval(0.0, 0.0, inf) if known is None else known.latency_us(tuple(schedule.stages))
    return Measurement(schedule.predicted_us or 0.0, found.low, found.high, ())


class _StoppedError(Exception):
    """The user interrupted the comparison."""


def _interleaved(
    attached: AttachedModel,
    candidates: Mapping[str, Candidate],
    budget: Budget,
    interrupt: Interrupt,
    observer: Callable[[int, int], None],
) -> Mapping[str, Measurement]:
    """Measures interleaved; after an interruption, measures briefly again if the user wants a result."""

    def round_done(done: int, total: int) -> None:
        if interrupt.came:
            raise _StoppedError
        observer(done, total)

    try:
        return attached.in_turn(candidates, budget, round_done)
    except _StoppedError:
        interrupt.ask()
        return attached.in_turn(candidates, _HURRIED, round_done)
