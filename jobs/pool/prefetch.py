"""Distributes the questions of a search to other workers of its device."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import msgspec

from iosched.jobs.pool.messages import Asked, SentModel
from iosched.profiler.devices.cost import MeasuredCosts
from iosched.profiler.devices.device import AttachedModel
from iosched.profiler.devices.open_settings import OpenSettings
from iosched.runtime.faults import Faults
from iosched.scheduler.cost import Question, ask
from iosched.scheduler.signature import Signatures

if TYPE_CHECKING:
    from iosched.jobs.pool.worker import Worker
    from iosched.jobs.pool.worker_context import WorkerContext

QUESTIONS = "questions"
"""The kind of assignments that answer questions of a search on another worker."""

_POLL_S = 0.01
_MIN_QUESTIONS = 2
"""Below this number, asking other workers takes longer than measuring locally."""

_Key = tuple[object, ...]


class Questions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Questions about a model that is opened with these settings."""

    opening: OpenSettings
    questions: tuple[Question, ...] = ()


def answered(work: Questions, call: WorkerContext) -> int:
    """Measures the answers, whose rows the worker sends to the driver; returns their number.

    The model stays open for the next packet.
    """
    cost, faults = call.cost(work.opening), Faults()
    end = math.inf if call.left_s is None else time.monotonic() + call.left_s
    count = 0
    for question in work.questions:
        if call.stopped() is not None:
            raise KeyboardInterrupt
        if time.monotonic() >= end:
            break
        with faults.contained("a question"):  # the search will hit the same error itself
            ask(cost, question)
            count += 1
    return count


@dataclass(frozen=True, eq=False)
class Asking:
    """A search that waits for other workers' answers. `cost` answers questions about its open model."""

    sent: SentModel
    settings: OpenSettings
    model: AttachedModel
    cost: MeasuredCosts


@dataclass(frozen=True, eq=False)
class RemotePrefetch:
    """Lets all workers of the device answer a round of questions; see `scheduler.cost.Prefetchable`.

    Their rows arrive in this worker's database, where the search's cost model finds them. While the search waits, this
    worker answers packets of questions too.

    Attributes:
        is_over: whether the search is out of time.
    """

    worker: Worker
    call: WorkerContext
    sent: SentModel
    opening: OpenSettings
    model: AttachedModel
    is_over: Callable[[], bool]

    def prefetch(self, questions: Sequence[Question]) -> None:
        """Waits for answers to the unknown questions; returns early at an interruption."""
        asked = list(self._distinct(self._unknown(questions)))
        if len(asked) < _MIN_QUESTIONS:
            return
        opening = msgspec.to_builtins(self.opening)
        self.worker.say(Asked(call=self.call.number, opening=opening, questions=tuple(asked)))
        with self.worker.waiting(self._asking):
            while not (self.call.came or self.is_over()):
                if (rows := self.worker.known(self.call.number)) is not None:
                    self.worker.learn(rows)
                    return
                self.worker.listen(_POLL_S)
                self.worker.serve()

    @cached_property
    def _asking(self) -> Asking:
        return Asking(self.sent, self.opening, self.model, self.model.cost.with_own_counts())

    def _unknown(self, questions: Iterable[Question]) -> Iterable[Question]:
        """Yields the questions that the database cannot answer."""
        cost = self.model.cost
        for question in questions:
            if question.kind == "work":
                is_known = cost.known_work_us(question.stage.operators[0]) is not None
            else:
                is_known = question.kind != "again" and cost.known(question.stage) is not None
            if not is_known:
                yield question

    def _distinct(self, questions: Iterable[Question]) -> Iterable[Question]:
        """Removes duplicates: keeps the most thorough question per measurement."""
        found: dict[_Key, Question] = {}
        for question in questions:
            key = self._key(question)
            before = found.get(key, question)
            worse_than_us = max(before.worse_than_us, question.worse_than_us)
            found[key] = replace(before, worse_than_us=worse_than_us)
        whole = {key[:-1] for key in found if key[-1] == "work"}
        return (found[key] for key in found if key[-1] != "latency" or key[:-1] not in whole)

    def _key(self, question: Question) -> _Key:
        stage = question.stage
        kind = "latency" if question.kind == "operator" else question.kind
        return (self._signatures.of(stage), stage.division, kind)

    @cached_property
    def _signatures(self) -> Signatures:
        key = self.model.cost.operator_key
        return Signatures(self.model.graph, lambda operator: key(operator.name))
