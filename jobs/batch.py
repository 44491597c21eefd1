"""The job `batch`: several models in one file, run in the fastest way that is found on a device."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace

from iosched.jobs.batching.batch_baselines import (
    Method,
    OpenComposition,
    alone_us,
    batched_methods,
    mixed_methods,
    packed_methods,
    predicted_us,
    serial_methods,
)
from iosched.jobs.batching.batch_comparison import (
    BatchComparison,
    BatchResult,
    ClusterResult,
    MemberResult,
    compare_methods,
    document_of,
    predict_methods,
)
from iosched.jobs.batching.member_checks import check_members
from iosched.jobs.batching.model_clusters import BatchSettings, Cluster, composed, device_for, divided, planned_clusters
from iosched.jobs.batching.sampled_costs import SampledCosts
from iosched.jobs.observer import Interrupt, Observer, Silence, Uninterrupted
from iosched.jobs.open_model import profile_database
from iosched.jobs.schedules import schedule_by
from iosched.jobs.time_budget import PRICED, SEARCHED, TimeBudget, share_s
from iosched.models.batching.replacement import replaced, write_record
from iosched.models.batching.rewrite import weightless
from iosched.models.composition.compose import compose, footprint_of, together_nbytes
from iosched.models.composition.members import members_of
from iosched.models.errors import DeviceError, InvalidModelError, IoschedError, MismatchError, UsageError
from iosched.models.model import Model
from iosched.profiler.devices.profiled_device import OpenModel, ProfiledDevice, Running
from iosched.profiler.devices.resolve import remarks
from iosched.profiler.store.database import ProfileDatabase
from iosched.runtime.compare import compare, rtol_of
from iosched.runtime.inputs import Arrays, random_inputs
from iosched.runtime.reference import Reference
from iosched.scheduler.batching.costs import interpolated
from iosched.scheduler.batching.plan import Plan
from iosched.scheduler.document import ScheduleDocument
from iosched.scheduler.precision import DEFAULT_PRECISION
from iosched.scheduler.schedule import Stage, Strategy
from iosched.scheduler.transfer import fitted

CUT_SHORT = "The search is incomplete because the time ran out: continue it with a larger --budget."

__all__ = ["BatchResult", "BatchSettings", "ClusterResult", "batch", "planned_clusters", "replace_members"]


def batch(
    models: Mapping[str, Model],
    settings: BatchSettings,
    observer: Observer | None = None,
    interrupt: Interrupt | None = None,
) -> BatchResult:
    """Puts models into as few files as memory allows, and finds the fastest way to run those of each file.

    Four alternatives are compared interleaved: one model after another; concurrent sessions, or streams of a GPU;
    batched operators; and one schedule for all models. The last two ship only if they are faster than both others
    beyond noise. Outputs are checked against onnxruntime on each model. Models that cannot run together run one by one,
    and those over the memory limit are divided into several files; a note reports it.

    Args:
        models: by name; names prefix those of inputs and outputs, except shared inputs.
        interrupt: defers interruptions; by default they are raised at once.

    Raises:
        UsageError: a setting or a name is wrong, or a model takes more memory than is allowed.
        InvalidModelError: a model cannot run and is not skipped, or none is left.
        DeviceError: the device is not attached, or onnxruntime is not installed.
        ExecutionError: a kernel fails even for a single model.
        MismatchError: outputs of a model differ from onnxruntime's, even if it is the only one in its file.
        KeyboardInterrupt: the user interrupts and declines the fastest way known.
    """
    started = time.monotonic()
    clusters = planned_clusters(models, settings)
    device = device_for(models, settings)
    held = interrupt or Uninterrupted()
    with profile_database(device, settings.opening, settings.profile_db) as database, held.holding():
        return _BatchJob(models, settings, device, database, observer or Silence(), held, started).run(clusters)


@dataclass(frozen=True, eq=False)
class _BatchJob:
    """One call of `batch`. `database` is None if latencies are neither stored nor looked up."""

    models: Mapping[str, Model]
    settings: BatchSettings
    device: ProfiledDevice
    database: ProfileDatabase | None
    observer: Observer
    interrupt: Interrupt
    started: float

    def run(self, clusters: Sequence[Sequence[str]]) -> BatchResult:
        found: list[ClusterResult] = []
        left_out: dict[str, str] = {}
        notes: list[str] = []
        left = deque(clusters)
        while left:
            names = left.popleft()
            try:
                cluster = self._cluster(names, 1 + len(left))
            except (IoschedError, ValueError) as error:
                text = _first_line(error)
                if len(names) > 1:
                    notes.append(f"{', '.join(names)} cannot run together and run one by one instead: {text}")
                    left.extendleft((name,) for name in reversed(names))
                    continue
                if not self.settings.skip_broken or isinstance(error, UsageError):
                    raise
                left_out[names[0]] = f"{names[0]}: {text}"
                continue
            parts = self._parts(names, cluster.plan_nbytes, notes)
            left.extendleft(reversed(parts))
            found += [] if parts else [cluster]
        if not found:
            raise InvalidModelError(f"no model can run: {'; '.join(left_out.values())}")
        device, seconds = self.device.info, time.monotonic() - self.started
        notes = [*remarks(self.settings.device), *notes]
        return BatchResult(tuple(found), device.kind, device.name, device.cost_kind, seconds, left_out, tuple(notes))

    def _parts(self, names: Sequence[str], plan_nbytes: int | None, notes: list[str]) -> Sequence[Sequence[str]]:
        """Splits a cluster whose plan exceeds the memory limit, with a note; empty if it fits."""
        limit = self.settings.limit_nbytes(self.device)
        if plan_nbytes is None or limit is None or plan_nbytes <= limit:
            return ()
        text = f"{plan_nbytes / 1e6:,.3f} MB by its plan, over the limit of {limit / 1e6:,.3f} MB"
        if len(names) == 1:
            notes.append(f"{names[0]} needs {text}: a single model cannot be divided")
            return ()
        parts = divided({name: self.models[name] for name in names}, self.settings, limit, plan_nbytes)
        notes.append(f"{', '.join(names)} as one file needs {text}: divided into {len(parts)} files")
        return parts

    def _cluster(self, names: Sequence[str], n_left: int) -> ClusterResult:
        """Optimizes a cluster; the `n_left` remaining clusters share the rest of the budget evenly."""
        time_budget = TimeBudget(
            share_s(self.settings.budget_s, self.started, n_left), time.monotonic(), self.interrupt
        )
        models = {name: self.models[name] for name in names}
        cluster = composed(models, self.settings.shared_inputs, names[0] if len(names) == 1 else "batch")
        with ExitStack() as kept:
            return _ClusterJob(self, models, cluster, time_budget, kept).result()


@dataclass(frozen=True, eq=False)
class _ClusterJob:
    """Optimizes the models of one file.

    Attributes:
        models: the separate models by name.
        cluster: the same models in one graph.
        kept: closes the models opened here.
        notes: notes for the user, as keys.
    """

    job: _BatchJob
    models: Mapping[str, Model]
    cluster: Cluster
    time_budget: TimeBudget
    kept: ExitStack
    notes: dict[str, None] = field(default_factory=dict)

    def result(self) -> ClusterResult:
        whole = self.cluster.composition
        opened = self._opened(whole.model)
        if opened.baselines.only_way is not None:
            raise UsageError(f"no schedule runs in {self.job.settings.precision} on this device: remove --precision")
        base = OpenComposition(whole.model, whole.members, opened, shares=whole.shared > 0)
        return replace(self, time_budget=self.time_budget.reserving(opened))._fastest(base)

    def _opened(self, model: Model, alongside: OpenModel | None = None) -> OpenModel:
        return self.kept.enter_context(closing(self._open(model, alongside)))

    def _open(self, model: Model, alongside: OpenModel | None) -> OpenModel:
        return self.job.device.open(model, self.job.settings.opening, self.job.database, alongside=alongside)

    def _fastest(self, base: OpenComposition) -> ClusterResult:
        methods, here = self._methods(base), base.opened.attached
        if here is None:
            return self._result(base, methods, predict_methods(methods))
        inputs = random_inputs(self.cluster.model.graph.inputs)
        return self._result(base, methods, compare_methods(here, methods, inputs, self.time_budget, self._say_round))

    def _say_round(self, done: int, total: int) -> None:
        self.job.observer.progress(done, total, "comparing ways to run the models")

    def _result(self, base: OpenComposition, methods: Sequence[Method], compared: BatchComparison) -> ClusterResult:
        shipped, whole = compared.methods[compared.shipped], self.cluster.composition
        if shipped.target.groups:
            write_record(
                shipped.target.model.proto, whole.model.proto, shipped.target.groups, whole.model.weight_digests
            )
        on_paper = Running(0, {"precision": self.job.settings.precision, "launch": self.job.settings.launch})
        running = on_paper if base.opened.attached is None else shipped.running()
        document = document_of(self.job.device, compared, running)
        notes = self._check(shipped.target.model, document)
        return ClusterResult(
            model=shipped.target.model,
            document=document,
            members=tuple(self._members(base, methods)),
            rows=compared.rows,
            shipped=compared.shipped,
            reason=compared.reason,
            ratio=compared.ratio,
            batched=sum(map(len, shipped.target.groups)),
            shared=whole.shared,
            memory=whole.weights,
            estimated_nbytes=together_nbytes(map(footprint_of, self.models.values())),
            plan_nbytes=running.plan_nbytes,
            notes=(*self.notes, *compared.notes, *running.notes, *notes),
        )

    def _members(self, base: OpenComposition, methods: Sequence[Method]) -> Iterator[MemberResult]:
        alone: Sequence[float | None] = [None] * len(self.models)
        serial = next((method for method in methods if method.row == "serial"), None)
        if serial is not None and base.opened.is_schedulable:
            alone = alone_us(serial.target, serial.found.schedule)
        for (name, model), latency_us in zip(self.models.items(), alone, strict=True):
            yield MemberResult(name, len(model.proto.graph.node), latency_us)

    def _check(self, model: Model, document: ScheduleDocument) -> tuple[str, ...]:
        """Compares outputs with onnxruntime; a simulated device's rewritten model runs on onnxruntime."""
        is_measured = self.job.device.info.cost_kind == "measured"
        self.job.observer.progress(0, None, "comparing outputs with those of onnxruntime")
        try:
            inputs = random_inputs(self.cluster.model.graph.inputs)
            outputs = self._outputs(model, document, inputs)
            rtol = rtol_of(document.precision if is_measured else DEFAULT_PRECISION)
            check_members(outputs, inputs, self.models, self.cluster.composition.members, rtol=rtol)
        except (UsageError, DeviceError) as error:  # inputs cannot be made up, or onnxruntime is not installed
            if is_measured:
                raise
            return (f"Outputs were not compared with those of the separate models: {_first_line(error)}",)
        return ()

    def _outputs(self, model: Model, document: ScheduleDocument, inputs: Arrays) -> Mapping[str, object]:
        if self.job.device.info.cost_kind == "analytic":
            with Reference(model) as session:
                return session.run(inputs)
        with closing(self.job.device.executor(model, document, self.job.settings.threads)) as executor:
            return executor.run(inputs)

    def _methods(self, base: OpenComposition) -> list[Method]:
        until, policy = self.time_budget.is_over(SEARCHED), self.job.settings.policy
        self._say("searching for schedules of separate models")
        without = self._without(base)
        found = [] if policy == "packed" else list(serial_methods(without, until))
        if policy != "serial":
            found += packed_methods(without, until, with_ours=policy == "packed")
        if policy == "packed" and not found:  # a single model has nothing to run alongside
            found += serial_methods(without, until)
        if self.job.settings.batches:
            found += self._batching(base, list(mixed_methods(base, until)))
        self._note_if_over(SEARCHED)
        return found

    def _without(self, base: OpenComposition) -> OpenComposition:
        """The models as they run without iosched: separate inputs, no shared operators.

        Sessions of plain onnxruntime do that already; a schedule for a GPU needs a model without sharing.
        """
        if not base.shares or base.plain is not None or not base.opened.is_schedulable:
            return base
        # Without batching, nothing else could ship.
        if not self.job.settings.batches or not self.job.settings.shared_inputs:
            return replace(base, shares=False)
        without = compose(self.models)
        opened = self._opened(without.model, base.opened)
        pairs = zip(without.members, base.members, strict=True)
        fed = {called: whole.inputs[name] for own, whole in pairs for name, called in own.inputs.items()}
        return OpenComposition(without.model, without.members, opened, fed=fed)

    def _batching(self, base: OpenComposition, unbatched: list[Method]) -> Iterator[Method]:
        yield from unbatched
        if base.shares:
            yield from batched_methods(base)
        if len(base.members) < 2 or not base.opened.is_schedulable:
            return
        for plan in self._plans(base, unbatched):
            self._say("scheduling the batched models")
            model = self.cluster.batched(plan)
            target = OpenComposition(model, base.members, self._opened(model, base.opened), plan.all_groups())
            yield from batched_methods(target)
            yield from mixed_methods(target, self.time_budget.is_over(SEARCHED))

    def _plans(self, base: OpenComposition, unbatched: list[Method]) -> Iterator[Plan]:
        """Distinct plans that batch something.

        Separate operators are priced by isolated samples, although whole models side by side wait less for each other.
        With "auto", plans are also made with these prices multiplied by `_share`, and by the mean of `_share` and 1.
        """
        self._say("measuring the gain of batched operators")
        sampled = self.cluster.model if base.opened.attached is not None else weightless(self.cluster.model)
        costs = SampledCosts(sampled, self.cluster.ensemble, lambda model: self._best_us(model, base.opened))
        plan = self._plan(costs)
        self._note_if_over(PRICED)
        if not plan.groups:
            return
        yield plan
        if self.job.settings.policy != "auto":
            return
        share = _share(base.opened, costs, plan, min(predicted_us(each.found.schedule) for each in unbatched))
        known = {plan.all_groups()}
        for each in ((1 + share) / 2, share):
            less = self._plan(replace(costs, share=each))
            if less.groups and less.all_groups() not in known:
                known.add(less.all_groups())
                yield less

    def _plan(self, costs: SampledCosts) -> Plan:
        return self.cluster.plan(self.job.settings.policy, interpolated(costs, len(self.models)))

    def _best_us(self, model: Model, alongside: OpenModel) -> float:
        """Predicted latency of the best schedule; infinite if the device cannot schedule the model, or time is over."""
        is_over = self.time_budget.is_over(PRICED)
        if is_over():
            return math.inf
        try:
            with closing(self._open(model, alongside)) as opened:
                if not opened.is_schedulable:
                    return math.inf
                return predicted_us(schedule_by(opened, "both", deadline=is_over).schedule)
        except IoschedError:
            return math.inf

    def _note_if_over(self, part: float) -> None:
        if self.time_budget.is_over(part)() and not self.time_budget.interrupt.accepted:
            self.notes[CUT_SHORT] = None

    def _say(self, text: str) -> None:
        self.time_budget.ask()
        self.job.observer.progress(0, None, f"{', '.join(self.models)}: {text}")


