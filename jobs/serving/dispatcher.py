"""Decides when and on which cores each request starts, without threads and without a clock."""

from __future__ import annotations

import math
from bisect import insort
from collections import Counter, deque
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field

from iosched.jobs.serving.policy import ServingPolicy
from iosched.models.errors import BusyError
from iosched.runtime.shared_cores import Block

_LAST = 5  # runs whose median is the time of a model's run on blocks of one size
_SHORTER = 0.9  # a larger block is used if a run takes at most this share of the time on a smaller one


def blocks_of(size: int, cores: int) -> tuple[Block, ...]:
    """The blocks of `size` cores, which do not overlap."""
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


class _Times:
    """Latencies of a model's runs.

    Attributes:
        sizes: the numbers of cores that a run may have, the largest first.
        run_s: the median of the last runs, by number of cores.
        work_s: core seconds that a request needs; 0 before the first run.
    """

    def __init__(self, sizes: tuple[int, ...]) -> None:
        self.sizes = sizes
        self.run_s: dict[int, float] = {}
        self.work_s = 0.0
        self._last_s: dict[int, deque[float]] = {size: deque(maxlen=_LAST) for size in sizes}

    def add(self, size: int, took_s: float) -> None:
        """Record a run; O(sizes)."""
        last_s = self._last_s[size]
        last_s.append(took_s)
        self.run_s[size] = sorted(last_s)[len(last_s) // 2]
        self.work_s = min([size * run_s for size, run_s in self.run_s.items()])

    def keep_useful(self) -> None:
        """Leave out sizes on which a run is hardly shorter than on a smaller one."""
        least_s, useful = math.inf, list[int]()
        for size in reversed(self.sizes):
            run_s = self.run_s.get(size, 0.0)
            if run_s <= least_s * _SHORTER:
                useful.append(size)
            least_s = min(least_s, run_s or math.inf)
        self.sizes = tuple(reversed(useful))


@dataclass
class Dispatcher:
    """The state of cores and requests. Each event returns the requests that start now.

    A request takes the cores that are free, as many as its policy allows: no core is idle while a request waits. A
    short one may run on the cores of long ones, see `ServingPolicy.overlap_ratio`; its block is `shared`. Times are
    seconds of any monotonic clock.

    Attributes:
        cores: the number of cores.
        load: core seconds that requests need per second, divided by the cores; see `ModelPolicy.most_cores`.
    """

    cores: int
    policy: ServingPolicy = field(default_factory=ServingPolicy)
    load: float = 0.0
    _at_s: float = -math.inf
    _free: set[int] = field(default_factory=set)
    _waiting: list[tuple[float, int, str, Hashable]] = field(default_factory=list)  # in the order in which they start
    _waiting_of: Counter[str] = field(default_factory=Counter)
    _running: dict[Hashable, _Running] = field(default_factory=dict)
    _times: dict[str, _Times] = field(default_factory=dict)
    _arrivals: int = 0

    def __post_init__(self) -> None:
        self._free = set(range(self.cores))

    @property
    def shared(self) -> Block:
        """A placeholder for the cores of running requests, which one more request may share."""
        return (self.cores,)

    @property
    def running(self) -> Mapping[Hashable, Block]:
        """The cores of each running request."""
        return {request: run.block for request, run in self._running.items()}

    @property
    def waiting(self) -> tuple[Hashable, ...]:
        """The waiting requests in the order in which they start."""
        return tuple(request for *_, request in self._waiting)

    def opened(self, model: str, run_s: Mapping[int, float]) -> None:
        """A model was opened; `run_s` has the known times of its runs by number of cores.

        Requests get only numbers of cores that shorten their runs, unless the policy sets the numbers.
        """
        times = self._times[model] = self._new_times(model)
        for size, took_s in run_s.items():
            times.add(size, took_s)
        if not self.policy.of(model).cores:
            times.keep_useful()

    def arrived(self, request: Hashable, model: str, now_s: float) -> list[Start]:
        """A request arrives.

        Raises:
            BusyError: too many requests of this model wait. Only the load has changed then.
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
        self._times_of(run.model).add(len(run.block), now_s - run.began_s)
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
        """Updates the load for a request of `model`: each counts with its core seconds, which decay with time."""
        self.load *= math.exp((self._at_s - now_s) / self.policy.load_s)
        self._at_s = now_s
        self.load += self._work_s(model) / (self.policy.load_s * self.cores)

    def _work_s(self, model: str) -> float:
        return self._times_of(model).work_s

    def _times_of(self, model: str) -> _Times:
        return self._times.get(model) or self._times.setdefault(model, self._new_times(model))

    def _new_times(self, model: str) -> _Times:
        return _Times(self.policy.of(model).sizes(self.cores))

    def _starts(self, now_s: float) -> Iterator[Start]:
        while self._waiting and self._free:
            *_, model, _ = self._waiting[0]
            most = self.policy.of(model).most_cores(self.load, self.cores)
            block = next(self._free_blocks(self._times_of(model).sizes, most))
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
        if not self._waiting or ratio is None or self._is_shared():
            return None
        left_s = min(map(self._end_s, self._running.values())) - now_s
        short = (0 < self._work_s(model) * ratio <= left_s for *_, model, _ in self._waiting)
        return next((index for index, is_short in enumerate(short) if is_short), None)

    def _is_shared(self) -> bool:
        return any(run.block == self.shared for run in self._running.values())

    def _end_s(self, run: _Running) -> float:
        """When the request is expected to end; when it began if that is unknown."""
        return run.began_s + self._times_of(run.model).run_s.get(len(run.block), 0.0)

    def _free_blocks(self, sizes: tuple[int, ...], most: int) -> Iterator[Block]:
        for size in sizes:
            if size <= most:
                yield from (block for block in blocks_of(size, self.cores) if self._free.issuperset(block))
