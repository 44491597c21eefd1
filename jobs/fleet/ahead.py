"""The asking side of a search on a worker: it hands rounds of questions to the driver, and waits for their rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from iosched.jobs.fleet.conversation import Conversation
from iosched.jobs.fleet.messages import SentModel
from iosched.jobs.fleet.station import Station
from iosched.jobs.fleet.work.questions import Questions
from iosched.profiler.devices.cost import MeasuredCosts
from iosched.profiler.devices.device import OpenModelHere
from iosched.profiler.devices.open_settings import OpenSettings
from iosched.scheduler.questions import Question
from iosched.scheduler.signature import Signatures

_POLL_S = 0.01
_FEWEST = 2
"""One question alone is answered sooner here than by way of the driver."""


@dataclass(frozen=True, eq=False)
class FleetAhead:
    """What answers a search's questions ahead: all workers of the same device; see `scheduler.cost.Prefetchable`.

    Their rows come to this worker's database, where the cost model finds them when the search asks. While it waits,
    this worker takes packets of questions like the others, its own too.

    Attributes:
        is_over: whether the search has no more time.
    """

    station: Station
    conversation: Conversation
    sent: SentModel
    opening: OpenSettings
    model: OpenModelHere
    is_over: Callable[[], bool]
    _signatures: Signatures = field(init=False)
    _apart: MeasuredCosts = field(init=False)

    def __post_init__(self) -> None:
        key = self.model.cost.operator_key
        found = Signatures(self.model.graph, lambda operator: key(operator.name))
        object.__setattr__(self, "_signatures", found)
        object.__setattr__(self, "_apart", self.model.cost.counted_apart())

    def prefetch(self, questions: Sequence[Question]) -> None:
        """Has those of the questions answered that are not known yet; returns early at an interruption."""
        asked = list(self._different(self._unknown(questions)))
        if len(asked) < _FEWEST:
            return
        number = self.conversation.asked_ahead(msgspec.to_builtins(Questions(self.opening)), asked)
        with self.station.waiting(self.sent, self.opening, self.model, self._apart):
            while not (self.conversation.came or self.is_over()):
                rows = self.conversation.answers(number, _POLL_S)
                if rows is not None:
                    self.station.database.merge(rows)
                    return
                self.station.serve()

    def _unknown(self, questions: Sequence[Question]) -> Iterable[Question]:
        """Those that the database does not answer, as far as can be told without measuring."""
        cost = self.model.cost
        for question in questions:
            if question.kind == "work":
                is_known = cost.known_work_us(question.stage.operators[0]) is not None
            else:
                is_known = question.kind != "again" and cost.known(question.stage) is not None
            if not is_known:
                yield question

    def _different(self, questions: Iterable[Question]) -> Iterable[Question]:
        """One of those that one measurement answers: the most thorough of them."""
        found: dict[tuple[object, ...], Question] = {}
        for question in questions:
            key = self._key(question)
            before = found.get(key, question)
            worse_than_us = max(before.worse_than_us, question.worse_than_us)
            found[key] = replace(before, worse_than_us=worse_than_us)
        whole = {key[:-1] for key in found if key[-1] == "work"}
        return (found[key] for key in found if key[-1] != "latency" or key[:-1] not in whole)

    def _key(self, question: Question) -> tuple[object, ...]:
        stage = question.stage
        kind = "latency" if question.kind == "operator" else question.kind
        return (self._signatures.of(stage), stage.division, kind)
