"""Which workers there are and ought to be: one for each device that is asked for, started again where it was lost."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from iosched.jobs.pool.messages import Facts
from iosched.jobs.pool.transport import Command, Place, Start, Stop
from iosched.models.errors import DeviceError, DeviceLostError, IoschedError
from iosched.profiler.store.tables import Row, StageRow

FIRST_WAIT_S, LONGEST_WAIT_S = 0.25, 60.0
"""How long a device stays without a worker that was lost: twice as long each time, until one has done something."""

GO_ON = "What was measured is kept: run the command again to go on from there, with a larger --budget if it has one."

WATCHED, MOST_DISTURBED = 10, 7
"""Of so many stages that a worker measured last so many may have been disturbed."""


@dataclass(eq=False)
class ActiveWorker:
    """A worker that may be given tasks.

    Attributes:
        done: calls that it has answered.
        knows_others: whether it was sent rows of other devices.
        heard_s: when it was given something, or said something, last.
    """

    facts: Facts
    place: Place
    done: int = 0
    knows_others: bool = False
    heard_s: float = 0.0
    _disturbed: deque[str] = field(default_factory=lambda: deque(maxlen=WATCHED))

    def __post_init__(self) -> None:
        self._disturbed.extend(WATCHED * self.facts.disturbed_by[-1:])

    def measured(self, rows: Sequence[Row]) -> None:
        """The worker has measured these stages, among others."""
        self._disturbed.extend(row.disturbed_by for row in rows if isinstance(row, StageRow))

    @property
    def noise(self) -> str:
        """What disturbed nearly all that this worker measured last; empty where nothing did."""
        disturbed = [reason for reason in self._disturbed if reason]
        return disturbed[-1] if len(disturbed) > MOST_DISTURBED else ""


@dataclass
class _Slot:
    """One device, and the worker that was started on it last."""

    place: Place
    worker: str | None = None
    wait_s: float = FIRST_WAIT_S
    again_s: float = 0.0
    is_resting: bool = False
    is_closed: bool = False


class WorkerSlots:
    """The devices of a cluster, and their workers. Times are seconds of any clock.

    Args:
        send: passes a command to the cluster.
        note: tells people that a worker came, was lost or is not used.

    Attributes:
        wanted: names of devices that workers are started for.
        active: workers that may be given tasks, by name.
        losses: a line for each worker that was lost.
        is_known: whether the cluster has said what it has.
    """

    def __init__(self, send: Callable[[Command], None], note: Callable[[str], None]) -> None:
        self._send, self._note = send, note
        self.wanted: set[str] = set()
        self.active: dict[str, ActiveWorker] = {}
        self.losses: list[str] = []
        self.is_known = self._is_reached = False
        self._slots: dict[tuple[str, str, tuple[int, ...], int], _Slot] = {}
        self._n_started = 0
        self._had: set[str] = set()
        self._reasons: dict[str, str] = {}

    @property
    def devices(self) -> tuple[str, ...]:
        """Devices that the cluster has, by name, sorted."""
        return tuple(sorted({slot.place.device for slot in self._slots.values()}))

    def count(self, device: str) -> int:
        """How many workers a device can have."""
        return sum(slot.place.device == device and not slot.is_closed for slot in self._slots.values())

    def change(self, places: Sequence[Place]) -> None:
        """The cluster has these places now; workers at others are left to end."""
        found = {
            (place.node, place.device, place.cores, number): place for place in places for number in range(place.count)
        }
        self._slots = {key: self._slots.get(key) or _Slot(place) for key, place in found.items()}
        self._is_reached = self.is_known = True

    def clear(self) -> None:
        """The cluster is not reached any more, nor any of its workers; it will probably have what it had."""
        self._slots = {key: _Slot(slot.place) for key, slot in self._slots.items()}
        self._is_reached = False

    def start(self, now_s: float) -> None:
        """Starts workers on the wanted devices that have none.

        A device rests no longer once no other one of its name has a worker.
        """
        served = {slot.place.device for slot in self._slots.values() if slot.worker is not None}
        for slot in self._slots.values() if self._is_reached else ():
            is_rested = now_s >= slot.again_s or (slot.is_resting and slot.place.device not in served)
            is_due = slot.worker is None and not slot.is_closed and is_rested
            if is_due and slot.place.device in self.wanted:
                self._n_started += 1
                slot.worker, slot.is_resting = f"worker-{self._n_started}", False
                self._send(Start(slot.worker, slot.place))

    def arrive(self, worker: str, facts: Facts, now_s: float) -> ActiveWorker | None:
        """A worker is up; None where it is of no use: of another version, or noisy while a quieter machine has one."""
        if (slot := self._slot_of(worker)) is None:
            self._send(Stop(worker))
            return None
        if facts.other_version:
            self.refuse(worker, facts.other_version)
            return None
        noise = facts.disturbed_by[-1] if facts.disturbed_by else ""
        if noise and self._is_quieter_elsewhere(slot.place):
            self._rest(worker, slot, f"its machine is too noisy to measure on: {noise}", now_s)
            return None
        self.active[worker] = ActiveWorker(facts, slot.place)
        self._had.add(facts.device)
        noisy = f"; its machine is noisy: {noise}" if noise else ""
        self._note(f"{worker} is up: {facts.name} of {slot.place.address}{noisy}")
        return self.active[worker]

    def refuse(self, worker: str, reason: str) -> None:
        """No worker is of use there."""
        self._send(Stop(worker))
        if (slot := self._slot_of(worker)) is not None:
            slot.worker, slot.is_closed = None, True
            self._tell_unused(slot.place, reason)

    def give_up_noisy(self, now_s: float) -> list[str]:
        """Rests devices whose workers were disturbed while a quieter machine has one; returns these workers."""
        found = []
        for worker, member in self.active.items():
            slot, noise = self._slot_of(worker), member.noise
            if slot is not None and noise and self._is_quieter_elsewhere(member.place):
                self._rest(worker, slot, f"its machine has become too noisy to measure on: {noise}", now_s)
                found.append(worker)
        return found

    def proved(self, worker: str) -> None:
        """A worker has done something, so the next one there will not have to wait long."""
        if (slot := self._slot_of(worker)) is not None:
            slot.wait_s = FIRST_WAIT_S

    def lost(self, worker: str, reason: str, now_s: float) -> None:
        """A worker has ended; another is started there after a while."""
        slot = self._slot_of(worker)
        if (there := slot or self.active.get(worker)) is None:  # a machine that left the cluster has no slot
            return
        text = f"{worker} on {there.place.device} of {there.place.address} was lost: {reason}"
        self._reasons[there.place.device] = text
        self.losses.append(text)
        self._note(text)
        if slot is not None:
            slot.worker, slot.again_s = None, now_s + slot.wait_s
            slot.wait_s = min(2 * slot.wait_s, LONGEST_WAIT_S)

    def why(self, device: str) -> str:
        """What was last in the way of a worker of a device, as a line; empty where nothing was."""
        reason = self._reasons.get(device)
        return f"\nThe last: {reason}." if reason else ""

    def no_worker(self, device: str, without_s: float) -> IoschedError:
        """Says that a device has had no worker for so long."""
        if device in self._had:
            text = f"all workers on {device} were lost, and none came for {without_s:.0f} s."
            return DeviceLostError(f"{text}{self.why(device)}\n{GO_ON}")
        there = ", ".join(self.devices) or "none"
        return DeviceError(
            f"no worker on {device} came up within {without_s:.0f} s; the cluster has: {there}.{self.why(device)}\n"
            "See what its machines lack with: iosched devices --cluster"
        )

    def _rest(self, worker: str, slot: _Slot, reason: str, now_s: float) -> None:
        """A worker is of less use than others; another is started there after the longest wait."""
        self._send(Stop(worker))
        slot.worker, slot.again_s, slot.is_resting = None, now_s + LONGEST_WAIT_S, True
        self._tell_unused(slot.place, reason)

    def _tell_unused(self, place: Place, reason: str) -> None:
        text = f"{place.device} of {place.address} is not used: {reason}"
        if self._reasons.get(place.device) != text:
            self._note(text)
        self._reasons[place.device] = text

    def _is_quieter_elsewhere(self, place: Place) -> bool:
        """Whether a worker of the same device on another machine measures undisturbed."""
        others = (each for each in self.active.values() if each.place.node != place.node)
        return any(each.place.device == place.device and not each.noise for each in others)

    def _slot_of(self, worker: str) -> _Slot | None:
        return next((slot for slot in self._slots.values() if slot.worker == worker), None)
