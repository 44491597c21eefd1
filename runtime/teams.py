"""A plan for a whole batch, composed of plans for a few images: teams of lanes run these side by side.

Teams never wait for each other. A team takes its pieces of the batch one after another, in the same part of the arena,
which is still in its caches; between two pieces its lanes wait for each other, so that none writes what another reads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from iosched.models.errors import UsageError
from iosched.runtime.arena import ALIGNMENT_NBYTES
from iosched.runtime.plan import Buffer, ExecutionPlan, Space, Task, View, Wait
from iosched.scheduler.teams import Piece


@dataclass(frozen=True)
class TeamPlan:
    """The plan of one team for so many images at once.

    Attributes:
        plan: its lanes are those of the team, and its inputs and outputs those of the model.
        first_kernel: is added to the tasks' kernels, as each plan has kernels of its own.
    """

    plan: ExecutionPlan
    first_kernel: int = 0


def in_teams(
    plans: Mapping[int, TeamPlan], teams: Sequence[Sequence[Piece]], batched_inputs: frozenset[str]
) -> ExecutionPlan:
    """The plan in which each team runs its pieces of the batch.

    Args:
        plans: by the number of images of a piece, all with the same number of lanes.
        teams: for each team its pieces; together they are the batch.
        batched_inputs: the inputs that have an image after another; others are the same for all images.

    Complexity: O(tasks of all pieces).

    Raises:
        UsageError: the size of a tensor is known only when the model runs.
    """
    batch = sum(piece.count for pieces in teams for piece in pieces)
    composed = _Composed(plans, batched_inputs, batch)
    buffers: dict[str, Buffer] = {}
    lanes: list[tuple[Task, ...]] = []
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
        if unknown := [name for name, buffer in known.items() if buffer.space is Space.DYNAMIC]:
            raise UsageError(f"the size of {unknown[0]!r} is known only when the model runs")
        self._space = {name: buffer.space for name, buffer in known.items()}
        self._arrays = frozenset(name for name, space in self._space.items() if space is not Space.ARENA)
        self._by_image = frozenset(
            name for name in self._arrays if self._space[name] is Space.OUTPUT or name in batched_inputs
        )

    def lanes(self, team: int, pieces: Sequence[Piece]) -> list[tuple[Task, ...]]:
        """The team's lanes."""
        found: list[list[Task]] = [[] for _ in range(self.width)]
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
        """The buffers that a team uses for pieces of so many images, and the arrays of the whole batch."""
        return [self._buffer(buffer, team, count) for buffer in self.plans[count].plan.buffers]

    def whole(self, view: View) -> View:
        """An input or output of the whole batch."""
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
        """Where the views of a plan for a piece lie in the plan for all; each is made once."""
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
        """A name that no array has, and no other team or size."""
        name = f"{buffer}#{team}.{count}"
        while name in self._arrays:
            name += "'"
        return name


def _waits(task: Task, lane: int, first_lane: int, done: Sequence[int], *, is_first: bool) -> tuple[Wait, ...]:
    """Its own waits, and before the first task of a lane for all that the team has done of the pieces before."""
    steps = {wait.lane: wait.steps + done[wait.lane] for wait in task.waits}
    if is_first:
        steps = {other: count for other, count in enumerate(done) if other != lane and count} | steps
    return tuple(Wait(first_lane + other, count) for other, count in sorted(steps.items()))
