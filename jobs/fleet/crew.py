"""The workers: who is there, and what each has."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from iosched.jobs.fleet.turns import Turns


@dataclass(frozen=True)
class WorkerFacts:
    """What the dispatcher knows of a worker.

    Attributes:
        name: no other worker has it.
        devices: names of devices whose works it does: what people call its device, and the key of what it measures.
        node: the machine that it is on.
        side: "cpu" or "gpu"; workers of one machine on different sides never work at a time.
    """

    name: str
    devices: tuple[str, ...]
    node: str
    side: str = "cpu"


@dataclass
class Hand:
    """A worker as it is now.

    Attributes:
        job: the lease that it has; None where it has none.
        is_parked: whether the holder of that lease waits for works that it asked for.
        packet: the lease that it took beside it while it was parked.
        group: of the works that it had last, which it may still have open.
    """

    facts: WorkerFacts
    job: str | None = None
    is_parked: bool = False
    packet: str | None = None
    group: str = ""

    @property
    def is_free(self) -> bool:
        """Whether it has nothing; a job that needs no packet any more may end before the packet does."""
        return self.job is None and self.packet is None


class Crew:
    """All workers that are up."""

    def __init__(self, turn_s: float) -> None:
        self._hands: dict[str, Hand] = {}
        self._free: dict[str, dict[str, Hand]] = {}
        self._parked: dict[str, dict[str, Hand]] = {}
        self._counts: dict[str, int] = {}
        self._nodes: dict[str, dict[str, Hand]] = {}
        self._turns = Turns(turn_s)

    def join(self, facts: WorkerFacts) -> None:
        """A worker is up; see `Dispatcher.worker_up`."""
        if facts.name in self._hands:
            raise ValueError(f"there is a worker {facts.name} already")
        hand = self._hands[facts.name] = Hand(facts)
        self._nodes.setdefault(facts.node, {})[facts.name] = hand
        for device in facts.devices:
            self._counts[device] = self.count(device) + 1
        self._place(hand)

    def leave(self, name: str) -> tuple[str, ...]:
        """A worker has ended; returns the leases that it had."""
        if (hand := self._hands.pop(name, None)) is None:
            return ()
        if not hand.is_free:
            self._turns.end(hand.facts.node)
        for device in hand.facts.devices:
            self._counts[device] -= 1
            self._free[device].pop(name, None)
            self._parked[device].pop(name, None)
        del self._nodes[hand.facts.node][name]
        return tuple(lease for lease in (hand.packet, hand.job) if lease is not None)

    def park(self, name: str, group: str) -> None:
        """The holder of this worker's lease waits for works of a group, which it has open."""
        hand = self._hands[name]
        hand.is_parked, hand.group = True, group
        self._place(hand)

    def resume(self, name: str) -> None:
        """The holder of this worker's lease waits no longer."""
        hand = self._hands[name]
        hand.is_parked = False
        self._place(hand)

    def begin(self, hand: Hand, lease: str, group: str, now_s: float) -> None:
        """A worker has a lease from here on."""
        if hand.job is None:
            hand.job = lease
            self._turns.begin(hand.facts.node, hand.facts.side, now_s)
        else:
            hand.packet = lease
        hand.group = group
        self._place(hand)

    def end(self, name: str, lease: str) -> None:
        """A worker has a lease no longer."""
        hand = self._hands[name]
        if hand.packet == lease:
            hand.packet = None
        else:
            hand.job, hand.is_parked = None, False
        if hand.is_free:
            self._turns.end(hand.facts.node)
        self._place(hand)

    def count(self, device: str) -> int:
        """How many workers serve a device."""
        return self._counts.get(device, 0)

    def free(self, device: str) -> tuple[Hand, ...]:
        """Workers of a device that have nothing, the one that had nothing for longest first."""
        return tuple(self._free.get(device, {}).values())

    def has_free(self, device: str) -> bool:
        """Whether some worker of a device has nothing."""
        return bool(self._free.get(device))

    def parked(self, device: str) -> tuple[Hand, ...]:
        """Workers of a device whose job waits, and that have no packet beside it."""
        return tuple(self._parked.get(device, {}).values())

    def for_packets(self, device: str, groups: Collection[str]) -> tuple[Hand, ...]:
        """Workers of a device that can take works of these groups, which others wait for.

        First those that have a group open, then those that are parked, who may have guesses to make meanwhile.
        """
        free = self.free(device)
        ready = tuple(hand for hand in free if hand.group in groups)
        others = tuple(hand for hand in free if hand.group not in groups)
        return (*ready, *self.parked(device), *others)

    def may_begin(self, hand: Hand, now_s: float, has_work: Callable[[str], bool]) -> bool:
        """Whether a free or parked worker may begin something now; one that is parked has its machine already.

        Args:
            has_work: whether there is work for a device.
        """
        if hand.job is not None:
            return True
        facts = hand.facts
        others_wait = any(
            other.is_free and any(map(has_work, other.facts.devices))
            for other in self._nodes[facts.node].values()
            if other.facts.side != facts.side
        )
        return self._turns.may_begin(facts.node, facts.side, now_s, others_wait)

    def _place(self, hand: Hand) -> None:
        """Puts a worker among those that are free, or parked, or neither."""
        for among, belongs in ((self._free, hand.is_free), (self._parked, hand.is_parked and hand.packet is None)):
            for device in hand.facts.devices:
                hands = among.setdefault(device, {})
                if belongs:
                    hands.setdefault(hand.facts.name, hand)
                else:
                    hands.pop(hand.facts.name, None)
