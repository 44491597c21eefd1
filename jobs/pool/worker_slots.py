"""Device slots of a cluster. Each wanted slot has one worker, which is restarted if it is lost."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from iosched.jobs.pool.messages import Facts
from iosched.jobs.pool.transport import Command, Place, Start, Stop
from iosched.models.errors import DeviceError, DeviceLostError, IoschedError
from iosched.profiler.store.tables import Row, StageRow

FIRST_WAIT_S, LONGEST_WAIT_S = 0.25, 60.0
"""Delay before a lost worker is restarted. It doubles with each loss until a worker completes an assignment."""

GO_ON = "What was measured is kept: run the command again to go on from there, with a larger --budget if it has one."

WATCHED, MOST_DISTURBED = 10, 7
"""A worker is noisy if more than `MOST_DISTURBED` of its latest `WATCHED` stage measurements were disturbed."""


@dataclass(eq=False)
class ActiveWorker:
    """A worker that can run tasks.

    Attributes:
        done: number of completed assignments.
        knows_others: whether it has received rows of other devices.
        heard_s: time of its latest message or assignment.
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
        """Records whether its latest stage measurements were disturbed."""
        self._disturbed.extend(row.disturbed_by for row in rows if isinstance(row, StageRow))

    @property
    def noise(self) -> str:
        """The latest interference, if nearly all recent measurements were disturbed; else empty."""
        disturbed = [reason for reason in self._disturbed if reason]
        return disturbed[-1] if len(disturbed) > MOST_DISTURBED else ""


@dataclass
class _Slot:
    """A device of the cluster.

    Attributes:
        wait_s: delay before a lost worker is restarted.
        again_s: when a worker may be started; never if a worker of the slot was refused for good.
        is_resting: whether it has no worker because its machine is noisy.
    """

    place: Place
    worker: str | None = None
    wait_s: float = FIRST_WAIT_S
    again_s: float = 0.0
    is_resting: bool = False


class WorkerSlots:
    """The device slots of a cluster and their workers. Times are seconds of any clock.

    Attributes:
        wanted: names of the devices to start workers on.
        active: workers that can run tasks, by name.
        losses: one line per lost worker.
        is_known: whether the cluster has listed its devices.
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
        """Sorted names of the cluster's devices."""
        return tuple(sorted({slot.place.device for slot in self._slots.values()}))

    def count(self, device: str) -> int:
        """Returns the maximum number of workers for a device."""
        return sum(slot.place.device == device and slot.again_s < math.inf for slot in self._slots.values())

    def change(self, places: Sequence[Place]) -> None:
        """Updates the cluster's places. Workers at removed places continue until they end."""
        found = {
            (place.node, place.device, place.cores, number): place for place in places for number in range(place.count)
        }
        self._slots = {key: self._slots.get(key) or _Slot(place) for key, place in found.items()}
        self._is_reached = self.is_known = True

    def clear(self) -> None:
        """Removes all workers after the connection was lost, but keeps the slots."""
        self._slots = {key: _Slot(slot.place) for key, slot in self._slots.items()}
        self._is_reached = False

    def start(self, now_s: float) -> None:
        """Starts workers in wanted slots without one.

        A resting slot restarts early if no other slot of its device has a worker.
        """
        served = {slot.place.device for slot in self._slots.values() if slot.worker is not None}
        for slot in self._slots.values() if self._is_reached else ():
            may_restart = now_s >= slot.again_s or (slot.is_resting and slot.place.device not in served)
            if slot.worker is None and may_restart and slot.place.device in self.wanted:
                self._n_started += 1
                slot.worker, slot.is_resting = f"worker-{self._n_started}", False
                self._send(Start(slot.worker, slot.place))

    def arrive(self, worker: str, facts: Facts, now_s: float) -> ActiveWorker | None:
        """Adds a worker; None if its version differs, or it is noisy and a quieter machine has a worker."""
        if (slot := self._slot_of(worker)) is None:
            self._send(Stop(worker))
            return None
        if facts.other_version:
            self.refuse(worker, facts.other_version)
            return None
        active = ActiveWorker(facts, slot.place)
        if active.noise and self._has_quieter_machine(slot.place):
            self.refuse(worker, f"its machine is too noisy to measure on: {active.noise}", now_s + LONGEST_WAIT_S)
            return None
        self.active[worker] = active
        self._had.add(facts.device)
        noisy = f"; its machine is noisy: {active.noise}" if active.noise else ""
        self._note(f"{worker} is up: {facts.name} of {slot.place.address}{noisy}")
        return active

    def refuse(self, worker: str, reason: str, again_s: float = math.inf) -> None:
        """Stops a worker. Its slot rests until `again_s`, by default for good."""
        self._send(Stop(worker))
        if (slot := self._slot_of(worker)) is None:
            return
        slot.worker, slot.again_s, slot.is_resting = None, again_s, again_s < math.inf
        device = slot.place.device
        text = f"{device} of {slot.place.address} is not used: {reason}"
        if self._reasons.get(device) != text:
            self._note(text)
        self._reasons[device] = text

    def give_up_noisy(self, now_s: float) -> list[str]:
        """Stops noisy workers whose device has a worker on a quieter machine; returns their names."""
        found = []
        for worker, active in self.active.items():
            if self._slot_of(worker) and active.noise and self._has_quieter_machine(active.place):
                reason = f"its machine has become too noisy to measure on: {active.noise}"
                self.refuse(worker, reason, now_s + LONGEST_WAIT_S)
                found.append(worker)
        return found

    def proved(self, worker: str) -> None:
        """Resets the restart delay after a completed assignment."""
        if (slot := self._slot_of(worker)) is not None:
            slot.wait_s = FIRST_WAIT_S

    def lost(self, worker: str, reason: str, now_s: float) -> None:
        """Records a lost worker and schedules its restart."""
        slot = self._slot_of(worker)
        if (there := slot or self.active.get(worker)) is None:  # its machine has left the cluster
            return
        text = f"{worker} on {there.place.device} of {there.place.address} was lost: {reason}"
        self._reasons[there.place.device] = text
        self.losses.append(text)
        self._note(text)
        if slot is not None:
            slot.worker, slot.again_s = None, now_s + slot.wait_s
            slot.wait_s = min(2 * slot.wait_s, LONGEST_WAIT_S)

    def why(self, device: str) -> str:
        """Returns a line with the latest problem of a device; empty without one."""
        reason = self._reasons.get(device)
        return f"\nThe last: {reason}." if reason else ""

    def no_worker(self, device: str, without_s: float) -> IoschedError:
        """Returns the error for a device that has had no worker for `without_s` seconds."""
        if device in self._had:
            text = f"all workers on {device} were lost, and none came for {without_s:.0f} s."
            return DeviceLostError(f"{text}{self.why(device)}\n{GO_ON}")
        there = ", ".join(self.devices) or "none"
        return DeviceError(
            f"no worker on {device} came up within {without_s:.0f} s; the cluster has: {there}.{self.why(device)}\n"
            "To list the problems of its machines, run: iosched devices --cluster"
        )

    def _has_quieter_machine(self, place: Place) -> bool:
        """Whether a worker of the same device on another machine measures without interference."""
        others = (each for each in self.active.values() if each.place.node != place.node)
        return any(each.place.device == place.device and not each.noise for each in others)

    def _slot_of(self, worker: str) -> _Slot | None:
        return next((slot for slot in self._slots.values() if slot.worker == worker), None)
