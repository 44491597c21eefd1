"""Several models in one graph on a device, and the ways to run them that are measured interleaved.

Each of the four rows of the table (`RowName`) can run in several ways, the fastest of which represents the row: by an
iosched schedule, by a session of onnxruntime or OpenVINO for each model, or by one session for all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial

from iosched.jobs.schedules import Deadline, never, priced, schedule_by, unsearched
from iosched.models.composition.members import Member, owners
from iosched.models.errors import MismatchError
from iosched.models.model import Model
from iosched.profiler.baselines.onnxruntime import MANY_SESSIONS_NBYTES, OnnxruntimeBaseline
from iosched.profiler.baselines.openvino import OpenvinoBaseline
from iosched.profiler.devices.profiled_device import OpenModel, Running, Way, attached
from iosched.runtime.compare import compare
from iosched.runtime.executor import Candidate
from iosched.runtime.inputs import Arrays, random_inputs
from iosched.runtime.memory import machine_nbytes
from iosched.runtime.parallel_sessions import ParallelSessions, SessionsSettings, parallel_settings, serial_settings
from iosched.runtime.reference import Reference, ReferenceSettings
from iosched.scheduler.baselines import sequential
from iosched.scheduler.batching.policy_names import RowName
from iosched.scheduler.components import Find, packed_regions, search_owner_parts, search_regions
from iosched.scheduler.document import ONNXRUNTIME, OPENVINO
from iosched.scheduler.schedule import Schedule, Strategy
from iosched.scheduler.search import SearchResult, search

_SESSIONS = 32
"""About 1.5 times the number of copies of the weights that all methods have open at the same time."""

_LEAST_LIKELY = 1.5
"""Maximum expected latency of a schedule that is still run, over that of the best one."""


@dataclass(frozen=True, eq=False)
class OpenComposition:
    """A model with several models in it, open on a device.

    Attributes:
        model: the composed or the batched model.
        opened: the model on the device.
        groups: groups of operators of the composed model, each of which is one operator in `model`.
        shares: whether members share operators that compute the same; running it is then no baseline without iosched.
        fed: for each input of the model the input of the file, if the model may not ship because its members share no
            input, as without iosched.
    """

    model: Model
    members: Sequence[Member]
    opened: OpenModel
    groups: Sequence[Sequence[str]] = ()
    shares: bool = False
    fed: Mapping[str, str] | None = None

    @cached_property
    def owners(self) -> Mapping[str, int]:
        """Maps each of the device's units to the members that use it: bit i means `members[i]`."""
        found: dict[str, int] = {}
        for name, bits in owners(self.model, self.members).items():
            unit = self.opened.units.unit_of[name]
            found[unit] = found.get(unit, 0) | bits
        return found

    @property
    def common(self) -> set[str]:
        """The units that several members share."""
        return {unit for unit, bits in self.owners.items() if bits & (bits - 1)}

    @property
    def plain(self) -> OnnxruntimeBaseline | None:
        """Plain onnxruntime; None on GPUs."""
        return self.opened.baselines.onnxruntime

    @property
    def openvino(self) -> OpenvinoBaseline | None:
        """OpenVINO on the unchanged model, if it is compared."""
        return self.opened.baselines.openvino

    @property
    def is_large(self) -> bool:
        """Whether its weights are too large for many sessions."""
        nbytes = sum(array.nbytes for array in self.model.weights.values())
        return nbytes > max(MANY_SESSIONS_NBYTES, (machine_nbytes() or 0) // _SESSIONS)

    @cached_property
    def expected(self) -> Arrays:
        """Outputs of onnxruntime for random inputs."""
        with Reference(self.model) as session:
            return session.run(random_inputs(self.model.graph.inputs))


@dataclass(frozen=True, eq=False)
class Method:
    """One way to run all models.

    Attributes:
        target: what it runs.
        found: its schedule, in the device's units; for a library, one operator after another.
        text: how it runs, for display.
        open: prepares it for timing on inputs of the model.
        way: how the device runs the schedule; None if a library runs the model instead.
        runtime: the runtime settings of a library.
    """

    row: RowName
    target: OpenComposition
    found: SearchResult
    text: str
    open: Callable[[Arrays], Candidate]
    way: Way | None = None
    runtime: Mapping[str, object] = field(default_factory=dict)

    @property
    def schedule(self) -> Schedule:
        """The schedule, of the model's operators."""
        return self.target.opened.units.expanded(self.found.schedule)

    @property
    def library(self) -> str | None:
        """The name of the library that runs it; None if the device runs the schedule."""
        return None if self.way else str(self.runtime["by"])

    def ready(self, inputs: Arrays) -> Candidate:
        """Prepares it for timing on inputs of the file; the device must be attached."""
        if self.target.fed is not None:
            inputs = {name: inputs[source] for name, source in self.target.fed.items()}
        return self.open(inputs)

    def running(self) -> Running:
        """Facts about running it on an attached device, including the settings to run it again."""
        found = attached(self.target.opened).running(self.way, {})
        return replace(found, runtime={**found.runtime, **self.runtime})


def serial_methods(target: OpenComposition, deadline: Deadline = never) -> Iterator[Method]:
    """One model after another: by a schedule each, in a session each on all cores or on one, or in one session.

    OpenVINO, which opens several times as slowly as onnxruntime, is a method in its usual setting only.
    """
    if target.opened.is_schedulable and not target.shares:
        yield from _scheduled("serial", target, serial_schedule(target, deadline))
    if target.plain is not None:
        for settings in serial_settings(target.plain.threads)[: 1 if target.is_large else None]:
            yield _in_sessions("serial", target, settings)
        if not target.shares:
            yield _in_one_session("serial", target, target.plain, ReferenceSettings("sequential", target.plain.threads))
    if target.openvino is not None:
        yield _in_sessions("serial", target, SessionsSettings(1, target.openvino.threads, OPENVINO))


def packed_methods(target: OpenComposition, deadline: Deadline = never, with_ours: bool = False) -> Iterator[Method]:
    """Models side by side without iosched: in a session each, or in one session of onnxruntime.

    On GPUs, where plain onnxruntime is no method, a schedule with a stream for each model takes their place.

    Args:
        target: the separate models.
        deadline: once true, searches return the best known result.
        with_ours: whether to include such a schedule, which is otherwise in `mixed_methods`.
    """
    if len(target.members) < 2:
        return
    if target.opened.is_schedulable and not target.shares and (with_ours or target.plain is None):
        yield from _scheduled("packed", target, packed_schedule(target, deadline))
    settings = None if target.plain is None else parallel_settings(len(target.members), target.plain.threads)
    if settings is None or target.plain is None:
        return
    yield _in_sessions("packed", target, settings)
    if not target.shares:
        yield _in_one_session("packed", target, target.plain, ReferenceSettings("parallel", 1, target.plain.threads))
    if target.openvino is not None and not target.is_large:
        yield _in_sessions("packed", target, replace(settings, library=OPENVINO))


def batched_methods(target: OpenComposition) -> Iterator[Method]:
    """Operators of a batched or sharing model, one after another."""
    if target.opened.is_schedulable:
        one_by_one = sequential(target.opened.graph)
        is_attached = target.opened.attached is not None
        yield from _scheduled(
            "batched", target, unsearched(one_by_one if is_attached else priced(target.opened, one_by_one))
        )
    if target.plain is not None:
        yield _in_one_session("batched", target, target.plain, ReferenceSettings("sequential", target.plain.threads))
    if target.openvino is not None:
        yield _in_openvino("batched", target, target.openvino)


def mixed_methods(target: OpenComposition, deadline: Deadline = never) -> Iterator[Method]:
    """A batched or composed model by the best schedules found, which may run models side by side."""
    if target.opened.is_schedulable:
        for found in mixed_schedules(target, deadline, packs=target.plain is not None):
            yield from _scheduled("mixed", target, found)


def _scheduled(row: RowName, target: OpenComposition, found: SearchResult) -> Iterator[Method]:
    here = target.opened.attached
    for way in [Way(found.schedule)] if here is None else here.ways(found.schedule).values():
        has_sessions = any(stage.strategy is Strategy.SESSION for stage in way.schedule.stages)
        text = f"by a schedule{', partly in sessions' * has_sessions}{way.how}"
        yield Method(row, target, found, text, partial(_open, target, way), way)


def _open(target: OpenComposition, way: Way, inputs: Arrays) -> Candidate:
    return attached(target.opened).ready(way, inputs)


def _in_sessions(row: RowName, target: OpenComposition, settings: SessionsSettings) -> Method:
    runtime = {"by": settings.library, "sessions": {"lanes": settings.lanes, "threads": settings.threads}}
    return Method(
        row, target, _unsearched(target), settings.description, partial(_sessions, target, settings), None, runtime
    )


def _sessions(target: OpenComposition, settings: SessionsSettings, inputs: Arrays) -> Candidate:
    """Opens the sessions; those of OpenVINO must compute the same as onnxruntime."""
    sessions = ParallelSessions(target.model, target.members, settings)
    with ExitStack() as on_error:
        on_error.callback(sessions.close)
        if settings.library == OPENVINO:
            found = compare(sessions.run(random_inputs(target.model.graph.inputs)), target.expected)
            if not found.passed:
                raise MismatchError(found.reasons[0])
        on_error.pop_all()
    return Candidate(partial(sessions.time, inputs), sessions.close)


def _in_one_session(
    row: RowName, target: OpenComposition, plain: OnnxruntimeBaseline, settings: ReferenceSettings
) -> Method:
    text, runtime = f"onnxruntime, one session for all, {settings.description}", asdict(settings)
    opens = partial(plain.ready, settings)
    return Method(row, target, _unsearched(target), text, opens, None, {"by": ONNXRUNTIME, "reference": runtime})


def _in_openvino(row: RowName, target: OpenComposition, openvino: OpenvinoBaseline) -> Method:
    text = f"OpenVINO, one session for all, {openvino.threads} threads"
    return Method(row, target, _unsearched(target), text, openvino.ready, None, {"by": OPENVINO})


def _unsearched(target: OpenComposition) -> SearchResult:
    return unsearched(sequential(target.opened.graph))


def serial_schedule(target: OpenComposition, deadline: Deadline = never) -> SearchResult:
    """One model after another, each by its best schedule, shared operators first.

    Once the deadline is true, the searches return the best known result; see `search`.
    """
    opened = target.opened
    return search_owner_parts(opened.graph, opened.cost, target.owners, _find(target, deadline), is_over=deadline)


def packed_schedule(target: OpenComposition, deadline: Deadline = never) -> SearchResult:
    """All models side by side where they share nothing, each one operator after another; see `serial_schedule`."""
    return packed_regions(target.opened.graph, target.opened.cost, target.common, _find(target, deadline))


def mixed_schedules(
    target: OpenComposition, deadline: Deadline = never, packs: bool = False
) -> tuple[SearchResult, ...]:
    """Distinct schedules, the one expected to be the fastest first; see `serial_schedule`.

    One is searched as for any graph. Another runs whole parts of models side by side between shared operators where
    stage latencies predict that this is faster, and a third does so wherever possible. Stages are faster alone than in
    a whole model, so only whole runs show which is the fastest. If models share nothing, the third is
    `packed_schedule`, and is left out unless `packs`.
    """
    opened, find, common = target.opened, _find(target, deadline), target.common
    found = [
        search_regions(opened.graph, opened.cost, common, find, is_over=deadline),
        schedule_by(opened, "both", deadline=deadline),
    ]
    if common or packs:
        found.append(packed_regions(opened.graph, opened.cost, common, find))
    found.sort(key=lambda result: predicted_us(result.schedule))
    likely_us = _LEAST_LIKELY * predicted_us(found[0].schedule)
    differing: dict[str, SearchResult] = {}
    for each in (found[0], *(each for each in found[1:] if predicted_us(each.schedule) <= likely_us)):
        differing.setdefault(Way(each.schedule).text, each)
    return tuple(differing.values())


def predicted_us(schedule: Schedule) -> float:
    """The sum of stage latencies; infinite if one is unknown."""
    predicted = schedule.predicted_us
    return float("inf") if predicted is None else predicted


def alone_us(target: OpenComposition, serial: Schedule) -> list[float | None]:
    """Latency of each model in a serial schedule: its own stages and shared ones.

    None if the latency of a stage is not known.
    """
    found: list[float | None] = []
    for bit in range(len(target.members)):
        own = [stage.predicted_us for stage in serial.stages if target.owners[stage.operators[0]] >> bit & 1]
        found.append(None if None in own else sum(each or 0.0 for each in own))
    return found


def _find(target: OpenComposition, deadline: Deadline) -> Find:
    return partial(search, deadline=deadline, effort=target.opened.effort)
