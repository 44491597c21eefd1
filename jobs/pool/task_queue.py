"""Queues of tasks per device, and the sizes of packets."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import islice, takewhile

LARGEST_PACKET = 3
"""Initial packet size in the paper on distributed EA-NAS (TPDS); it falls to 1 at the end of a round."""


@dataclass(eq=False)
class QueuedTask:
    """A task in the queue.

    Attributes:
        name: unique among tasks.
        device: the device of the workers that may run it.
        kind: tasks of one kind take about the same time on a device.
        group: tasks of a packet share a group, such as a model.
        in_packets: whether a packet may contain it, as for stage measurements.
        asker: the number of the assignment that waits for it, if any.
        is_repeatable: whether two workers may run it at the same time.
        holders: numbers of the assignments that it is in.
        losses: number of workers that were lost while they ran it.
        delays: number of its assignments that were late.
    """

    name: int
    device: str
    kind: str
    group: str = ""
    in_packets: bool = False
    asker: int | None = None
    is_repeatable: bool = True
    holders: set[int] = field(default_factory=set, init=False)
    losses: int = field(default=0, init=False)
    delays: int = field(default=0, init=False)

    @property
    def may_share(self) -> bool:
        """Whether it may run in a packet with others; not after a loss, so that it cannot fail others."""
        return self.in_packets and self.losses == 0


def packet_size(remaining: int, workers: int) -> int:
    """Returns the packet size: ceil(remaining / (2 workers)), limited to 1 to 3.

    The paper only gives the limits; this rule is consistent with it and leaves half of the tasks to other workers.
    """
    return max(1, min(LARGEST_PACKET, -(-remaining // (2 * max(1, workers)))))


@dataclass(eq=False)
class _Group:
    """Tasks of one group, in order. Packet sizes never grow within a round, even if the number of workers changes."""

    tasks: dict[int, QueuedTask] = field(default_factory=dict)
    largest: int = LARGEST_PACKET


class TaskQueue:
    """Queued tasks of one device, by group."""

    def __init__(self) -> None:
        self._groups: dict[str, _Group] = {}

    def __len__(self) -> int:
        return sum(len(group.tasks) for group in self._groups.values())

    @property
    def groups(self) -> Collection[str]:
        """The groups of the queued tasks."""
        return self._groups.keys()

    def add(self, task: QueuedTask) -> None:
        """Appends a task and starts a new round of its group."""
        group = self._groups.setdefault(task.group, _Group())
        group.tasks[task.name] = task
        group.largest = LARGEST_PACKET

    def put_back(self, task: QueuedTask) -> None:
        """Moves a task to the front of the queue. O(tasks of its group)."""
        group = self._groups.pop(task.group, _Group())
        group.tasks = {task.name: task, **group.tasks}
        self._groups = {task.group: group, **self._groups}

    def remove(self, task: QueuedTask) -> None:
        """Removes a task if it is queued."""
        if (group := self._groups.get(task.group)) is not None:
            group.tasks.pop(task.name, None)
            self._forget_if_empty(task.group)

    def take(self, workers: int, preferred: str) -> tuple[QueuedTask, ...]:
        """Removes and returns the next packet, from the `preferred` group if it has tasks, else from the first group.

        Args:
            workers: number of workers that share the tasks of this device.
            preferred: the group whose model the worker has open.
        """
        name = preferred if preferred in self._groups else next(iter(self._groups))
        group = self._groups[name]
        first = next(iter(group.tasks.values()))
        if first.in_packets:
            group.largest = min(group.largest, packet_size(len(group.tasks), workers))
        size = group.largest if first.may_share else 1
        packet = tuple(islice(takewhile(lambda task: task is first or task.may_share, group.tasks.values()), size))
        for task in packet:
            del group.tasks[task.name]
        self._forget_if_empty(name)
        return packet

    def _forget_if_empty(self, name: str) -> None:
        if not self._groups[name].tasks:
            del self._groups[name]
