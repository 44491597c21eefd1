"""Interruptions of a search by the user, after which the best schedule known can still be used."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol


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
