"""The job `batch`: several models in one file, run in the fastest way that is found on a device."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial

from iosched.jobs.batching.candidates import Candidates, Desk
from iosched.jobs.batching.comparison import Compared, compare_rivals, predict_rivals
from iosched.jobs.batching.plan import Cluster, composed, device_for, divided, memory_limit_nbytes, planned_clusters
from iosched.jobs.batching.result import BatchResult, ClusterResult, MemberResult, document_of
from iosched.jobs.batching.rivals import Rival, Site
from iosched.jobs.batching.schedules import alone_us
from iosched.jobs.batching.settings import BatchSettings
from iosched.jobs.interrupt import Interrupt, Uninterrupted
from iosched.jobs.member_checks import check_members
from iosched.jobs.opening import profile_database
from iosched.jobs.pace import Pace, share_s
from iosched.jobs.progress import Observer, Silence
from iosched.models.batching.record import note_record
from iosched.models.composition.footprint import footprint_of, together_nbytes
from iosched.models.errors import DeviceError, InvalidModelError, IoschedError, UsageError
from iosched.models.model import Model
from iosched.profiler.devices.device import OpenModelHere
from iosched.profiler.devices.resolve import remarks
from iosched.profiler.devices.ways import Running
from iosched.runtime.compare import rtol_of
from iosched.runtime.inputs import Arrays, random_inputs
from iosched.runtime.reference import Reference
from iosched.scheduler.document import ScheduleDocument
from iosched.scheduler.precision import DEFAULT_PRECISION

__all__ = ["BatchResult", "BatchSettings", "ClusterResult", "batch", "planned_clusters"]


def batch(
    models: Mapping[str, Model],
    settings: BatchSettings,
    observer: Observer | None = None,
    interrupt: Interrupt | None = None,
) -> BatchResult:
    """Puts models into as few files as memory allows, and finds the fastest way to run those of each file.

    Four ways are compared in turn: one model after another, by plain onnxruntime or our schedules; side by side in
    sessions, or on a GPU in streams; batched, that is with one operator for the equal operators of several models where
    it is worth it; and by a schedule for all, batched or not, in which models run side by side where they are apart.
    The last two ship only where they are faster than both others beyond the noise. What ships computes what onnxruntime
    computes of each model alone: that is checked. Models that cannot be run together are run one by one, and those
    whose plan takes more memory than is allowed go into more files; a note says so.

    Args:
        models: by name; the names begin those of inputs and outputs, but of shared inputs.
        settings: for what, and how hard to try.
        observer: is shown the progress.
        interrupt: holds back interruptions; by default they are raised at once.

    Raises:
        UsageError: a setting or a name is wrong, or a model takes more memory than is allowed.
        InvalidModelError: a model cannot be run, and is not to be skipped; or none is left.
        DeviceError: the device is not attached, or onnxruntime is not installed.
        ExecutionError: a kernel fails also where a model runs alone.
        MismatchError: a model computes something else than alone, also by itself.
        KeyboardInterrupt: the user interrupts, and does not want the fastest way known.
    """
    started = time.monotonic()
    clusters = planned_clusters(models, settings)
    device = device_for(models, settings)
    held = interrupt or Uninterrupted()
    with profile_database(device, settings.opening, settings.profile_db) as database, held.holding():
        desk = Desk(device, settings.opening, database)
        return _Job(models, settings, desk, observer or Silence(), held, started).run(clusters)


@dataclass(frozen=True, eq=False)
class _Job:
    """One call of `batch`, with all that its steps need."""

    models: Mapping[str, Model]
    settings: BatchSettings
    desk: Desk
    observer: Observer
    interrupt: Interrupt
    started: float

    def run(self, clusters: Sequence[Sequence[str]]) -> BatchResult:
        """Finds a file for each cluster; clusters that fail are taken apart, and those that are too large divided."""
        found: list[ClusterResult] = []
        left_out: dict[str, str] = {}
        notes: list[str] = []
        left = deque(clusters)
        while left:
            names = left.popleft()
            try:
                cluster = self._cluster(names, self._pace(1 + len(left)))
            except (IoschedError, ValueError) as error:
                if len(names) == 1:
                    self._leave_out(names[0], error, left_out)
                    continue
                notes.append(f"{', '.join(names)} cannot be run together, and are run one by one: {_first_line(error)}")
                left.extendleft((name,) for name in reversed(names))
                continue
            parts = self._parts(names, cluster.plan_nbytes, notes)
            left.extendleft(reversed(parts))
            found += [] if parts else [cluster]
        if not found:
            raise InvalidModelError(f"no model is left: {'; '.join(left_out.values())}")
        device = self.desk.device.info
        notes = [*remarks(self.settings.device), *notes]
        seconds = time.monotonic() - self.started
        return BatchResult(tuple(found), device.kind, device.name, device.cost_kind, seconds, left_out, tuple(notes))

    def _parts(self, names: Sequence[str], plan_nbytes: int | None, notes: list[str]) -> Sequence[Sequence[str]]:
        """The parts of a cluster whose plan takes more memory than is allowed, which a note says; else none."""
        limit = memory_limit_nbytes(self.desk.device, self.settings)
        if plan_nbytes is None or limit is None or plan_nbytes <= limit:
            return ()
        text = f"{plan_nbytes / 1e6:,.3f} MB by the plan found, and {limit / 1e6:,.3f} MB are allowed"
        if len(names) == 1:
            notes.append(f"{names[0]} takes {text}: one model is not divided")
            return ()
        parts = divided({name: self.models[name] for name in names}, self.settings, limit, plan_nbytes)
        notes.append(f"{', '.join(names)} take {text}: they go into {len(parts)} files")
        return parts

    def _leave_out(self, name: str, error: Exception, left_out: dict[str, str]) -> None:
        if not self.settings.skip_broken or isinstance(error, UsageError):
            raise error
        left_out[name] = f"{name}: {_first_line(error)}"

    def _pace(self, n_left: int) -> Pace:
        """The time of the next of so many clusters that are left: they share what is left of the budget evenly."""
        left_s = share_s(self.settings.budget_s, self.started, n_left)
        return Pace(left_s, time.monotonic(), self.interrupt)

    def _cluster(self, names: Sequence[str], pace: Pace) -> ClusterResult:
        models = {name: self.models[name] for name in names}
        name = names[0] if len(names) == 1 else "batch"
        cluster = composed(models, self.settings.shared_inputs, name)
        with ExitStack() as kept:
            candidates = Candidates(models, cluster, self.desk, self.settings, pace, self.observer, kept)
            apart = candidates.site()
            here = apart.opened.here
            if apart.opened.baselines.only_way is not None:
                raise UsageError(f"no schedule runs in {self.settings.precision} on this device: leave --precision out")
            pace = pace.reserving(apart.opened)
            rivals = replace(candidates, pace=pace).rivals(apart)
            compared = predict_rivals(rivals) if here is None else self._measured(here, rivals, cluster, pace)
            compared = replace(compared, notes=(*candidates.notes, *compared.notes))
            return self._result(models, cluster, apart, rivals, compared)

    def _measured(self, here: OpenModelHere, rivals: Sequence[Rival], cluster: Cluster, pace: Pace) -> Compared:
        inputs = random_inputs(cluster.model.graph.inputs)
        return compare_rivals(here, rivals, inputs, pace, partial(_say_round, self.observer))

    def _result(
        self, models: Mapping[str, Model], cluster: Cluster, apart: Site, rivals: Sequence[Rival], compared: Compared
    ) -> ClusterResult:
        shipped = compared.rivals[compared.shipped]
        if shipped.site.groups:
            whole = cluster.model
            note_record(shipped.site.model.proto, whole.proto, shipped.site.groups, whole.weight_digests)
        here = apart.opened.here
        running = _on_paper(self.settings) if here is None else shipped.running()
        others = [rival for row, rival in compared.rivals.items() if row != compared.shipped]
        document = document_of(self.desk.device, shipped, others, compared.rows, running)
        notes = self._check(models, cluster, shipped.site.model, document)
        serial = next((rival for rival in rivals if rival.row == "serial"), None)
        return ClusterResult(
            model=shipped.site.model,
            document=document,
            members=tuple(_members(models, apart, serial)),
            rows=compared.rows,
            shipped=compared.shipped,
            reason=compared.reason,
            ratio=compared.ratio,
            batched=shipped.site.n_batched,
            shared=cluster.composition.shared,
            memory=cluster.composition.weights,
            estimated_nbytes=together_nbytes(map(footprint_of, models.values())),
            plan_nbytes=running.plan_nbytes,
            notes=(*compared.notes, *running.notes, *notes),
        )

    def _check(
        self, models: Mapping[str, Model], cluster: Cluster, model: Model, document: ScheduleDocument
    ) -> tuple[str, ...]:
        """Holds what ships to onnxruntime; a note says where that cannot be done.

        On a device that is not at hand, the rewritten model is run by onnxruntime.
        """
        self.observer.progress(0, None, "comparing outputs with onnxruntime's")
        try:
            inputs = random_inputs(cluster.model.graph.inputs)
        except UsageError as error:
            return (f"Outputs were not compared with those of the models alone: {_first_line(error)}",)
        computed_in = DEFAULT_PRECISION if self.desk.device.info.cost_kind == "analytic" else document.precision
        try:
            outputs = self._outputs(model, document, inputs)
            check_members(outputs, inputs, models, cluster.members, rtol=rtol_of(computed_in))
        except DeviceError as error:
            if self.desk.device.info.cost_kind == "measured":
                raise
            return (f"Outputs were not compared with those of the models alone: {_first_line(error)}",)
        return ()

    def _outputs(self, model: Model, document: ScheduleDocument, inputs: Arrays) -> Mapping[str, object]:
        if self.desk.device.info.cost_kind == "analytic":
            with Reference(model) as session:
                return session.run(inputs)
        with closing(self.desk.device.executor(model, document, self.settings.threads)) as executor:
            return executor.run(inputs)


def _members(models: Mapping[str, Model], apart: Site, serial: Rival | None) -> list[MemberResult]:
    alone: Sequence[float | None] = [None] * len(models)
    if serial is not None and apart.is_schedulable:
        site = serial.site
        alone = alone_us(site.opened, site.model, site.members, serial.found.schedule)
    return [
        MemberResult(name, len(model.proto.graph.node), latency_us)
        for (name, model), latency_us in zip(models.items(), alone, strict=True)
    ]


def _on_paper(settings: BatchSettings) -> Running:
    return Running(0, {"precision": settings.precision, "launch": settings.launch})


def _say_round(observer: Observer, done: int, total: int) -> None:
    observer.progress(done, total, "comparing the ways to run the models")


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
