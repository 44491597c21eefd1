"""Discrete events around the pool's own scheduling: the cluster behind `fleet_simulation.py`, with made-up durations.

`jobs/pool/scheduling.py` assigns tasks as on a real cluster; this module has only the events that it receives.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush

from iosched.jobs.pool.scheduling import Assignment, Decisions, ScheduledWorker, Scheduler
from iosched.jobs.pool.task_queue import QueuedTask

MESSAGE_S = 0.05
"""Seconds of a message between driver and worker: kilobytes over a slow network between busy processes."""

NOTICED_S = 30.0
"""Delay until the driver learns that a worker is lost."""

REPLACED_S = 300.0
"""Delay until a lost worker is replaced by another of its speed."""

TICK_S = 300.0
DEVICE = "any"


@dataclass(frozen=True)
class Cluster:
    """Workers by their speeds; 1 is the speed to which lengths of tasks refer.

    Attributes:
        lost_an_hour: the share of the workers that is lost within an hour, at any time and independently.
        message_s: how long a message takes each way.
    """

    speeds: tuple[float, ...]
    lost_an_hour: float = 0.0
    message_s: float = MESSAGE_S

    @property
    def rate_s(self) -> float:
        """Losses of one worker per second."""
        return -math.log1p(-self.lost_an_hour) / 3600


@dataclass(frozen=True)
class Generations:
    """As published: a generation starts when all of the previous one are evaluated."""

    sizes: tuple[int, ...]
    in_packets: bool = True

    def first(self) -> int:
        return self.sizes[0]

    def after(self, answered: int) -> int:
        done = 0
        for size, following in zip(self.sizes, self.sizes[1:], strict=False):
            done += size
            if done == answered:
                return following
        return 0


@dataclass(frozen=True)
class SteadyState:
    """Without a barrier: each answer makes another individual, until there are `total`."""

    total: int
    at_once: int
    in_packets: bool = False

    def first(self) -> int:
        return min(self.total, self.at_once)

    def after(self, answered: int) -> int:
        return 1 if answered + self.at_once <= self.total else 0


Algorithm = Generations | SteadyState
"""The tasks to evaluate: the initial number, and the number of further ones `after` a number of answers."""


@dataclass
class Outcome:
    """The outcome of a run.

    Attributes:
        hours: until the last answer.
        work_hours: total time of the answered tasks at speed 1, each counted once.
        answered: tasks with an answer, and `failed` those without.
        by_worker: number of counted answers of each place; a replacement has the place of the lost worker.
        lost: number of lost workers.
        late: slow assignments whose tasks were also given to others.
        in_vain_hours: time of workers on tasks that were lost or already answered.
        packets: assignments that were sent.
    """

    hours: float = 0.0
    work_hours: float = 0.0
    answered: int = 0
    failed: int = 0
    by_worker: Counter[int] = field(default_factory=Counter)
    lost: int = 0
    late: int = 0
    in_vain_hours: float = 0.0
    packets: int = 0

    @property
    def speed_up(self) -> float:
        """Number of workers of speed 1, never idle or lost, that would do the same work."""
        return self.work_hours / self.hours


@dataclass
class _Worker:
    place: int
    speed: float
    lives: bool = True
    doing: tuple[int, int] | None = None  # an assignment, and the place of a task in it
    begun_s: float = 0.0


class Simulation:
    """One run from the first task to the last answer."""

    def __init__(self, cluster: Cluster, algorithm: Algorithm, seed: int, length_s: Callable[[random.Random], float]):
        self._cluster, self._algorithm = cluster, algorithm
        self._lengths, self._lives = random.Random(f"lengths {seed}"), random.Random(f"lives {seed}")
        self._length_s = length_s
        self._scheduler = Scheduler()
        self._now_s = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = 0
        self._workers: dict[str, _Worker] = {}
        self._works_s: dict[int, float] = {}
        self._open = 0
        self.outcome = Outcome()

    def run(self) -> Outcome:
        for place, speed in enumerate(self._cluster.speeds):
            self._start(place, speed)
        self._submit(self._algorithm.first())
        self._after(0.0, self._tick)
        while self._open:
            self._now_s, _, event = heappop(self._events)
            event()
            for assignment in self._scheduler.assign(self._now_s):
                self._send(assignment)
        self.outcome.hours = self._now_s / 3600
        return self.outcome

    def _after(self, seconds: float, event: Callable[[], None]) -> None:
        self._order += 1
        heappush(self._events, (self._now_s + seconds, self._order, event))

    def _start(self, place: int, speed: float) -> None:
        name = f"worker-{len(self._workers)}"
        self._workers[name] = _Worker(place, speed)
        self._scheduler.join(ScheduledWorker(name, (DEVICE,), name))
        if self._cluster.lost_an_hour:
            self._after(self._lives.expovariate(self._cluster.rate_s), lambda: self._die(name))

    def _die(self, name: str) -> None:
        worker = self._workers[name]
        worker.lives = False
        self._drop(worker)
        self.outcome.lost += 1
        self._after(NOTICED_S, lambda: self._notice(name))
        self._after(REPLACED_S, lambda: self._start(worker.place, worker.speed))

    def _notice(self, name: str) -> None:
        self._count_failed(self._scheduler.leave(name, self._now_s, is_blamed=True))

    def _submit(self, count: int) -> None:
        """Tasks that start to exist now; their lengths do not depend on the worker or the time."""
        born = len(self._works_s)
        names = range(born, born + count)
        self._works_s.update((name, self._length_s(self._lengths)) for name in names)
        self._open += count
        packets = self._algorithm.in_packets
        self._scheduler.submit([QueuedTask(name, DEVICE, "individual", in_packets=packets) for name in names])

    def _send(self, assignment: Assignment) -> None:
        self.outcome.packets += 1
        self._after(self._cluster.message_s, lambda: self._do(assignment, 0))

    def _do(self, assignment: Assignment, index: int) -> None:
        """The worker starts a task of its assignment, or reports that all are done."""
        worker = self._workers[assignment.worker]
        if not worker.lives:
            return
        if index == len(assignment.tasks):
            self._return(assignment)
            return
        worker.doing, worker.begun_s = (assignment.number, index), self._now_s
        seconds = self._works_s[assignment.tasks[index].name] / worker.speed
        self._after(seconds, lambda: self._finish(assignment, index, seconds))

    def _finish(self, assignment: Assignment, index: int, seconds: float) -> None:
        worker = self._workers[assignment.worker]
        if worker.doing == (assignment.number, index):
            worker.doing = None
            self._after(self._cluster.message_s, lambda: self._answer(assignment, index, seconds))
            self._do(assignment, index + 1)

    def _return(self, assignment: Assignment) -> None:
        number = assignment.number
        self._after(self._cluster.message_s, lambda: self._count_failed(self._scheduler.ended(number, self._now_s)))

    def _answer(self, assignment: Assignment, index: int, seconds: float) -> None:
        name = assignment.tasks[index].name
        answer = self._scheduler.answered(assignment.number, name, self._now_s)
        for superfluous in answer.superfluous:
            self._after(self._cluster.message_s, partial(self._stop, superfluous))
        if not answer.is_first:
            self.outcome.in_vain_hours += seconds / 3600
            return
        self.outcome.by_worker[self._workers[assignment.worker].place] += 1
        self.outcome.work_hours += self._works_s[name] / 3600
        self.outcome.answered += 1
        self._closed()

    def _closed(self) -> None:
        self._open -= 1
        self._submit(self._algorithm.after(self.outcome.answered + self.outcome.failed))

    def _stop(self, assignment: Assignment) -> None:
        worker = self._workers[assignment.worker]
        if worker.doing is not None and worker.doing[0] == assignment.number:
            self._drop(worker)
            self._return(assignment)

    def _drop(self, worker: _Worker) -> None:
        """Discards a worker's current task."""
        self.outcome.in_vain_hours += 0.0 if worker.doing is None else (self._now_s - worker.begun_s) / 3600
        worker.doing = None

    def _tick(self) -> None:
        self.outcome.late += len(self._scheduler.late(self._now_s))
        self._after(TICK_S, self._tick)

    def _count_failed(self, decisions: Decisions) -> None:
        """Failed tasks count as evaluated: a study records them as failures and continues."""
        for _ in decisions.failed:
            self.outcome.failed += 1
            self._closed()


def lognormal_s(mean_s: float, spread: float) -> Callable[[random.Random], float]:
    """Lengths of tasks with this mean and this standard deviation, relative to the mean."""
    sigma = math.sqrt(math.log1p(spread * spread))
    mu = math.log(mean_s) - sigma * sigma / 2
    return lambda numbers: numbers.lognormvariate(mu, sigma)


def generation_sizes(total: int, population: int, generations: int, seed: int) -> tuple[int, ...]:
    """Evaluated individuals of each generation, `total` together.

    The first generation is evaluated whole; of the later ones only individuals that changed, here any with the same
    probability.
    """
    numbers = random.Random(f"generations {seed}")
    later = [generation for generation in range(1, generations) for _ in range(population)]
    counted = Counter(numbers.sample(later, total - population))
    return (population, *(counted[generation] for generation in range(1, generations) if counted[generation]))
