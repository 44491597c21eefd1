"""Workers for Ray's actors that stand in for the product's: quiet, noisy, sleeping, or obeying their messages.

Each is named in `made_by` of a `RayTransport`, and is made in a process of its own.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import random
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from scripted import stage_us
from thread_cluster import Fetch, Say, Talk, Toy, asked_in, toy_facts, toy_task

from iosched.jobs.pool import messages
from iosched.jobs.pool.messages import Call, Facts
from iosched.jobs.pool.task import Task
from iosched.jobs.pool.worker import Worker as AnyWorker
from iosched.jobs.worker import KINDS, Worker
from iosched.models.errors import ExecutionError
from iosched.profiler.devices.cpu.measured_cost import CpuStageCost
from iosched.profiler.measuring import disturbance
from iosched.profiler.measuring.statistics import Measurement, summarize
from iosched.profiler.store.tables import Row, StageRow
from iosched.scheduler.schedule import Stage

DIES = "IOSCHED_TEST_DIES"
"""Names a file that the first dying `Noisy` creates."""
WARMING = "IOSCHED_TEST_WARMING"
"""Names a file: while it exists `sleeping` measures nothing, and a task only opens the model."""

MEAN_S, SPREAD, NOISE = 0.1, 0.4, 0.03
_STAGES_OF_A_LIFE = 4


def _quieten() -> None:
    disturbance.disturbances = lambda *_: ()  # type: ignore[assignment]
    disturbance.doubts = lambda *_: ()  # type: ignore[assignment]


class Odd:
    """An object that creates a file when it is unpickled, then fails."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, (f"open({self.path!r}, 'w').close(); raise ValueError('unpickled')",)


class Standin:
    """Describes itself, then does what each message names: see `take`."""

    def __init__(self, device: str, threads: int, say: Callable[[Any], None]) -> None:
        self.say = say
        found = {"device": device, "threads": threads, "pid": os.getpid(), "cwd": str(Path.cwd())}
        threading.Thread(target=self._say, args=(found,)).start()

    def _say(self, found: dict[str, object]) -> None:
        cpus = [sorted(os.sched_getaffinity(int(thread.name))) for thread in Path("/proc/self/task").iterdir()]
        self.answer({**found, "cpus": cpus, "nice": os.getpriority(os.PRIO_PROCESS, 0)})

    def answer(self, value: object) -> None:
        self.say(json.dumps(value).encode())

    def take(self, message: bytes, fetch: Callable[[], bytes]) -> None:
        """Obeys {"print": TEXT}, {"count": N}: says 0 to N-1, {"digest": true}: says that of the model, {"pickle":
        PATH} and {"object": PATH}: says an `Odd`, {"echo": VALUE}, and {"fail": TEXT}: raises it."""
        asked = json.loads(message)
        if "print" in asked:
            print(asked["print"], flush=True)  # noqa: T201 - that is the point
        for number in range(asked.get("count", 0)):
            self.answer(number)
        if "digest" in asked:
            threading.Thread(target=lambda: self.answer(hashlib.sha256(fetch()).hexdigest())).start()
        if "pickle" in asked:
            self.say(pickle.dumps(Odd(asked["pickle"])))
        if "object" in asked:
            self.say(Odd(asked["object"]))
        if "echo" in asked:
            self.answer(asked["echo"])
        if "fail" in asked:
            raise RuntimeError(asked["fail"])


def quiet(device: str, threads: int, say: Say) -> AnyWorker:
    """A `Worker` of this process, in which nothing is ever called disturbed."""
    _quieten()
    return Worker(device, threads, say)


class Older(AnyWorker):
    """A worker of an iosched before the first."""

    def say(self, message: messages.WorkerMessage) -> None:
        if isinstance(message, Facts):
            message = msgspec.structs.replace(message, versions={**message.versions, "iosched": "0.0.0"})
        super().say(message)


def unlike(device: str, threads: int, say: Say) -> AnyWorker:
    """A quiet worker if it may use all processors; else an older one if it has the first, or one that is disturbed."""
    mine = os.sched_getaffinity(0)
    of_all = os.sched_getaffinity(os.getppid())  # Ray's own process, which is not bound
    if mine == of_all:
        return quiet(device, threads, say)
    if min(of_all) in mine:
        return Older(device, threads, say, KINDS)
    disturbance.doubts = lambda *_: ("the calibration kernel took 3.0 times its reference",)  # type: ignore[assignment]
    return Worker(device, threads, say)


