"""The order that lanes and waits impose on tasks: happens-before by vector clocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from iosched.runtime.plan import Task, Wait


class HazardError(ValueError):
    """A plan whose result would depend on timing, or that could not end; says which tasks clash."""


@dataclass(frozen=True, eq=False)
class Order:
    """Happens-before of a plan's tasks, numbered lane after lane.

    Attributes:
        tasks: all tasks.
        lane: `(tasks,)`: the lane of each task.
        step: `(tasks,)`: its place in that lane, from 1.
        clock: `(tasks, lanes)`: how many tasks of each lane are surely done when the task starts.
        sequence: the tasks' numbers in one order in which they may run.
    """

    tasks: tuple[Task, ...]
    lane: np.ndarray
    step: np.ndarray
    clock: np.ndarray
    sequence: tuple[int, ...]

    @cached_property
    def position(self) -> np.ndarray:
        """`(tasks,)`: the place of each task in `sequence`."""
        position = np.empty(len(self.tasks), np.int64)
        position[list(self.sequence)] = np.arange(len(self.tasks))
        return position

    def before(self, first: int, second: int) -> bool:
        """Whether task `first` is surely done when task `second` starts."""
        return bool(self.clock[second, self.lane[first]] >= self.step[first])

    def ordered(self, task: int, others: np.ndarray) -> np.ndarray:
        """`(others,) bool`: whether `task` and each of `others` (task numbers) are ordered, one way or the other."""
        after = self.clock[others, self.lane[task]] >= self.step[task]
        before = self.clock[task][self.lane[others]] >= self.step[others]
        return np.asarray(after | before)


def happens_before(lanes: Sequence[Sequence[Task]]) -> Order:
    """Computes the order of all tasks in O(tasks x lanes).

    Raises:
        HazardError: if a wait names a lane or step that is not there, or if lanes wait for each other for ever.
    """
    for lane, tasks in enumerate(lanes):
        for task in tasks:
            _check_waits(task, lane, lanes)
    first = np.cumsum([0, *(len(tasks) for tasks in lanes)])
    clock = np.zeros((int(first[-1]), len(lanes)), np.int64)
    done = [0] * len(lanes)
    sequence: list[int] = []
    while len(sequence) < first[-1]:
        before = len(sequence)
        for lane, tasks in enumerate(lanes):
            while done[lane] < len(tasks) and _ready(tasks[done[lane]], done):
                number = int(first[lane]) + done[lane]
                _join(clock, number, lane, done[lane], tasks[done[lane]].waits, first)
                done[lane] += 1
                sequence.append(number)
        if len(sequence) == before:
            _refuse_deadlock(lanes, done)
    return Order(
        tasks=tuple(task for tasks in lanes for task in tasks),
        lane=np.repeat(np.arange(len(lanes)), np.diff(first)),
        step=np.arange(int(first[-1])) - np.repeat(first[:-1], np.diff(first)) + 1,
        clock=clock,
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


def _join(clock: np.ndarray, number: int, lane: int, done: int, waits: tuple[Wait, ...], first: np.ndarray) -> None:
    """Sets a task's clock to the latest of its predecessor's and those of the tasks it waits for."""
    if done:
        clock[number] = clock[number - 1]
        clock[number, lane] = done
    for wait in waits:
        if wait.steps:
            np.maximum(clock[number], clock[first[wait.lane] + wait.steps - 1], out=clock[number])
            clock[number, wait.lane] = max(clock[number, wait.lane], wait.steps)


def _refuse_deadlock(lanes: Sequence[Sequence[Task]], done: Sequence[int]) -> None:
    stuck = next(lane for lane, tasks in enumerate(lanes) if done[lane] < len(tasks))
    task = lanes[stuck][done[stuck]]
    wait = next(wait for wait in task.waits if done[wait.lane] < wait.steps)
    other = lanes[wait.lane][wait.steps - 1]
    raise HazardError(f"task {task.name!r} waits for {other.name!r} for ever: their lanes wait for each other")
