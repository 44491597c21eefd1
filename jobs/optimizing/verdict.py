"""Says which schedule ships and why, after measuring, after computing latencies, or if there is nothing to schedule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import cast

from iosched.jobs.optimizing.comparison import LIBRARIES, OPENVINO, REFERENCE, TENSORRT, ComparedModels, Comparison
from iosched.jobs.schedules import priced
from iosched.jobs.time_budget import TimeBudget
from iosched.models.errors import MismatchError
from iosched.models.model import Model
from iosched.profiler.baselines.openvino import OpenvinoBaseline
from iosched.profiler.devices.profiled_device import LEVEL, AttachedModel, OpenModel, Running, Uncertainty
from iosched.profiler.measuring.deciding import Decision, Trial
from iosched.profiler.measuring.interleave import relative_speed_text
from iosched.profiler.measuring.statistics import Interval, Measurement
from iosched.runtime.reference import ReferenceSettings
from iosched.scheduler.baselines import greedy, sequential
from iosched.scheduler.document import WITHOUT_OPENVINO, Alternative
from iosched.scheduler.document_format import Shipped
from iosched.scheduler.schedule import Schedule, Scope, Stage
from iosched.scheduler.search import SearchResult
from iosched.scheduler.strategies import BY_IMAGE, LANES, ONE_SESSION, is_linked, runs_as_one
from iosched.scheduler.teams import Teams

_NOTHING_TO_SCHEDULE = "nothing to schedule: the model has inputs without a fixed size, or no operators"


_NOT_FASTER = (
    "No gain of {precision} over plain onnxruntime in fp32 was measured: without --precision the model may be faster,"
    " and is more accurate."
)


@dataclass(frozen=True)
class LatencyIntervals:
    """Uncertainty of the latencies of the schedule found and of the baselines.

    Attributes:
        latency_us: of the schedules "iosched", "sequential" and "greedy", in microseconds.
        speedup: by "sequential" and "greedy", the speedup of the schedule found.
        level: the intended coverage probability of the intervals.
    """

    latency_us: Mapping[str, Interval]
    speedup: Mapping[str, Interval]
    level: float = LEVEL


@dataclass(frozen=True)
class Verdict:
    """The decision on which schedule ships, with its facts for the schedule file and the result.

    Attributes:
        shipped: "iosched" for the schedule found, "sequential", "reference" for plain onnxruntime, "openvino" or
            "tensorrt".
        reason: why.
        schedule: the schedule in the file, of the model's operators.
        kernels_before: kernel launches of one run without the schedule found.
        running: facts about running the model as it ships.
        latencies: of "iosched", "sequential", "greedy", "reference", "openvino" and "tensorrt", where they are known.
            Those that were measured have samples.
        proven: the scope in which `schedule` is proven optimal: "whole", "blocks" or None.
        alternatives: the other schedules that were considered, of the model's operators.
        ratio: the speedup of `candidate` over the faster plain way; None if nothing was measured, or too seldom.
        verdict: what `ratio` says; None if nothing of ours was measured.
        candidate: the best of ours: "iosched" for the schedule found, or the name of one that needs no search.
        sequential_measured_share: on a simulated GPU, the part of the latency of the sequential schedule, from 0 to 1,
            that was measured on another machine; None if nothing was, or if the device is attached.
        intervals: the uncertainty of computed latencies; None if they are measured.
        teams: how the cores share the work as the model ships; None if all cores work together.
    """

    shipped: Shipped
    reason: str
    schedule: Schedule
    kernels_before: int | None
    running: Running
    latencies: Mapping[str, Measurement] = field(default_factory=dict)
    proven: Scope | None = None
    alternatives: tuple[Alternative, ...] = ()
    ratio: Interval | None = None
    verdict: Decision | None = None
    candidate: str | None = None
    sequential_measured_share: float | None = None
    intervals: LatencyIntervals | None = None
    teams: Teams | None = None

    def noting(self, notes: tuple[str, ...]) -> Verdict:
        """The same, with more notes for the user."""
        return replace(self, running=replace(self.running, notes=(*self.running.notes, *notes)))


def measured_verdict(
    attached: AttachedModel, found: SearchResult, compared: ComparedModels, time_budget: TimeBudget
) -> Verdict:
    """The verdict on whole models that were compared: one of ours ships if it is faster beyond noise."""
    trial, measured = compared.trial, compared.measured
    chosen = trial.chosen
    # Where the library is missing, the file runs as it would have shipped without it, but not in teams.
    without = trial.chosen_without(chosen) if chosen in LIBRARIES else chosen
    if chosen in LIBRARIES and without == BY_IMAGE:
        without = REFERENCE
    found_name = trial.candidate if trial.candidate in compared.found else compared.found[0]
    in_file = found_name if without == REFERENCE else without
    labels = dict.fromkeys(compared.found, "iosched")
    shipped = _shipped(chosen, labels)
    words = {
        **dict.fromkeys(compared.found, "the schedule found"),
        "sequential": attached.measuring.wording.sequential,
        ONE_SESSION: "the rewritten model in one session of onnxruntime",
        BY_IMAGE: "one image at a time on each core",
        "greedy": "the greedy schedule",
        LANES: "the schedule by list scheduling",
        REFERENCE: "plain onnxruntime",
        OPENVINO: "OpenVINO",
        TENSORRT: "TensorRT",
    }
    running = attached.running(compared.ways.get(without), trial.in_common(compared.found))
    if shipped in LIBRARIES:
        running = replace(running, n_kernels=None)
    n_rounds = trial.n_rounds(trial.leader)
    rest_notes = _rest_notes(trial, trial.chosen_baseline, chosen, words)
    hurried = time_budget.notes(n_rounds) if trial.verdict == "undecided" else ()
    notes = (*hurried, *compared.notes, *rest_notes, *running.notes)
    runtime = {WITHOUT_OPENVINO: _shipped(without, labels)} if shipped == OPENVINO else {}
    schedules = {name: attached.units.expanded(way.schedule) for name, way in compared.ways.items()}
    in_turn = trial.best([name for name in attached.one_after_another() if name in measured])
    shown = {
        "iosched": chosen if shipped == "iosched" else found_name,
        "sequential": chosen if shipped == "sequential" else in_turn,
        **{name: name for name in ("greedy", REFERENCE, *LIBRARIES) if name in measured},
    }
    return Verdict(
        shipped=shipped,
        reason=_measured_reason(trial, words),
        schedule=schedules[in_file],
        proven=found.proven if in_file in compared.found else None,
        alternatives=tuple(
            Alternative(label, schedules[name], measured[name].median_us)
            for label, name in (("iosched", found_name), ("sequential", in_turn), ("greedy", "greedy"))
            if name != in_file and name in measured
        ),
        latencies={label: measured[name] for label, name in shown.items()},
        kernels_before=attached.running(None, {}).n_kernels,
        running=with_setting(replace(running, runtime={**running.runtime, **runtime}, notes=notes), compared.setting),
        ratio=_labelled(trial.speedup(trial.fastest_baseline, trial.candidate), labels),
        verdict=trial.verdict,
        candidate=labels.get(trial.candidate, trial.candidate),
        teams=None if (way := compared.ways.get(chosen)) is None else way.teams,
    )


def _shipped(chosen: str, labels: Mapping[str, str]) -> Shipped:
    """A schedule that needs no search ships as "iosched", too."""
    label = labels.get(chosen, chosen)
    return "iosched" if label in ("greedy", BY_IMAGE, LANES, ONE_SESSION) else cast(Shipped, label)


def _labelled(ratio: Interval | None, labels: Mapping[str, str]) -> Interval | None:
    if ratio is None:
        return None
    return replace(ratio, of="/".join(labels.get(name, name) for name in ratio.of.split("/")))


def _measured_reason(trial: Trial, words: Mapping[str, str]) -> str:
    ours, plain = words[trial.candidate], words[trial.fastest_baseline]
    found = trial.speedup(trial.fastest_baseline, trial.candidate)
    if found is None:
        return f"too few runs to tell whether {ours} is faster than {plain}; repeat the command to continue"
    speed = relative_speed_text(ours, found, plain)
    if trial.verdict == "faster":
        return speed
    than_usual = None if trial.chosen == trial.baselines[0] else trial.speedup(trial.baselines[0], trial.chosen)
    if than_usual is not None:
        speed = f"{relative_speed_text(plain, than_usual, words[trial.baselines[0]])}, and {speed}"
    if trial.verdict == "slower":
        return speed if than_usual else f"{plain} is faster: {speed}"
    if trial.verdict == "equal":
        return f"no difference found: {speed}"
    return f"undecided: {speed}, too noisy to tell; repeat the command to continue"


def reduced_verdict(
    attached: AttachedModel,
    only_way: OpenvinoBaseline,
    found: SearchResult,
    time_budget: TimeBudget,
    comparison: Comparison,
) -> Verdict:
    """The verdict on a model that only `only_way` runs in the requested precision.

    There is no baseline of the same precision; plain onnxruntime is measured in 32-bit floats.
    """
    precision = only_way.precision
    try:
        agreement = only_way.agreement
    except MismatchError as error:
        raise MismatchError(f"in {precision} {error}\nRemove --precision") from error
    compared = comparison.of_libraries(only_way)
    measured = compared.measured
    running = with_setting(attached.running(None, {}), compared.setting)
    runtime = {
        **running.runtime,
        "precision": precision,
        "error": {"max_abs": agreement.max_abs, "max_rel": agreement.max_rel},
        WITHOUT_OPENVINO: REFERENCE,
    }
    slow = () if compared.trial.verdict == "faster" else (_NOT_FASTER.format(precision=precision),)
    off = f"up to {agreement.max_abs:.2g}, {agreement.max_rel:.2g} of their scale"
    n_rounds = compared.trial.n_rounds(OPENVINO)
    return Verdict(
        shipped="openvino",
        reason=f"only OpenVINO runs in {precision} on this device; its outputs differ from fp32 by {off}",
        schedule=attached.units.expanded(found.schedule),
        latencies=measured,
        kernels_before=running.n_kernels,
        running=replace(
            running,
            n_kernels=None,
            runtime=runtime,
            notes=(*time_budget.notes(n_rounds), *compared.notes, *slow, *running.notes),
        ),
    )


def unscheduled_verdict(attached: AttachedModel, found: SearchResult) -> Verdict:
    """The verdict on a model without a runnable schedule: plain onnxruntime ships."""
    running, plain = attached.running(None, {}), attached.baselines.onnxruntime
    return Verdict(
        shipped="reference",
        reason=_NOTHING_TO_SCHEDULE,
        schedule=attached.units.expanded(found.schedule),
        proven=found.proven,
        kernels_before=running.n_kernels,
        running=with_setting(running, None if plain is None else plain.settings[0]),
    )


def predicted_verdict(model: Model, opened: OpenModel, runtime: Mapping[str, str], found: SearchResult) -> Verdict:
    """The verdict by computed latencies: the schedule found ships if it is faster than the sequential one.

    It ships even if the gain is within the model's error, since it is then more likely faster than slower.

    Args:
        runtime: the settings that the latencies are computed for; "runtime" in the schedule file.
    """
    predicted = {
        name: priced(opened, schedule)
        for name, schedule in (
            ("iosched", found.schedule), ("sequential", sequential(opened.graph)), ("greedy", greedy(opened.graph))
        )
    }  # fmt: skip
    latency_us = {name: sum(stage.predicted_us or 0.0 for stage in each.stages) for name, each in predicted.items()}
    # Sums of the same latencies in another order differ in the last bits.
    is_faster = latency_us["iosched"] < latency_us["sequential"] * (1 - 1e-9)
    shipped: Shipped = "iosched" if is_faster else "sequential"
    details = opened.details
    intervals = intervals_of(details.uncertainty, predicted)
    proven, chosen = found.proven, predicted[shipped]
    if not is_faster:  # It is as fast as the schedule found. Its only block is the whole graph.
        proven = "whole" if proven == "whole" else None
        chosen = Schedule(tuple(replace(block, optimal=proven == "whole") for block in chosen.blocks))
    share, of_sequential = (
        details.imported.share(each.stages, opened.cost.stage_latency_us) for each in (chosen, predicted["sequential"])
    )
    measured, in_file = {} if share is None else {"measured_share": share}, opened.units.expanded(chosen)
    return Verdict(
        shipped=shipped,
        reason=_reason(shipped, latency_us, intervals, share),
        schedule=in_file,
        proven=proven,
        alternatives=tuple(
            Alternative(name, opened.units.expanded(each)) for name, each in predicted.items() if name != shipped
        ),
        latencies={name: Measurement(each, each, each, ()) for name, each in latency_us.items()},
        candidate=LANES if any(map(is_linked, found.schedule.stages)) else None,
        kernels_before=len(model.graph.operators),
        running=Running(sum(map(kernel_count, in_file.stages)), {**runtime, **measured}, details.imported.notes),
        sequential_measured_share=of_sequential,
        intervals=intervals,
    )


def intervals_of(uncertainty: Uncertainty | None, schedules: Mapping[str, Schedule]) -> LatencyIntervals | None:
    """Intervals of computed latencies; None if latencies are measured.

    Args:
        schedules: by name; "iosched" is the one found, and compared with all others.
    """
    if uncertainty is None:
        return None
    stages = {name: tuple(schedule.stages) for name, schedule in schedules.items()}
    found = stages["iosched"]
    return LatencyIntervals(
        {name: uncertainty.latency_us(each) for name, each in stages.items()},
        {name: uncertainty.ratio(each, found) for name, each in stages.items() if name != "iosched"},
    )


def kernel_count(stage: Stage) -> int:
    """Kernels of a stage on a simulated GPU."""
    return 1 if runs_as_one(stage) else len(stage.operators)


def _reason(
    shipped: Shipped, latency_us: Mapping[str, float], intervals: LatencyIntervals | None, measured_share: float | None
) -> str:
    by = "the analytic model" if measured_share is None else "measured and computed latencies"
    if shipped == "sequential":
        return f"by {by}, the schedule found is not faster than one operator after another"
    if intervals is not None and intervals.speedup["sequential"].is_equal:
        return "it is as fast as one operator after another, within the uncertainty of the analytic model"
    times = latency_us["sequential"] / latency_us["iosched"]
    return f"by {by} it runs at {times:.2f}x the speed of one operator after another"


def with_setting(running: Running, setting: ReferenceSettings | None) -> Running:
    """`running` with plain onnxruntime's setting among the settings of the runtime."""
    if setting is None:
        return running
    return replace(running, runtime={**running.runtime, "reference": asdict(setting)})


def _rest_notes(trial: Trial, plain: str, shipped: str, words: Mapping[str, str]) -> tuple[str, ...]:
    found = trial.speedup_after_idle(plain, shipped)
    if found is None or not found.is_slower:
        return ()
    speed = relative_speed_text(words[shipped], found, words[plain])
    return (f"After idle, {speed}, which is better for a model that runs seldom.",)
