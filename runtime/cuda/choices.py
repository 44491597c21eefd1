"""Where choices between kernels are kept that were made by timing them."""

from __future__ import annotations

from typing import Protocol


class Choices(Protocol):
    """Choices by key, kept beyond the process."""

    @property
    def times(self) -> bool:
        """Whether a choice that is not known is to be found by timing; if not, the first guess will do."""
        ...

    def choice(self, key: str) -> str | None:
        """What was chosen before; None where nothing was."""
        ...

    def choose(self, key: str, value: str) -> str:
        """Keeps a choice.

        Returns:
            The choice that is kept: where another process has made one before, it is that one.
        """
        ...
