"""A worker that sleeps instead of measuring, in a process of its own: its facts tell its number."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

from thread_cluster import Fetch, Say, Talk, Toy, asked_in, toy_facts, toy_task

from iosched.jobs.pool import messages
from iosched.jobs.pool.messages import Call
from iosched.jobs.pool.task import Task
from iosched.profiler.store.tables import Row, StageRow


class Slept:
    """Does tasks of `slept_task`: measures those of its stages that it does not know, one after another.

    A stage is called after its length, "0.2 s, the first of fire"; the result is which ones were measured. Where the
    task asks, it asks so many of them ahead at a time, and the others answer, too.
    """

    def __init__(self, device: str, threads: int, say: Say) -> None:
        self._known: set[str] = set()
        facts = toy_facts(device=device, name=str(os.getpid()), threads=threads)
        self._toy = Toy(say, self._task, facts, self._questions)

    def take(self, message: bytes, fetch: Fetch) -> None:
        told = messages.told(message)
        if isinstance(told, Call):
            self._learn(told.rows)
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
