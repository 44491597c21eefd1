"""A model opened on the CPU of this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

from iosched.models.batch_independence import with_batch_size
from iosched.models.errors import UsageError
from iosched.models.graph import ComputationGraph
from iosched.models.model import Model
from iosched.profiler.baselines.onnxruntime import OnnxruntimeBaseline, open_best, open_parallel
from iosched.profiler.baselines.openvino import OpenvinoBaseline, open_openvino
from iosched.profiler.baselines.requests import open_sessions, open_streams, timed
from iosched.profiler.devices.cpu.measured_cost import CpuStageCost
from iosched.profiler.devices.open_settings import OpenSettings
from iosched.profiler.devices.profiled_device import (
    AttachedModel,
    Baselines,
    CostDetails,
    MeasuringFacts,
    OpenModel,
    Prices,
    ProfiledDevice,
    Running,
    Way,
    Wording,
)
from iosched.profiler.devices.throughput import Throughputs
from iosched.profiler.measuring import disturbance
from iosched.profiler.measuring.idle import wait_until_idle
from iosched.profiler.measuring.interleaved_models import Budget, TakeRound, measure_interleaved, rounds_of
from iosched.profiler.measuring.statistics import Measurement
from iosched.profiler.store.database import ProfileDatabase
from iosched.runtime.cores import cpu_count
from iosched.runtime.cpu.backend import CpuBackend
from iosched.runtime.cpu.lane_cpus import LaneCpus
from iosched.runtime.cpu.remarks import core_remarks
from iosched.runtime.cpu.team_model import TeamBackends, lower_in_teams, open_divided
from iosched.runtime.executor import Candidate
from iosched.runtime.faults import Faults
from iosched.runtime.inputs import Arrays
from iosched.runtime.memory import check_fits
from iosched.runtime.session import load_onnxruntime
from iosched.scheduler.baselines import one_session, sequential
from iosched.scheduler.effort import Effort
from iosched.scheduler.precision import DEFAULT_PRECISION
from iosched.scheduler.schedule import Schedule
from iosched.scheduler.strategies import ONE_SESSION
from iosched.scheduler.teams import Teams
from iosched.scheduler.unit_graph import Unit, UnitGraph, shown, units_text

CPU_EFFORT = Effort(bound_slack=0.95, tolerance=0.015, max_measurements=80)
"""Bounds are lowered a little: consecutive operators share the cache, and timings are noisy. After 80 measured stages
of a block, the gap to its bound is a few percent, see benchmarks/search.py. A tolerance of 3 % lost as much on a cell
of NASNet-Mobile, and 1.5 % nothing (benchmarks/reports/search.md), with no more measurements there.
"""

CPU_PRICES = Prices(measurement_s=0.1, comparison_s=8.0, samples_alone=2)
"""A stage rarely takes longer to measure, up to half a second, see `measured_cost.STAGE_SETTINGS`."""

COMPARISON_WITH_OPENVINO_S = 12.0
"""Replaces `comparison_s` with OpenVINO, which opens slowly and is checked."""

BUDGET = Budget(repeats=7)

_WORDING = Wording(
    sequential="one operator at a time on all cores",
    baseline="plain onnxruntime",
    other_device="runs on a GPU: use --device cuda",
)


@dataclass(frozen=True, eq=False)
class OpenOnCpu:
    """A model opened on the CPU of this machine; see `AttachedModel`.

    Attributes:
        asked: the requested units, which onnxruntime's fusions may have enlarged.
        most: the largest number of threads of libraries; by default one for each lane.
    """

    device: ProfiledDevice
    model: Model
    cost: CpuStageCost
    precision: str = DEFAULT_PRECISION
    effort: Effort = CPU_EFFORT
    asked: tuple[Unit, ...] = ()
    most: int | None = None

    @property
    def _backend(self) -> CpuBackend:
        return self.cost.backend

    @property
    def graph(self) -> ComputationGraph:
        """The graph of units: operators that onnxruntime fuses are one unit."""
        return self._backend.graph

    @property
    def units(self) -> UnitGraph:
        """Translates schedules between operators and units."""
        return self._backend.coarse.units

    @property
    def details(self) -> CostDetails:
        """Throughputs without a peak, which is unknown, and idle shares from the database."""
        return CostDetails(Throughputs(self.graph), self.cost.idle_share)

    @property
    def attached(self) -> AttachedModel:
        """This object."""
        return self

    @property
    def is_schedulable(self) -> bool:
        """Whether the model can be planned in this precision, see `CpuBackend.is_supported`."""
        return self.precision == DEFAULT_PRECISION and self._backend.is_supported()

    @cached_property
    def measuring(self) -> MeasuringFacts:
        """Conditions of whole-model measurements, with OpenVINO if compared."""
        compared, second = self.baselines.openvino, self.baselines.openvino or self.baselines.only_way
        prices = CPU_PRICES if compared is None else replace(CPU_PRICES, comparison_s=COMPARISON_WITH_OPENVINO_S)
        more = {} if second is None else {"openvino": second.version}
        versions = {"onnxruntime": load_onnxruntime().__version__, **more}
        return MeasuringFacts(prices, BUDGET, _WORDING, versions, units_text(self.asked))

    @cached_property
    def baselines(self) -> Baselines:
        """Baselines with at most one thread per usable core: they spin, and more threads make them much slower.

        OpenVINO is the only way to run a precision that onnxruntime's kernels do not support.
        """
        cores = min(self.most or self._backend.lanes, cpu_count())
        plain, openvino = OnnxruntimeBaseline(self.model, cores), OpenvinoBaseline(self.model, cores, self.precision)
        openers = {name: partial(opener, self.model, cores) for name, opener in CPU_OPENERS.items()}
        if self.precision != DEFAULT_PRECISION:
            return Baselines(plain, only_way=openvino, openers=openers)
        return Baselines(plain, openvino if openvino.is_installed() else None, openers=openers)

    @cached_property
    def teams(self) -> CpuTeams:
        """See `TeamWays`."""
        return CpuTeams(self.model, self._backend.lanes, self._backend.cpus, self._with_backend)

    def _with_backend(self, model: Model, backend: CpuBackend) -> OpenOnCpu:
        cost = CpuStageCost(backend, self.cost.database, resume=self.cost.resume, faults=self.cost.faults)
        return OpenOnCpu(self.device, model, cost, effort=self.effort)

    def ways(self, schedule: Schedule) -> Mapping[str, Way]:
        """The only way to run `schedule` here, "iosched"."""
        return {"iosched": Way(schedule)}

    def one_after_another(self) -> Mapping[str, Way]:
        """Each operator split over the lanes by us, or all in one onnxruntime session on all cores."""
        return {"sequential": Way(sequential(self.graph)), ONE_SESSION: Way(one_session(self.graph))}

    def by_image(self) -> Way | None:
        """Each core, or each team of cores if there are fewer images, runs one image after another."""
        batch, lanes = self.model.batch_size, self._backend.lanes
        if min(batch, lanes) < 2 or self.asked or self._mixes_images:
            return None
        return Way(sequential(self.graph), teams=Teams(1, min(batch, lanes), 1))

    @cached_property
    def _mixes_images(self) -> bool:
        try:
            with_batch_size(self.model, 1)
        except UsageError:
            return True
        return False

    def ready(self, way: Way, inputs: Arrays) -> Candidate:
        """Compiles the model for these cores; the inputs are passed to each run."""
        if way.teams is not None:
            candidate, _ = self.teams.ready(self.units.expanded(way.schedule), way.teams, inputs)
            return candidate
        compiled = self._backend.compile(way.schedule)
        return Candidate(partial(compiled.time, inputs), compiled.close, partial(core_remarks, self._backend.cpus))

    def in_turn(
        self, candidates: Mapping[str, Candidate], budget: Budget, observer: Callable[[int, int], None] | None = None
    ) -> Mapping[str, Measurement]:
        """Interleaved latencies, in a row and after idle, without rounds with interference."""
        return measure_interleaved(
            candidates, budget, observer, wait_until_idle, disturbance.watch(self.cost.watched_cpus)
        )

    def rounds(self, candidates: Mapping[str, Candidate]) -> TakeRound:
        """See `AttachedModel.rounds`; the machine's speed is measured after each round, since predictions are at that
        speed.
        """
        watch = partial(disturbance.interference_since_now, self.cost.watched_cpus)
        return rounds_of(candidates, wait_until_idle, watch, self.cost.slowness)

    def running(self, way: Way | None, measured: Mapping[str, Measurement]) -> Running:
        """The number of kernels and lanes, the executor, and notes on shared cores."""
        del measured
        runtime = {"lanes": self._backend.lanes, "executor": "compiled" if self._backend.is_native else "python"}
        notes = (*core_remarks(self._backend.cpus), *self.cost.remarks, *self.cost.faults.notes, *self._enlarged)
        if way is None:
            return Running(len(self._backend.kernels.nodes), runtime, notes)
        if way.teams is not None:
            return Running(self.teams.n_kernels(self.units.expanded(way.schedule), way.teams), runtime, notes)
        n_kernels = sum(map(len, self._backend.lower(way.schedule).plan.lanes))
        return Running(n_kernels, runtime, notes, self._backend.plan_nbytes(way.schedule))

    @property
    def _enlarged(self) -> Iterator[str]:
        for unit in self.asked:
            members = self.units.members[self.units.unit_of[unit[0]]]
            if more := [name for name in members if name not in unit]:
                what = f"The unit {shown(unit)} also contains {shown(more)}"
                yield f"{what}: onnxruntime fuses them on this CPU."

    def close(self) -> None:
        """Stops the worker threads, unless they belong to another open model."""
        if "teams" in vars(self):
            self.teams.close()
        self._backend.close()


def open_on_cpu(
    device: ProfiledDevice, model: Model, settings: OpenSettings, database: ProfileDatabase, alongside: OpenModel | None
) -> OpenOnCpu:
    """See `CpuDevice.open`."""
    check_fits(model.graph)
    other = alongside.cost.backend if isinstance(alongside, OpenOnCpu) else None
    most = settings.threads or cpu_count()  # of all sockets
    lanes = most if settings.objective == "throughput" else settings.threads
    backend = CpuBackend(model, lanes=lanes, sharing=other, units=settings.units)
    cost = CpuStageCost(backend, database, resume=settings.resume, faults=Faults(settings.strict))
    effort = CPU_EFFORT.with_gap(settings.gap_percent)
    return OpenOnCpu(device, model, cost, settings.precision, effort, settings.units, None if other else most)


@dataclass(frozen=True, eq=False)
class CpuTeams:
    """See `TeamWays`."""

    model: Model
    lanes: int
    cpus: LaneCpus
    open_weights_file: Callable[[Model, CpuBackend], AttachedModel]
    _backends: dict[int, TeamBackends] = field(default_factory=dict)

    def opened(self, teams: Teams) -> AttachedModel:
        """See `TeamWays.opened`."""
        backend = self._of(teams).of(teams.images)
        return self.open_weights_file(with_batch_size(self.model, teams.images), backend)

    def ready(self, schedule: Schedule, teams: Teams, inputs: Arrays) -> tuple[Candidate, Callable[[], Arrays]]:
        """See `TeamWays.ready`."""
        found = open_divided(self._of(teams), schedule, teams, self.cpus)
        return timed(found, inputs), partial(found.run, inputs)

    def n_kernels(self, schedule: Schedule, teams: Teams) -> int:
        """See `TeamWays.n_kernels`."""
        return len(lower_in_teams(self._of(teams), schedule, teams).plan.tasks)

    def close(self) -> None:
        """Frees all backends."""
        for backends in self._backends.values():
            backends.close()

    def _of(self, teams: Teams) -> TeamBackends:
        lanes = teams.lanes(self.lanes)
        if lanes not in self._backends:
            self._backends[lanes] = TeamBackends(self.model, lanes)
        return self._backends[lanes]


CPU_OPENERS: Mapping[str, Callable[[Model, int, Arrays], Candidate]] = {
    "onnxruntime": open_best,
    "onnxruntime-parallel": open_parallel,
    "openvino": open_openvino,
    "onnxruntime-sessions": open_sessions,
    "openvino-streams": open_streams,
}
"""Openers of baselines by name, for a model on a number of threads."""
