"""Models whose batch or requests are divided among teams of lanes; each team runs some images at a time.

Teams never wait for each other. A team runs its pieces of the batch one after another in the same part of the arena,
which is still in its caches; between two pieces its lanes wait for each other, so that none overwrites what another
reads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from iosched.models.batch_independence import batched_inputs, with_batch_size
from iosched.models.errors import UsageError
from iosched.models.model import Model
from iosched.runtime.arena import ALIGNMENT_NBYTES
from iosched.runtime.cpu.backend import CompiledModel, CpuBackend, PlanExecutor
from iosched.runtime.cpu.lane_cpus import LaneCpus
from iosched.runtime.cpu.library import available
from iosched.runtime.cpu.lower import Lowering
from iosched.runtime.cpu.native import NativeExecutor, NativeRuntime, supports
from iosched.runtime.cpu.python_executor import PythonExecutor, PythonRuntime
from iosched.runtime.executor import Requests
from iosched.runtime.hazards import CheckedPlan
from iosched.runtime.plan import Buffer, ExecutionPlan, MemorySpace, PlanTask, View, Wait
from iosched.scheduler.schedule import Schedule
from iosched.scheduler.teams import Piece, Teams


class TeamBackends:
    """Backends of the model for each number of images that a team runs at once, opened when first needed.

    Attributes:
        model: bound to the whole batch.
        lanes: lanes of a team.
    """

    def __init__(self, model: Model, lanes: int) -> None:
        self.model, self.lanes = model, lanes
        self._known: dict[int, CpuBackend] = {}

    def of(self, images: int) -> CpuBackend:
        """The backend for `images` images.

        Raises:
            UsageError: the model does not compute the images of its batch independently; see `with_batch_size`.
            InvalidModelError: onnxruntime refuses the model.
            DeviceError: onnxruntime is not installed.
        """
        if images not in self._known:
            self._known[images] = CpuBackend(with_batch_size(self.model, images), lanes=self.lanes)
        return self._known[images]

    def close(self) -> None:
        """Close all backends."""
        for backend in self._known.values():
            backend.close()


def lower_in_teams(backends: TeamBackends, schedule: Schedule, teams: Teams) -> Lowering:
    """The plan of one run in which each team runs `schedule` for its images, and its kernels.

    Raises:
        UsageError: the model does not compute the images of its batch independently.
    """
    model = backends.model
    shares = [pieces for pieces in teams.pieces(model.batch_size) if pieces]
    counts = dict.fromkeys(piece.count for pieces in shares for piece in pieces)
    lowered = {count: backends.of(count).lower(schedule) for count in counts}
    plans: dict[int, TeamPlan] = {}
    kernels: tuple[Any, ...] = ()
    for count, each in lowered.items():
        plans[count] = TeamPlan(each.plan, len(kernels))
        kernels += each.kernels
    fewer = next((count for count in counts if count != model.batch_size), None)
    images = () if fewer is None else batched_inputs(model, with_batch_size(model, fewer))
    return Lowering(CheckedPlan(in_teams(plans, shares, frozenset(images))), kernels)


def compile_divided(
    backends: TeamBackends, schedule: Schedule, teams: Teams, cpus: LaneCpus
) -> tuple[CompiledModel, ...]:
    """Compile the divided model, once for each concurrent request.

    Args:
        backends: of the model, with the lanes of one team; to be closed after the returned models.
        schedule: of a team, in operators of the model.
        teams: how the cores share the work.
        cpus: the processors to use; the caller releases them.

    Raises:
        UsageError: the model does not compute the images of its batch independently.
    """
    lowering = lower_in_teams(backends, schedule, teams)
    kernels = backends.of(teams.pieces(backends.model.batch_size)[-1][0].count).kernels
    executors = _executors(lowering, teams.requests, cpus)
    return tuple(CompiledModel.of(executor, lowering, kernels) for executor in executors)


def open_divided(backends: TeamBackends, schedule: Schedule, teams: Teams, cpus: LaneCpus) -> Requests:
    """Open the divided model; see `compile_divided`."""
    return Requests(compile_divided(backends, schedule, teams, cpus))


def _executors(lowering: Lowering, requests: int, cpus: LaneCpus) -> tuple[PlanExecutor, ...]:
    lanes = len(lowering.plan.lanes)
    chosen = cpus.of(lanes * requests)
    parts = [chosen[lanes * number : lanes * (number + 1)] for number in range(requests)]
    if not (available() and supports(lowering.plan)):
        runtime = PythonRuntime()
        return tuple(PythonExecutor(lowering.checked, lowering.kernels, runtime=runtime, cpus=own) for own in parts)
    runtimes = [NativeRuntime()]
    runtimes += [NativeRuntime(runtimes[0]) for _ in parts[1:]]
    return tuple(
        NativeExecutor(lowering.checked, lowering.kernels, runtime=own_runtime, cpus=own)
        for own_runtime, own in zip(runtimes, parts, strict=True)
    )


@dataclass(frozen=True)
class TeamPlan:
    """The plan of a team for one number of images.

    Attributes:
        plan: its lanes are those of the team, its inputs and outputs those of the model.
        first_kernel: added to the tasks' kernels, as each plan has its own kernels.
    """

    plan: ExecutionPlan
    first_kernel: int = 0


def in_teams(
    plans: Mapping[int, TeamPlan], teams: Sequence[Sequence[Piece]], batched_inputs: frozenset[str]
) -> ExecutionPlan:
    """The plan in which each team runs its pieces of the batch; O(tasks of all pieces).

    Args:
        plans: by the number of images of a piece, all with the same number of lanes.
        teams: the pieces of each team; together they are the batch.
        batched_inputs: inputs whose first axis is the batch; others are the same for all images.

    Raises:
        UsageError: the size of a tensor is known only at run time.
    """
    batch = sum(piece.count for pieces in teams for piece in pieces)
    composed = _Composed(plans, batched_inputs, batch)
    buffers: dict[str, Buffer] = {}
    lanes: list[tuple[PlanTask, ...]] = []
    for team, pieces in enumerate(teams):
        lanes += composed.lanes(team, pieces)
        for count in dict.fromkeys(piece.count for piece in pieces):
            buffers |= {buffer.name: buffer for buffer in composed.buffers(team, count)}
    some = plans[next(piece.count for pieces in teams for piece in pieces)].plan
    return ExecutionPlan(
        lanes=tuple(lanes),
        buffers=tuple(buffers.values()),
        arena_nbytes=composed.stride * len(teams),
        outputs=tuple(composed.whole(view) for view in some.outputs),
        inputs=tuple(composed.whole(view) for view in some.inputs),
    )


class _Composed:
    def __init__(self, plans: Mapping[int, TeamPlan], batched_inputs: frozenset[str], batch: int) -> None:
        self.plans, self.batch = plans, batch
        largest = max(each.plan.arena_nbytes for each in plans.values())
        self.stride = -(-largest // ALIGNMENT_NBYTES) * ALIGNMENT_NBYTES
        self.width = len(next(iter(plans.values())).plan.lanes)
        known = {buffer.name: buffer for each in plans.values() for buffer in each.plan.buffers}
        if unknown := [name for name, buffer in known.items() if buffer.space is MemorySpace.DYNAMIC]:
            raise UsageError(f"the size of {unknown[0]!r} is known only at run time")
        self._space = {name: buffer.space for name, buffer in known.items()}
        self._arrays = frozenset(name for name, space in self._space.items() if space is not MemorySpace.ARENA)
        self._by_image = frozenset(
            name for name in self._arrays if self._space[name] is MemorySpace.OUTPUT or name in batched_inputs
        )

    def lanes(self, team: int, pieces: Sequence[Piece]) -> list[tuple[PlanTask, ...]]:
        found: list[list[PlanTask]] = [[] for _ in range(self.width)]
        for piece in pieces:
            done = [len(lane) for lane in found]
            placed = self._placed(team, piece)
            each = self.plans[piece.count]
            for lane, tasks in enumerate(each.plan.lanes):
                for number, task in enumerate(tasks):
                    waits = _waits(task, lane, team * self.width, done, is_first=number == 0)
                    found[lane].append(
                        replace(
                            task,
                            kernel=task.kernel + each.first_kernel,
                            reads=tuple(map(placed, task.reads)),
                            writes=tuple(map(placed, task.writes)),
                            in_place=tuple(map(placed, task.in_place)),
                            waits=waits,
                        )
                    )
        return [tuple(lane) for lane in found]

    def buffers(self, team: int, count: int) -> list[Buffer]:
        return [self._buffer(buffer, team, count) for buffer in self.plans[count].plan.buffers]

    def whole(self, view: View) -> View:
        if view.buffer not in self._by_image or not view.shape:
            return view
        count = view.shape[0]
        return replace(view, shape=(self.batch, *view.shape[1:]), nbytes=view.nbytes // count * self.batch)

    def _buffer(self, buffer: Buffer, team: int, count: int) -> Buffer:
        if buffer.name in self._by_image:
            return replace(buffer, nbytes=buffer.nbytes // count * self.batch)
        if buffer.name in self._arrays:
            return buffer
        return replace(buffer, name=self._name(buffer.name, team, count), offset=buffer.offset + team * self.stride)

    def _placed(self, team: int, piece: Piece) -> Callable[[View], View]:
        """Maps views of a piece's plan to views of the whole plan, each created once."""
        size = {buffer.name: buffer.nbytes // piece.count for buffer in self.plans[piece.count].plan.buffers}
        known: dict[View, View] = {}

        def placed(view: View) -> View:
            if view not in known:
                known[view] = self._view(view, team, piece, size[view.buffer])
            return known[view]

        return placed

    def _view(self, view: View, team: int, piece: Piece, image_nbytes: int) -> View:
        if view.buffer in self._by_image:
            return replace(view, offset=view.offset + piece.first * image_nbytes)
        if view.buffer in self._arrays:
            return view
        return replace(view, buffer=self._name(view.buffer, team, piece.count))

    def _name(self, buffer: str, team: int, count: int) -> str:
        name = f"{buffer}#{team}.{count}"
        while name in self._arrays:
            name += "'"
        return name


def _waits(task: PlanTask, lane: int, first_lane: int, done: Sequence[int], *, is_first: bool) -> tuple[Wait, ...]:
    """The task's waits; a lane's first task also waits for all tasks of the team's earlier pieces."""
    steps = {wait.lane: wait.steps + done[wait.lane] for wait in task.waits}
    if is_first:
        steps = {other: count for other, count in enumerate(done) if other != lane and count} | steps
    return tuple(Wait(first_lane + other, count) for other, count in sorted(steps.items()))