def _share(opened: OpenModel, costs: SampledCosts, plan: Plan, best_us: float) -> float:
    """Latency of the best schedule without batching over the sum of the sampled operator latencies, at most 1.

    Groups of `plan` count side by side, all other operators one after another.
    """
    grouped = {opened.units.unit_of[name] for name in plan.groups}
    others = (name for name in opened.graph.by_name if name not in grouped)
    total_us = sum(opened.cost.stage_latency_us(Stage(Strategy.CONCURRENT, ((name,),))) for name in others)
    operators = ([plan.ensemble.graph.by_name[name] for name in group] for group in plan.all_groups())
    total_us += sum(costs.separate_us(each, len(each)) for each in operators)
    return min(best_us / total_us, 1.0) if 0 < total_us < math.inf and best_us < math.inf else 1.0


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def replace_members(
    whole: Model, document: ScheduleDocument, models: Mapping[str, Model]
) -> tuple[Model, ScheduleDocument, Mapping[str, tuple[str, ...]]]:
    """Replaces the weights of the members with these names by those of `models`, and keeps the schedule.

    Outputs of replaced members are compared with onnxruntime on each new model, those of others with the previous file.
    Also returns, by model, the weights that are no longer shared.

    Raises:
        UsageError: there is no such member, or its weights cannot be replaced.
        InvalidScheduleError: the schedule is not of this file.
        MismatchError: a member computes other values than it should.
        DeviceError: onnxruntime is not installed.
    """
    model, unshared = whole, {}
    for name, new in models.items():
        model, unshared[name] = replaced(model, name, new)
    _check_replaced(whole, model, models)
    return model, fitted(document, model), unshared


def _check_replaced(before: Model, after: Model, models: Mapping[str, Model]) -> None:
    inputs = random_inputs(before.graph.inputs)
    with Reference(before) as old, Reference(after) as new:
        expected, outputs = old.run(inputs), new.run(inputs)
    members = members_of(after.proto)
    check_members(outputs, inputs, models, members)
    kept = {name for member in members if member.name not in models for name in member.outputs.values()}
    found = compare({name: outputs[name] for name in kept}, {name: expected[name] for name in kept})
    if not found.passed:
        raise MismatchError(f"outputs of models that were not replaced have changed: {found.reasons[0]}")
