"""What is said during one call, as a worker has it: rows and progress go out, rows and interruptions come in."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from queue import Empty, Queue
from typing import Any

from iosched.jobs.fleet.messages import (
    Asked,
    Guessed,
    Known,
    Measured,
    Progress,
    SaidMessage,
    Step,
    Stop,
    encoded,
    told,
)
from iosched.profiler.store.tables import Row
from iosched.scheduler.questions import Question

_PROGRESS_S = 0.5
"""Progress is for people: it is said so seldom that it costs nothing."""


class Conversation:
    """One call; it is an `Observer` and an `Interrupt` of the job that the call asks for.

    It belongs to the thread that works.

    Attributes:
        can_come: True: interruptions come as messages, and are held back until the job asks for them.
        accepted: whether the user wants the best that is known, and soon.
    """

    can_come = True

    def __init__(self, say: Callable[[bytes], None], incoming: Queue[bytes]) -> None:
        self._say = say
        self._incoming = incoming
        self._stop: Stop | None = None
        self._known: dict[int, Sequence[Row]] = {}
        self._n_rounds = 0
        self._said_at = 0.0
        self._was_asked = False
        self.accepted = False

    def say(self, message: SaidMessage) -> None:
        """Says something to the driver."""
        self._say(encoded(message))

    def measured(self, rows: Sequence[Row]) -> None:
        """Says at once what was written to the database."""
        self.say(Measured(rows=tuple(rows)))

    def progress(self, done: int, total: int | None, text: str) -> None:
        """Says how far the work is, if that was not said a moment ago."""
        now = time.monotonic()
        if now - self._said_at >= _PROGRESS_S:
            self._said_at = now
            self.say(Progress(done=done, total=total, text=text))

    def step(self, step: int, value: float) -> None:
        """Says what a score command has printed."""
        self.say(Step(step=step, value=value))

    def ask(self) -> None:
        """Goes on with the best that is known, or ends, as the user wants.

        Raises:
            KeyboardInterrupt: the user wants no result.
        """
        self.listen()
        if self.stopped_how == "now":
            raise KeyboardInterrupt
        self._was_asked = self.accepted = True

    def holding(self) -> AbstractContextManager[None]:
        """A context in which interruptions are held back, as they are at all times."""
        return nullcontext()

    @property
    def came(self) -> bool:
        """Whether an interruption has come, and `ask` has not been called since."""
        self.listen()
        return self._stop is not None and (not self._was_asked or self._stop.how == "now")

    @property
    def stopped_how(self) -> str | None:
        """How the work is to end; None where it is to go on."""
        return None if self._stop is None else self._stop.how

    def asked_ahead(self, work: Any, questions: Sequence[Question]) -> int:
        """Asks the driver to have questions answered; returns the number of the round."""
        number, self._n_rounds = self._n_rounds, self._n_rounds + 1
        self.say(Asked(number=number, work=work, questions=tuple(questions)))
        return number

    def guessed(self, number: int, question: Question) -> None:
        """Says what may be asked later, while a round is not answered."""
        self.say(Guessed(number=number, question=question))

    def answers(self, number: int, wait_s: float) -> Sequence[Row] | None:
        """The rows that answer a round; None where they have not come within so many seconds."""
        self.listen(wait_s)
        return self._known.pop(number, None)

    def listen(self, wait_s: float = 0.0) -> None:
        """Takes what has come from the driver; waits so long where nothing has."""
        while True:
            try:
                message = told(self._incoming.get(timeout=wait_s) if wait_s else self._incoming.get_nowait())
            except Empty:
                return
            wait_s = 0.0
            if isinstance(message, Known):
                self._known[message.number] = message.rows
            elif self._stop is None or message.how == "now":
                self._stop = message
