"""Interruptions of a search by the user, after which the best schedule known can still be used."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from iosched.profiler.devices.device import AttachedModel
from iosched.profiler.measuring.interleaved_models import Budget
from iosched.profiler.measuring.statistics import LEAST_SAMPLES, Measurement
from iosched.runtime.executor import Candidate

_HURRIED = Budget(rounds=LEAST_SAMPLES)


class Interrupt(Protocol):
    """Holds back interruptions during a search, and asks the user what to do about them."""

    @property
    def can_come(self) -> bool:
        """Whether interruptions are held back; if not, they are raised as `KeyboardInterrupt` at once."""
        ...

    @property
    def came(self) -> bool:
        """Whether an interruption was held back, and `ask` has not been called since."""
        ...

    @property
    def accepted(self) -> bool:
        """Whether the user wants the best schedule known, and soon."""
        ...

    def holding(self) -> AbstractContextManager[None]:
        """A context in which the first interruption is held back."""
        ...

    def ask(self) -> None:
        """Asks the user whether to go on with the best schedule known.

        Raises:
            KeyboardInterrupt: the user does not want it.
        """
        ...


class Uninterrupted:
    """Interruptions are not held back, but raised at once: the caller deals with them."""

    can_come = came = accepted = False

    def holding(self) -> AbstractContextManager[None]:
        """A context in which nothing is held back."""
        return nullcontext()

    def ask(self) -> None:
        """Asks nobody, since no interruption was held back."""


class _StoppedError(Exception):
    """The user interrupted the comparison between two rounds."""


def compared_in_turn(
    here: AttachedModel,
    candidates: Mapping[str, Candidate],
    budget: Budget,
    interrupt: Interrupt,
    observer: Callable[[int, int], None],
) -> Mapping[str, Measurement]:
    """Measures candidates in turn; at an interruption the user is asked, and they are measured anew for a moment.

    Raises:
        KeyboardInterrupt: the user does not want that.
    """

    def round_done(done: int, total: int) -> None:
        if interrupt.came:
            raise _StoppedError
        observer(done, total)

    try:
        return here.in_turn(candidates, budget, round_done)
    except _StoppedError:
        interrupt.ask()
        return here.in_turn(candidates, _HURRIED, round_done)
