"""Works that wait for a worker, and how many of them a worker takes at a time."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import islice, takewhile
from typing import Any

LARGEST_PACKET = 3
"""What a packet begins with in the paper on distributed EA-NAS (TPDS); towards the end of a round it falls to 1."""


@dataclass(frozen=True)
class Work:
    """Something that one worker can do on its own.

    Attributes:
        name: no other work has it.
        device: which workers may do it: those that serve a device of this name.
        kind: works of one kind take about the same time on one device.
        group: the works of a packet are of one group, such as one model.
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
    """How many of `remaining` works a worker takes that shares them with others: ceil(remaining / (2 workers)), 1 to 3.

    The paper says that it falls from 3 to 1; this rule fits all that it says, and leaves half of the works for others.
    """
    return max(1, min(LARGEST_PACKET, -(-remaining // (2 * max(1, workers)))))


@dataclass(eq=False)
class _Group:
    """Works of one group in order; no packet of them is larger than one before it, whoever comes and goes."""

    works: dict[int, Work] = field(default_factory=dict)
    largest: int = LARGEST_PACKET


class Backlog:
    """The works of one device that wait for a worker, group by group."""

    def __init__(self) -> None:
        self._groups: dict[str, _Group] = {}

    def __bool__(self) -> bool:
        return bool(self._groups)

    def __len__(self) -> int:
        return sum(len(group.works) for group in self._groups.values())

    @property
    def groups(self) -> Collection[str]:
        """The groups of the works that are here."""
        return self._groups.keys()

    def add(self, work: Work) -> None:
        """Adds a new work behind all others; with it a round of its group begins."""
        group = self._groups.setdefault(work.group, _Group())
        group.works[work.name] = work
        group.largest = LARGEST_PACKET

    def put_back(self, work: Work) -> None:
        """Puts a work before all others; it may be here already. O(works of its group)."""
        group = self._groups.pop(work.group, _Group())
        group.works = {work.name: work, **group.works}
        self._groups = {work.group: group, **self._groups}

    def remove(self, work: Work) -> None:
        """Takes a work away, if it is here."""
        if (group := self._groups.get(work.group)) is not None:
            group.works.pop(work.name, None)
            self._forget_if_empty(work.group)

    def take(self, workers: int, alone: Collection[int], preferred: str) -> tuple[Work, ...]:
        """The next packet: of the group that is `preferred`, which the worker has open, else of the first group.

        Args:
            workers: how many share the works of this device.
            alone: names of works that share a packet with none.
            preferred: a group; there need not be works of it.
        """
        name = preferred if preferred in self._groups else next(iter(self._groups))
        group = self._groups[name]
        first = next(iter(group.works.values()))
        if first.in_packets:
            group.largest = min(group.largest, packet_size(len(group.works), workers))
        size = group.largest if first.in_packets and first.name not in alone else 1
        fitting = takewhile(
            lambda work: work is first or (work.in_packets and work.name not in alone), group.works.values()
        )
        packet = tuple(islice(fitting, size))
        for work in packet:
            del group.works[work.name]
        self._forget_if_empty(name)
        return packet

    def _forget_if_empty(self, name: str) -> None:
        if not self._groups[name].works:
            del self._groups[name]
