"""Which workers there are and ought to be: one for each device that is asked for, started again where it was lost."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from iosched.jobs.pool.messages import Facts
from iosched.jobs.pool.transport import Place, Start
from iosched.profiler.store.tables import Row, StageRow

FIRST_WAIT_S, LONGEST_WAIT_S = 0.25, 60.0
"""How long a device stays without a worker that was lost: twice as long each time, until one has done something."""

WATCHED, MOST_DISTURBED = 10, 7
"""Of so many stages that a worker measured last so many may have been disturbed."""


@dataclass(eq=False)
class Member:
    """A worker that may be given tasks.

    Attributes:
        done: works that it has answered.
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
class _Post:
    """One device, and the worker that was started on it last."""

    place: Place
    worker: str | None = None
    wait_s: float = FIRST_WAIT_S
    again_s: float = 0.0
    is_resting: bool = False
    is_closed: bool = False


@dataclass
class Roster:
    """The devices of a cluster, and their workers. Times are seconds of any clock.

    Attributes:
        wanted: names of devices that workers are started for.
        members: workers that may be given tasks, by name.
    """

    wanted: set[str] = field(default_factory=set)
    members: dict[str, Member] = field(default_factory=dict)
    is_known: bool = False
    _posts: dict[tuple[str, str, tuple[int, ...], int], _Post] = field(default_factory=dict)
    _started: int = 0
    _is_reached: bool = False

    @property
    def devices(self) -> tuple[str, ...]:
        """Devices that the cluster has, by name, sorted."""
        return tuple(sorted({post.place.device for post in self._posts.values()}))

    def count(self, device: str) -> int:
        """How many workers a device can have."""
        return sum(post.place.device == device and not post.is_closed for post in self._posts.values())

    def change(self, places: Sequence[Place]) -> None:
        """The cluster has these places now; workers at others are left to end."""
        found = {
            (place.node, place.device, place.cores, number): place for place in places for number in range(place.count)
        }
        self._posts = {key: self._posts.get(key) or _Post(place) for key, place in found.items()}
        self._is_reached = self.is_known = True

    def clear(self) -> None:
        """The cluster is not reached any more, nor any of its workers; it will probably have what it had."""
        self._posts = {key: _Post(post.place) for key, post in self._posts.items()}
        self._is_reached = False

    def to_start(self, now_s: float) -> Iterator[Start]:
        """Workers for the wanted devices that have none; they count as there from here on.

        A device rests no longer once no other one of its name has a worker.
        """
        served = {post.place.device for post in self._posts.values() if post.worker is not None}
        for post in self._posts.values() if self._is_reached else ():
            is_rested = now_s >= post.again_s or (post.is_resting and post.place.device not in served)
            is_due = post.worker is None and not post.is_closed and is_rested
            if is_due and post.place.device in self.wanted:
                self._started += 1
                post.worker, post.is_resting = f"worker-{self._started}", False
                yield Start(post.worker, post.place)

    def place_of(self, worker: str) -> Place | None:
        """Where a worker is, or was if it is still a member; None where its place is gone."""
        post = self._post_of(worker) or self.members.get(worker)
        return None if post is None else post.place

    def proved(self, worker: str) -> None:
        """A worker has done something, so the next one there will not have to wait long."""
        if (post := self._post_of(worker)) is not None:
            post.wait_s = FIRST_WAIT_S

    def lost(self, worker: str, now_s: float) -> None:
        """A worker has ended; another is started there after a while."""
        if (post := self._post_of(worker)) is not None:
            post.worker, post.again_s = None, now_s + post.wait_s
            post.wait_s = min(2 * post.wait_s, LONGEST_WAIT_S)

    def rest(self, worker: str, now_s: float) -> None:
        """A worker is of less use than others; another is started there after the longest wait."""
        if (post := self._post_of(worker)) is not None:
            post.worker, post.again_s, post.is_resting = None, now_s + LONGEST_WAIT_S, True

    def shut(self, worker: str) -> None:
        """No worker is of use there."""
        if (post := self._post_of(worker)) is not None:
            post.worker, post.is_closed = None, True

    def is_quieter_elsewhere(self, place: Place) -> bool:
        """Whether a worker of the same device on another machine measures undisturbed."""
        others = (each for each in self.members.values() if each.place.node != place.node)
        return any(each.place.device == place.device and not each.noise for each in others)

    def _post_of(self, worker: str) -> _Post | None:
        return next((post for post in self._posts.values() if post.worker == worker), None)
