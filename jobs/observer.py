"""Reports the progress of a job to its caller."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from iosched.scheduler.schedule import Block


class Observer(Protocol):
    """Receives the progress of a job."""

    def progress(self, done: int, total: int | None, text: str) -> None:
        """`done` of `total` (None: unknown) steps are done; `text` describes the next."""
        ...


class Silence:
    """An observer that ignores the progress."""

    def progress(self, done: int, total: int | None, text: str) -> None:
        """Does nothing."""


class SearchProgress:
    """Shows the progress of a search to an observer: how many blocks are done, and the best latency known so far.

    Args:
        shows_best: whether the search covers the whole model.
    """

    def __init__(self, observer: Observer, *, shows_best: bool = True) -> None:
        self._observer = observer
        self._shows_best = shows_best
        self._best = ""
        self._finished = 0
        self._n_blocks: int | None = None

    def block_started(self, index: int, n_blocks: int, n_stages: int) -> None:
        """The search of a block begins."""
        self._n_blocks = n_blocks
        self._say(f"block {index + 1} of {n_blocks}: {n_stages} candidate stages")

    def stage_measured(self, index: int, n_measured: int, n_expected: int) -> None:
        """The latency of one more stage is known."""
        del n_expected
        self._say(f"block {index + 1}: {n_measured} stages known")

    def block_finished(self, index: int, n_blocks: int, block: Block) -> None:
        """The search of a block has ended."""
        del block
        self._finished, self._n_blocks = self._finished + 1, n_blocks
        self._say(f"block {index + 1} of {n_blocks} done")

    def best_known(self, latency_us: float) -> None:
        """The best schedule known so far is predicted to take this long."""
        if self._shows_best:
            self._best = f"best {latency_us / 1e3:,.3f} ms, "

    def _say(self, text: str) -> None:
        self._observer.progress(self._finished, self._n_blocks, f"{self._best}{text}")


class Interrupt(Protocol):
    """Defers interruptions during a search, and asks the user how to continue."""

    @property
    def can_come(self) -> bool:
        """Whether interruptions are deferred; if not, they are raised as `KeyboardInterrupt` at once."""
        ...

    @property
    def came(self) -> bool:
        """Whether an interruption was deferred, and `ask` has not been called since."""
        ...

    @property
    def accepted(self) -> bool:
        """Whether the user wants the best known schedule now."""
        ...

    def holding(self) -> AbstractContextManager[None]:
        """A context in which the first interruption is deferred."""
        ...

    def ask(self) -> None:
        """Asks the user whether to continue with the best known schedule.

        Raises:
            KeyboardInterrupt: the user declines.
        """
        ...


class Uninterrupted:
    """Interruptions are not deferred, but raised at once: the caller deals with them."""

    can_come = came = accepted = False

    def holding(self) -> AbstractContextManager[None]:
        """A context in which nothing is deferred."""
        return nullcontext()

    def ask(self) -> None:
        """Does nothing, since no interruption was deferred."""
