"""Who may stop a search early and keep what it found."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol


class Interrupt(Protocol):
    """Somebody who may stop the search early and keep what it found."""

    @property
    def can_come(self) -> bool:
        """Whether interruptions are ever held back; where not, they are raised at once."""
        ...

    @property
    def came(self) -> bool:
        """An interruption was held back, and `ask` has not been called yet."""
        ...

    @property
    def accepted(self) -> bool:
        """The best schedule known is wanted, and soon."""
        ...

    def holding(self) -> AbstractContextManager[None]:
        """While inside, the first interruption is held back."""
        ...

    def ask(self) -> None:
        """Asks whether to go on with the best schedule known.

        Raises:
            KeyboardInterrupt: it is not wanted.
        """
        ...


class Uninterrupted:
    """Interruptions are raised at once: the caller alone deals with them."""

    can_come = came = accepted = False

    def holding(self) -> AbstractContextManager[None]:
        """Holds nothing back."""
        return nullcontext()

    def ask(self) -> None:
        """Nobody is there to be asked."""