class Noisy(AnyWorker):
    """A worker on a machine where everything is disturbed; of several, the first that searches dies meanwhile."""

    def __init__(self, device: str, threads: int, say: Say) -> None:
        self._left = -1
        self._measured = CpuStageCost._timed
        disturbance.doubts = lambda *_: ("other processes used 60% of the cores",)  # type: ignore[assignment]
        CpuStageCost._timed = lambda *asked: self._timed(*asked)  # type: ignore[method-assign, assignment]
        super().__init__(device, threads, say, KINDS)

    def _do(self, call: Call, fetch: Fetch) -> None:
        self._left = _STAGES_OF_A_LIFE if call.kind == "optimize" else self._left
        super()._do(call, fetch)

    def _timed(self, *asked: Any) -> Any:
        self._left -= 1
        if self._left == 0:
            with suppress(FileExistsError):
                Path(os.environ[DIES]).touch(exist_ok=False)
                os.kill(os.getpid(), signal.SIGKILL)
        return self._measured(*asked)


class Slept:
    """Sleeps instead of measuring; its facts name its process. Does tasks of `slept_task`.

    A stage is called after its length, "0.2 s, the first of fire". The result is which of them it did not know and so
    measured, one after another. Where the task asks, it asks so many of them ahead at a time, and the others answer.
    """

    def __init__(self, device: str, threads: int, say: Say) -> None:
        self._known: set[str] = set()
        facts = toy_facts(device=device, name=str(os.getpid()), threads=threads)
        self._toy = Toy(say, self._task, facts, self._questions)

    def take(self, message: bytes, fetch: Fetch) -> None:
        received = messages.driver_message(message)
        if isinstance(received, Call):
            self._learn(received.rows)
        self._toy.take(message, fetch)

    def _learn(self, rows: Sequence[Row]) -> None:
        self._known |= {row.signature for row in rows if isinstance(row, StageRow)}

    def _task(self, talk: Talk) -> list[str]:
        stages, at_once = talk.call.work["stages"], talk.call.work["asks"]
        for first in range(0, len(stages), at_once) if at_once else ():
            self._learn(talk.ask(*stages[first : first + at_once]))
        return self._measured(talk, stages)

    def _questions(self, talk: Talk) -> int:
        return len(self._measured(talk, asked_in(talk.call)))

    def _measured(self, talk: Talk, stages: list[str]) -> list[str]:
        new = [stage for stage in stages if stage not in self._known]
        for stage in new:
            time.sleep(float(stage.partition(" ")[0]))
            self._known.add(stage)
            talk.measured(stage)
        return new


def slept_task(name: str, lengths_s: Sequence[float], asks: int = 0) -> Task[Any]:
    stages = [f"{seconds:.4f} s, number {index} of {name}" for index, seconds in enumerate(lengths_s)]
    return toy_task(name, work={"stages": stages, "asks": asks})


class Scoring:
    """`Slept`, with a `Worker` for what needs no device; so there may be more of them than processors."""

    def __init__(self, device: str, threads: int, say: Say) -> None:
        self._slept, self._worker = Slept(device, threads, say), _Unprobed(device, threads, say, KINDS)

    def take(self, message: bytes, fetch: Fetch) -> None:
        received = messages.driver_message(message)
        if not isinstance(received, Call) or received.kind == "score":
            self._worker.take(message, fetch)
        if not isinstance(received, Call) or received.kind != "score":
            self._slept.take(message, fetch)


class _Unprobed(AnyWorker):
    """A worker that does not send its facts."""

    def _probed(self) -> Facts:
        return toy_facts()

    def say(self, message: messages.WorkerMessage) -> None:
        if not isinstance(message, Facts):
            super().say(message)


def sleeping(device: str, threads: int, say: Say) -> AnyWorker:
    """A `Worker` in which a measurement is a sleep of a seeded length: there may be more of them than cores.

    A stage has the same latency on every worker, so that a search finds the same on any number of workers.
    """
    _quieten()
    CpuStageCost._timed = _slept  # type: ignore[method-assign, assignment]
    return Worker(device, threads, say)


def _slept(cost: Any, stage: Stage, lanes: int, worse_than_us: float | None = None) -> Measurement:
    """The scripted latency of a stage, after a sleep of the scripted time to measure it."""
    is_probe = len(cost.backend.graph.operators) == 1  # with which a worker starts
    if not is_probe and Path(os.environ[WARMING]).exists():
        time.sleep(MEAN_S)
        raise ExecutionError("nothing is measured yet")
    numbers = random.Random(f"{stage.strategy} {stage.groups} {lanes}")
    time.sleep(numbers.lognormvariate(0.0, SPREAD) * MEAN_S)
    return summarize([stage_us(cost, stage, lanes) * numbers.gauss(1.0, NOISE)] * 24)
