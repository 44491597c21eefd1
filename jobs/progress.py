"""How a job reports its progress to its caller."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from iosched.scheduler.schedule import Block


class Observer(Protocol):
    """Told how the work goes."""

    def progress(self, done: int, total: int | None, text: str) -> None:
        """`done` steps of `total` (None: not known) are behind us."""
        ...


class Silence:
    """An observer that says nothing."""

    def progress(self, done: int, total: int | None, text: str) -> None:
        """Says nothing."""


class SearchProgress:
    """Says how many blocks are done, and what is being done."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._finished = 0
        self._n_blocks: int | None = None

    def block_started(self, index: int, n_blocks: int, n_stages: int) -> None:
        """A block is next."""
        self._n_blocks = n_blocks
        self._say(f"block {index + 1} of {n_blocks}: {n_stages} candidate stages")

    def stage_measured(self, index: int, n_measured: int, n_expected: int) -> None:
        """A stage is known."""
        del n_expected
        self._say(f"block {index + 1}: {n_measured} stages known")

    def block_finished(self, index: int, n_blocks: int, block: Block) -> None:
        """A block is done."""
        del block
        self._finished, self._n_blocks = self._finished + 1, n_blocks
        self._say(f"block {index + 1} of {n_blocks} done")

    def _say(self, text: str) -> None:
        self._observer.progress(self._finished, self._n_blocks, text)
