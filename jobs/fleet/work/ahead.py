"""The asking side of a search on a worker: it hands rounds of questions to the driver, and waits for their rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

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

_Key = tuple[object, ...]


class Ahead(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """That other workers of the device are asked the questions of a search, and how.

    Attributes:
        fill: rounds are filled up with guesses to a multiple of so many questions; 0 for rounds as they are.
    """

    fill: int = 0


@dataclass(frozen=True, eq=False)
class FleetAhead:
    """What answers a search's questions ahead: all workers of the same device; see `scheduler.cost.Speculative`.

    Their rows come to this worker's database, where the cost model finds them when the search asks. While it waits,
    this worker makes guesses, and then takes packets of questions like the others, its own too.

    Attributes:
        is_over: whether the search has no more time.
    """

    how: Ahead
    station: Station
    conversation: Conversation
    sent: SentModel
    opening: OpenSettings
    model: OpenModelHere
    is_over: Callable[[], bool]
    _signatures: Signatures = field(init=False)
    _apart: MeasuredCosts = field(init=False)
    _guessed: dict[_Key, Question] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        key = self.model.cost.operator_key
        found = Signatures(self.model.graph, lambda operator: key(operator.name))
        object.__setattr__(self, "_signatures", found)
        object.__setattr__(self, "_apart", self.model.cost.counted_apart())

    def prefetch(self, questions: Sequence[Question]) -> None:
        """Has those of the questions answered that are not known yet; returns early at an interruption."""
        self.speculate(questions, iter(()))

    def speculate(self, surely: Sequence[Question], likely: Iterator[Question]) -> None:
        """The same for `surely`; those of `likely` that fill the round are for workers that have nothing else."""
        asked = list(self._different(self._unknown(surely)))
        if len(asked) < (1 if self.how.fill else _FEWEST):
            return
        number = self.conversation.asked_ahead(msgspec.to_builtins(Questions(self.opening)), asked)
        guesses = self._guesses(asked, likely)
        with self.station.waiting(self.sent, self.opening, self.model, self._apart):
            while not (self.conversation.came or self.is_over()):
                guess = next(guesses, None)
                if guess is not None:
                    self.conversation.guessed(number, guess)
                rows = self.conversation.answers(number, _POLL_S if guess is None else 0.0)
                if rows is not None:
                    self.station.learn(rows)
                    return
                if guess is None:
                    self.station.serve()

    def _guesses(self, asked: Sequence[Question], likely: Iterator[Question]) -> Iterator[Question]:
        """As many as fill the round, each computed as it is taken."""
        missing = -len(asked) % self.how.fill if self.how.fill else 0
        return islice(self._new(asked, self._unknown(likely)), missing)

    def _new(self, asked: Sequence[Question], likely: Iterable[Question]) -> Iterator[Question]:
        """Those that are no questions of the round, and no two alike."""
        keys = {self._key(question) for question in asked}
        for question in likely:
            if (key := self._key(question)) not in keys:
                keys.add(key)
                yield self._guessed.setdefault(key, question)

    def _unknown(self, questions: Iterable[Question]) -> Iterable[Question]:
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
        found: dict[_Key, Question] = {}
        for question in questions:
            key = self._key(question)
            before = found.get(key, question)
            worse_than_us = max(before.worse_than_us, question.worse_than_us)
            found[key] = replace(before, worse_than_us=worse_than_us)
        whole = {key[:-1] for key in found if key[-1] == "work"}
        return (self._as_guessed(key, found[key]) for key in found if key[-1] != "latency" or key[:-1] not in whole)

    def _as_guessed(self, key: _Key, question: Question) -> Question:
        """The guess that the question was before, if its answer serves: whoever answers that knows it by no other."""
        guess = self._guessed.get(key)
        return question if guess is None or guess.worse_than_us < question.worse_than_us else guess

    def _key(self, question: Question) -> _Key:
        stage = question.stage
        kind = "latency" if question.kind == "operator" else question.kind
        return (self._signatures.of(stage), stage.division, kind)
