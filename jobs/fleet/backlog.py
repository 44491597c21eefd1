"""Work that waits for a worker, and how much of it a worker takes at a time."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterator
from dataclasses import dataclass

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
        in_packets: whether a worker may take several at a time.
        asker: the lease whose holder waits for this, parked, or may come to; None where nobody does.
    """

    name: str
    device: str
    kind: str
    group: str = ""
    in_packets: bool = False
    asker: str | None = None


def packet_size(remaining: int, workers: int) -> int:
    """How many of `remaining` works a worker takes that shares them with others: ceil(remaining / (2 workers)), 1 to 3.

    The paper says that it falls from 3 to 1; this rule fits all that it says, and leaves half of the works for others.
    """
    return max(1, min(LARGEST_PACKET, -(-remaining // (2 * max(1, workers)))))


class Backlog:
    """The works of one device that wait for a worker, group by group; no method takes longer with more of them."""

    def __init__(self) -> None:
        self._groups: OrderedDict[str, OrderedDict[str, Work]] = OrderedDict()
        self._largest: dict[
            str, int
        ] = {}  # packet of a group, so that none grows within a round, whoever comes and goes

    def __bool__(self) -> bool:
        return bool(self._groups)

    def __len__(self) -> int:
        return sum(map(len, self._groups.values()))

    @property
    def groups(self) -> Collection[str]:
        """The groups of the works that are here."""
        return self._groups.keys()

    def add(self, work: Work) -> None:
        """Adds a new work behind all others; with it a round of its group begins."""
        self._groups.setdefault(work.group, OrderedDict())[work.name] = work
        self._largest[work.group] = LARGEST_PACKET

    def put_back(self, work: Work) -> None:
        """Puts a work before all others; it may be here already."""
        group = self._groups.setdefault(work.group, OrderedDict())
        group[work.name] = work
        group.move_to_end(work.name, last=False)
        self._groups.move_to_end(work.group, last=False)

    def remove(self, work: Work) -> None:
        """Takes a work away, if it is here."""
        if (group := self._groups.get(work.group)) is not None:
            group.pop(work.name, None)
            self._forget_if_empty(work.group)

    def take(self, workers: int, alone: Collection[str], preferred: str) -> tuple[Work, ...]:
        """The next packet: of the group that is `preferred`, which the worker has open, else of the first group.

        Args:
            workers: how many share the works of this device.
            alone: names of works that share a packet with none.
            preferred: a group; there need not be works of it.
        """
        name = preferred if preferred in self._groups else next(iter(self._groups))
        group = self._groups[name]
        size = min(self._largest[name], packet_size(len(group), workers))
        _, first = group.popitem(last=False)
        packet = [first]
        if first.in_packets:
            self._largest[name] = size
            packet += self._more(group, 0 if first.name in alone else size - 1, alone)
        self._forget_if_empty(name)
        return tuple(packet)

    def _more(self, group: OrderedDict[str, Work], count: int, alone: Collection[str]) -> Iterator[Work]:
        for _ in range(count):
            following = next(iter(group.values()), None)
            if following is None or following.name in alone or not following.in_packets:
                return
            yield group.popitem(last=False)[1]

    def _forget_if_empty(self, name: str) -> None:
        if not self._groups[name]:
            del self._groups[name]
