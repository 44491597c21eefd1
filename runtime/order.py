"""The order that lanes and waits impose on tasks: happens-before by vector clocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from iosched.runtime.plan import Task, Wait


class HazardError(ValueError):
    """A plan whose result would depend on timing, or that could not end; says which tasks clash."""


@dataclass(frozen=True, eq=False)
class Order:
    """Happens-before of a plan's tasks, numbered lane after lane.

    Attributes:
        tasks: all tasks.
        lane: the lane of each task.
        step: its place in that lane, from 1.
        clock: for each task, how many tasks of each lane are surely done when it starts.
        sequence: the tasks' numbers in one order in which they may run.
    """

    tasks: tuple[Task, ...]
    lane: tuple[int, ...]
    step: tuple[int, ...]
    clock: tuple[tuple[int, ...], ...]
    sequence: tuple[int, ...]

    def before(self, first: int, second: int) -> bool:
        """Whether task `first` is surely done when task `second` starts."""
        return self.clock[second][self.lane[first]] >= self.step[first]


def happens_before(lanes: Sequence[Sequence[Task]]) -> Order:
    """Computes the order of all tasks in O((tasks + waits) x lanes).

    Raises:
        HazardError: if a wait names a lane or step that is not there, or if lanes wait for each other for ever.
    """
    for lane, tasks in enumerate(lanes):
        for task in tasks:
            _check_waits(task, lane, lanes)
    first = [0, *accumulate(len(tasks) for tasks in lanes)]
    clocks: list[list[tuple[int, ...]]] = [[] for _ in lanes]
    done = [0] * len(lanes)
    sequence: list[int] = []
    while len(sequence) < first[-1]:
        before = len(sequence)
        for lane, tasks in enumerate(lanes):
            while done[lane] < len(tasks) and _ready(tasks[done[lane]], done):
                clocks[lane].append(_joined(clocks, lane, tasks[done[lane]].waits))
                sequence.append(first[lane] + done[lane])
                done[lane] += 1
        if len(sequence) == before:
            _refuse_deadlock(lanes, done)
    return Order(
        tasks=tuple(task for tasks in lanes for task in tasks),
        lane=tuple(lane for lane, tasks in enumerate(lanes) for _ in tasks),
        step=tuple(step for tasks in lanes for step in range(1, len(tasks) + 1)),
        clock=tuple(clock for lane in clocks for clock in lane),
        sequence=tuple(sequence),
    )


def _check_waits(task: Task, lane: int, lanes: Sequence[Sequence[Task]]) -> None:
    for wait in task.waits:
        if not 0 <= wait.lane < len(lanes) or wait.lane == lane:
            raise HazardError(f"task {task.name!r} on lane {lane} waits for lane {wait.lane} of {len(lanes)}")
        if not 0 <= wait.steps <= len(lanes[wait.lane]):
            steps = len(lanes[wait.lane])
            raise HazardError(f"task {task.name!r} waits for step {wait.steps} of lane {wait.lane}, which has {steps}")


def _ready(task: Task, done: Sequence[int]) -> bool:
    return all(done[wait.lane] >= wait.steps for wait in task.waits)


def _joined(clocks: Sequence[Sequence[tuple[int, ...]]], lane: int, waits: tuple[Wait, ...]) -> tuple[int, ...]:
    """The clock of a lane's next task: the latest of its predecessor's and those of the tasks it waits for."""
    clock = list(clocks[lane][-1]) if clocks[lane] else [0] * len(clocks)
    clock[lane] = len(clocks[lane])
    for wait in waits:
        if wait.steps:
            clock = list(map(max, clock, clocks[wait.lane][wait.steps - 1]))
            clock[wait.lane] = max(clock[wait.lane], wait.steps)
    return tuple(clock)


def _refuse_deadlock(lanes: Sequence[Sequence[Task]], done: Sequence[int]) -> None:
    stuck = next(lane for lane, tasks in enumerate(lanes) if done[lane] < len(tasks))
    task = lanes[stuck][done[stuck]]
    wait = next(wait for wait in task.waits if done[wait.lane] < wait.steps)
    other = lanes[wait.lane][wait.steps - 1]
    raise HazardError(f"task {task.name!r} waits for {other.name!r} for ever: their lanes wait for each other")
