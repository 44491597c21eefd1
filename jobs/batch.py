"""The job `batch`: several models in one file, run in the fastest way that is found on a device."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from iosched.jobs.batching.cluster import ClusterJob, first_line
from iosched.jobs.batching.comparison import BatchResult, ClusterResult
from iosched.jobs.batching.plan import BatchSettings, composed, device_for, divided, planned_clusters
from iosched.jobs.interrupt import Interrupt, Uninterrupted
from iosched.jobs.opening import profile_database
from iosched.jobs.pace import Pace, share_s
from iosched.jobs.progress import Observer, Silence
from iosched.models.errors import InvalidModelError, IoschedError, UsageError
from iosched.models.model import Model
from iosched.profiler.devices.device import ProfiledDevice
from iosched.profiler.devices.resolve import remarks
from iosched.profiler.store.database import ProfileDatabase

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
        return _Job(models, settings, device, database, observer or Silence(), held, started).run(clusters)


@dataclass(frozen=True, eq=False)
class _Job:
    """One call of `batch`, with all that its steps need."""

    models: Mapping[str, Model]
    settings: BatchSettings
    device: ProfiledDevice
    database: ProfileDatabase | None
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
                cluster = self._cluster(names, 1 + len(left))
            except (IoschedError, ValueError) as error:
                text = first_line(error)
                if len(names) > 1:
                    notes.append(f"{', '.join(names)} cannot be run together, and are run one by one: {text}")
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
            raise InvalidModelError(f"no model is left: {'; '.join(left_out.values())}")
        device = self.device.info
        notes = [*remarks(self.settings.device), *notes]
        seconds = time.monotonic() - self.started
        return BatchResult(tuple(found), device.kind, device.name, device.cost_kind, seconds, left_out, tuple(notes))

    def _parts(self, names: Sequence[str], plan_nbytes: int | None, notes: list[str]) -> Sequence[Sequence[str]]:
        """The parts of a cluster whose plan takes more memory than is allowed, which a note says; else none."""
        limit = self.settings.limit_nbytes(self.device)
        if plan_nbytes is None or limit is None or plan_nbytes <= limit:
            return ()
        text = f"{plan_nbytes / 1e6:,.3f} MB by the plan found, and {limit / 1e6:,.3f} MB are allowed"
        if len(names) == 1:
            notes.append(f"{names[0]} takes {text}: one model is not divided")
            return ()
        parts = divided({name: self.models[name] for name in names}, self.settings, limit, plan_nbytes)
        notes.append(f"{', '.join(names)} take {text}: they go into {len(parts)} files")
        return parts

    def _cluster(self, names: Sequence[str], n_left: int) -> ClusterResult:
        """The file of a cluster; so many that are left share what is left of the budget evenly."""
        pace = Pace(share_s(self.settings.budget_s, self.started, n_left), time.monotonic(), self.interrupt)
        models = {name: self.models[name] for name in names}
        cluster = composed(models, self.settings.shared_inputs, names[0] if len(names) == 1 else "batch")
        with ExitStack() as kept:
            job = ClusterJob(models, cluster, self.settings, self.device, self.database, pace, self.observer, kept)
            return job.result()
