"""A worker that sleeps instead of measuring, in a process of its own: its facts tell its number."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from queue import Queue

from fleet_threads import Talk, Toy, asked_in, errand, toy_facts

from iosched.jobs.fleet.errand import Errand
from iosched.jobs.fleet.messages import Call, decoded
from iosched.profiler.store.tables import StageRow


class Slept:
    """Does errands of `slept_errand`: measures those of its stages that it does not know, one after another.

    A stage is called after its length, "0.2 s, the first of fire"; the result is which ones were measured. Where the
    errand asks, it asks so many of them ahead at a time, and the others answer, too.
    """

    def __init__(self, device: str, threads: int) -> None:
        self._known: set[str] = set()
        facts = toy_facts(device=device, name=str(os.getpid()), threads=threads)
        self._toy = Toy(self._job, facts, self._questions)

    def facts(self) -> bytes:
        return self._toy.facts()

    def call(
        self, message: bytes, models: Mapping[str, bytes], say: Callable[[bytes], None], told: Queue[bytes]
    ) -> bytes:
        call: Call = decoded(message, Call)
        self._known |= {row.signature for row in call.rows if isinstance(row, StageRow)}
        return self._toy.call(message, models, say, told)

    def _job(self, talk: Talk) -> list[str]:
        stages, at_once = talk.call.work["stages"], talk.call.work["asks"]
        for first in range(0, len(stages), at_once) if at_once else ():
            rows = talk.ask(*stages[first : first + at_once])
            self._known |= {row.signature for row in rows if isinstance(row, StageRow)}
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


def slept_errand(name: str, lengths_s: Sequence[float], asks: int = 0) -> Errand:
    stages = [f"{seconds:.4f} s, number {index} of {name}" for index, seconds in enumerate(lengths_s)]
    return errand(name, work={"stages": stages, "asks": asks})
