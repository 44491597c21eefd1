"""Decides which request starts when, and on which cores: without threads and without a clock of its own."""

from __future__ import annotations

import math
from bisect import insort
from collections import Counter, deque
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from statistics import median

from iosched.jobs.serving.policy import ServingPolicy
from iosched.models.errors import BusyError

Block = tuple[int, ...]
"""Numbers of adjacent cores. Blocks of one size do not overlap."""

_LAST = 5  # runs whose median is the time of a model's run on blocks of one size
_SHORTER = 0.9  # a larger block is used if a run takes at most this share of the time on a smaller one
_RETRY = 64  # in each so many arrivals, one may use any block: times change


def blocks_of(size: int, cores: int) -> tuple[Block, ...]:
    """The blocks of `size` of the cores."""
    return tuple(tuple(range(first, first + size)) for first in range(0, cores - size + 1, size))


@dataclass(frozen=True)
class Start:
    """A request that starts on these cores; it has them until it ends."""

    request: Hashable
    block: Block


@dataclass(frozen=True)
class _Running:
    model: str
    block: Block
    began_s: float


@dataclass
class Dispatcher:
    """The state of cores and requests. Each event returns the requests that start now.

    A request takes the cores that are free, as many as its policy and the other waiting requests leave it: no core is
    idle while a request waits. A short one may run on the cores of long ones, see `ServingPolicy.overlap_ratio`; its
    block is `shared`. Times are seconds of any clock that never goes back.

    Attributes:
        cores: their number.
        overlaps: whether requests may share cores.
        load: core seconds that requests need in a second, over the cores; see `ModelPolicy.most_cores`.
    """

    cores: int
    policy: ServingPolicy = field(default_factory=ServingPolicy)
    overlaps: bool = True
    load: float = 0.0
    _at_s: float = -math.inf
    _free: set[int] = field(default_factory=set)
    _waiting: list[tuple[float, int, str, Hashable]] = field(default_factory=list)  # in the order in which they start
    _waiting_of: Counter[str] = field(default_factory=Counter)
    _running: dict[Hashable, _Running] = field(default_factory=dict)
    _runs_s: dict[str, dict[int, deque[float]]] = field(default_factory=dict)  # the last ones, by model and block size
    _useful: dict[str, tuple[int, ...]] = field(default_factory=dict)  # sizes of blocks
    _arrivals: int = 0

    def __post_init__(self) -> None:
        self._free = set(range(self.cores))

    @property
    def shared(self) -> Block:
        """Stands for the cores of running requests, which one more request may share."""
        return (self.cores,)

    @property
    def running(self) -> Mapping[Hashable, Block]:
        """The cores of each running request."""
        return {request: run.block for request, run in self._running.items()}

    @property
    def waiting(self) -> tuple[Hashable, ...]:
        """The waiting requests in the order in which they start."""
        return tuple(request for *_, request in self._waiting)

    def arrived(self, request: Hashable, model: str, now_s: float) -> list[Start]:
        """A request arrives.

        Raises:
            BusyError: too many requests of this model wait. Nothing has changed then, but the load.
        """
        own = self.policy.of(model)
        self._pass_time(now_s, model)
        if not self._free and self._waiting_of[model] >= own.most_waiting:
            raise BusyError(f"{own.most_waiting} requests of {model!r} wait already: try again later")
        self._arrivals += 1
        due_s = now_s - own.priority * self.policy.priority_s + self._work_s(model) * self.policy.length_weight
        insort(self._waiting, (due_s, self._arrivals, model, request))
        self._waiting_of[model] += 1
        return list(self._starts(now_s))

    def ended(self, request: Hashable, now_s: float) -> list[Start]:
        """A request is over: it ran, failed, or was given up while it waited."""
        run = self._running.pop(request, None)
        if run is None:
            self._drop(request)
            return []
        if run.block == self.shared:
            return list(self._starts(now_s))
        self._free.update(run.block)
        runs_s = self._runs_s.setdefault(run.model, {}).setdefault(len(run.block), deque(maxlen=_LAST))
        runs_s.append(now_s - run.began_s)
        self._useful[run.model] = self._useful_sizes(run.model)
        return list(self._starts(now_s))

    def drop_waiting(self) -> tuple[Hashable, ...]:
        """Drop all waiting requests and return them."""
        dropped = self.waiting
        self._waiting.clear()
        self._waiting_of.clear()
        return dropped

    def _drop(self, request: Hashable) -> None:
        for index, (*_, model, waiting) in enumerate(self._waiting):
            if waiting == request:
                del self._waiting[index]
                self._waiting_of[model] -= 1
                return

    def _pass_time(self, now_s: float, model: str) -> None:
        """The load after a request of `model`: each counts with its core seconds, the less the longer ago."""
        self.load *= math.exp((self._at_s - now_s) / self.policy.load_s)
        self._at_s = now_s
        self.load += self._work_s(model) / (self.policy.load_s * self.cores)

    def _work_s(self, model: str) -> float:
        """Core seconds that a request needs; 0 before the first run."""
        return min((size * median(runs_s) for size, runs_s in self._runs_s.get(model, {}).items()), default=0.0)

    def _useful_sizes(self, model: str) -> tuple[int, ...]:
        """The sizes of blocks without those that are known to make no run shorter, if the policy does not set them."""
        own = self.policy.of(model)
        sizes, runs_s = own.sizes(self.cores), self._runs_s[model]
        if own.cores:
            return sizes
        known_s = {size: median(found) for size, found in runs_s.items()}
        least_s = {size: min((known_s[each] for each in known_s if each < size), default=math.inf) for size in sizes}
        return tuple(size for size in sizes if known_s.get(size, 0.0) <= least_s[size] * _SHORTER)

    def _starts(self, now_s: float) -> Iterator[Start]:
        while self._waiting and self._free:
            *_, model, _ = self._waiting[0]
            own = self.policy.of(model)
            most = min(own.most_cores(self.load, self.cores), max(1, len(self._free) // len(self._waiting)))
            sizes = own.sizes(self.cores)
            if self._arrivals % _RETRY:
                sizes = self._useful.get(model, sizes)
            block = next(self._free_blocks(sizes, most))
            self._free.difference_update(block)
            yield self._start(0, block, now_s)
        if (index := self._overlapping(now_s)) is not None:
            yield self._start(index, self.shared, now_s)

    def _start(self, index: int, block: Block, now_s: float) -> Start:
        *_, model, request = self._waiting.pop(index)
        self._waiting_of[model] -= 1
        self._running[request] = _Running(model, block, now_s)
        return Start(request, block)

    def _overlapping(self, now_s: float) -> int | None:
        """The first waiting request that is short enough to share cores."""
        ratio = self.policy.overlap_ratio
        if not self._waiting or not self.overlaps or ratio is None or self._is_shared():
            return None
        left_s = min(map(self._end_s, self._running.values())) - now_s
        short = (0 < self._work_s(model) * ratio <= left_s for *_, model, _ in self._waiting)
        return next((index for index, is_short in enumerate(short) if is_short), None)

    def _is_shared(self) -> bool:
        return any(run.block == self.shared for run in self._running.values())

    def _end_s(self, run: _Running) -> float:
        """When the request is expected to end; when it began if that is unknown."""
        runs_s = self._runs_s.get(run.model, {}).get(len(run.block))
        return run.began_s + (median(runs_s) if runs_s else 0.0)

    def _free_blocks(self, sizes: tuple[int, ...], most: int) -> Iterator[Block]:
        for size in sizes:
            if size <= most:
                yield from (block for block in blocks_of(size, self.cores) if self._free.issuperset(block))
