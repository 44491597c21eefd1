"""Tasks that wait for a worker, and how many of them a worker takes at a time."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import islice, takewhile
from typing import Any

LARGEST_PACKET = 3
"""What a packet begins with in the paper on distributed EA-NAS (TPDS); towards the end of a round it falls to 1."""


@dataclass(frozen=True)
class QueuedTask:
    """Something that one worker can do on its own.

    Attributes:
        name: no other task has it.
        device: which workers may do it: those that serve a device of this name.
        kind: tasks of one kind take about the same time on one device.
        group: the tasks of a packet are of one group, such as one model.
        in_packets: whether a worker may take several at a time, as measurements of stages.
        asker: the assignment whose holder waits for this; None where nobody does.
        is_repeatable: whether two workers may have it at a time.
        about: what it stands for.
    """

    name: int
    device: str
    kind: str
    group: str = ""
    in_packets: bool = False
    asker: int | None = None
    is_repeatable: bool = True
    about: Any = field(default=None, compare=False)


def packet_size(remaining: int, workers: int) -> int:
    """How many of `remaining` tasks a worker takes that shares them with others: ceil(remaining / (2 workers)), 1 to 3.

    The paper says that it falls from 3 to 1; this rule fits all that it says, and leaves half of the tasks for others.
    """
    return max(1, min(LARGEST_PACKET, -(-remaining // (2 * max(1, workers)))))


@dataclass(eq=False)
class _Group:
    """Tasks of one group in order; no packet of them is larger than one before it, whoever comes and goes."""

    tasks: dict[int, QueuedTask] = field(default_factory=dict)
    largest: int = LARGEST_PACKET


class TaskQueue:
    """The tasks of one device that wait for a worker, group by group."""

    def __init__(self) -> None:
        self._groups: dict[str, _Group] = {}

    def __bool__(self) -> bool:
        return bool(self._groups)

    def __len__(self) -> int:
        return sum(len(group.tasks) for group in self._groups.values())

    @property
    def groups(self) -> Collection[str]:
        """The groups of the tasks that are here."""
        return self._groups.keys()

    def add(self, task: QueuedTask) -> None:
        """Adds a new task behind all others; with it a round of its group begins."""
        group = self._groups.setdefault(task.group, _Group())
        group.tasks[task.name] = task
        group.largest = LARGEST_PACKET

    def put_back(self, task: QueuedTask) -> None:
        """Puts a task before all others; it may be here already. O(tasks of its group)."""
        group = self._groups.pop(task.group, _Group())
        group.tasks = {task.name: task, **group.tasks}
        self._groups = {task.group: group, **self._groups}

    def remove(self, task: QueuedTask) -> None:
        """Takes a task away, if it is here."""
        if (group := self._groups.get(task.group)) is not None:
            group.tasks.pop(task.name, None)
            self._forget_if_empty(task.group)

    def take(self, workers: int, alone: Collection[int], preferred: str) -> tuple[QueuedTask, ...]:
        """The next packet: of the group that is `preferred`, which the worker has open, else of the first group.

        Args:
            workers: how many share the tasks of this device.
            alone: names of tasks that share a packet with none.
            preferred: a group; there need not be tasks of it.
        """
        name = preferred if preferred in self._groups else next(iter(self._groups))
        group = self._groups[name]
        first = next(iter(group.tasks.values()))
        if first.in_packets:
            group.largest = min(group.largest, packet_size(len(group.tasks), workers))
        size = group.largest if first.in_packets and first.name not in alone else 1
        fitting = takewhile(
            lambda task: task is first or (task.in_packets and task.name not in alone), group.tasks.values()
        )
        packet = tuple(islice(fitting, size))
        for task in packet:
            del group.tasks[task.name]
        self._forget_if_empty(name)
        return packet

    def _forget_if_empty(self, name: str) -> None:
        if not self._groups[name].tasks:
            del self._groups[name]
