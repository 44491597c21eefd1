"""Searches all blocks: one after another, one round each, or all at once."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from iosched.models.errors import ExecutionError
from iosched.scheduler.blocks import BlockOperators
from iosched.scheduler.cost import CostQuestion, Prefetchable
from iosched.scheduler.exploration import BestKnown, Exploration, SearchRound
from iosched.scheduler.schedule import Block

Deadline = Callable[[], bool]


class SearchObserver(Protocol):
    """Receives the progress of a search; its methods must return at once."""

    def block_started(self, index: int, n_blocks: int, n_stages: int) -> None:
        """Block `index` of `n_blocks` starts; it has `n_stages` distinct candidate stages."""
        ...

    def stage_measured(self, index: int, n_measured: int, n_expected: int) -> None:
        """`n_measured` stages of the block are known; the current shortest path suggests `n_expected` more."""
        ...

    def block_finished(self, index: int, n_blocks: int, block: Block) -> None:
        """The best schedule of block `index` is known."""
        ...

    def best_known(self, latency_us: float) -> None:
        """The predicted latency of the best known schedule of all blocks."""
        ...


class _NoObserver:
    def block_started(self, index: int, n_blocks: int, n_stages: int) -> None:
        pass

    def stage_measured(self, index: int, n_measured: int, n_expected: int) -> None:
        pass

    def block_finished(self, index: int, n_blocks: int, block: Block) -> None:
        pass

    def best_known(self, latency_us: float) -> None:
        pass


NO_OBSERVER: SearchObserver = _NoObserver()
"""Ignores the progress."""


@dataclass(frozen=True)
class Guide:
    """Settings shared by the searches of all blocks."""

    observer: SearchObserver
    deadline: Deadline | None
    n_blocks: int
    prefetcher: Prefetchable | None = None

    def hand_over(self, questions: Sequence[CostQuestion]) -> None:
        """Announces the next questions (see `Prefetchable`), unless the deadline has passed."""
        if self.prefetcher is not None and questions and not self.is_over():
            self.prefetcher.prefetch(questions)

    def is_over(self) -> bool:
        """Whether the deadline has passed."""
        return self.deadline is not None and self.deadline()


@dataclass(frozen=True)
class SearchedBlocks:
    """The result of a `BlockSearch`: the best schedule of its first block, and of each equal block."""

    exploration: Exploration
    best: BestKnown
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class BlockSearch:
    """The search of one block and of all blocks equal to it except for names."""

    parts: dict[int, BlockOperators]  # by index
    exploration: Exploration

    @property
    def index(self) -> int:
        """The first of the blocks."""
        return min(self.parts)

    def best_known(self) -> BestKnown:
        """The best known schedule of the first block; raises an ExecutionError if the device can run none."""
        found = self.exploration.best_known()
        if found is None:
            names = self.parts[self.index].operators
            raise ExecutionError(f"the device cannot run block {self.index}, {names[0]!r} to {names[-1]!r}")
        return found

    def blocks(self, found: BestKnown) -> Iterator[Block]:
        """The best schedule of each block."""
        for index, part in self.parts.items():
            name_of = dict(zip(self.parts[self.index].operators, part.operators, strict=True))
            yield Block(index, tuple(stage.renamed(name_of) for stage in found.stages), found.optimal)


def explore(guide: Guide, searches: Sequence[BlockSearch]) -> Iterator[SearchedBlocks]:
    """Searches all blocks: one after another, or in rounds if a deadline may leave some unfinished.

    With prefetching, all blocks are searched at once, so that their questions form one list.
    """
    pending, waiting = deque(searches), deque[BlockSearch]()
    while (pending or waiting) and not guide.is_over():
        if not pending:
            pending, waiting = waiting, pending
        rounds: list[tuple[BlockSearch, SearchRound]] = []
        for found in [pending.popleft() for _ in range(1 if guide.prefetcher is None else len(pending))]:
            wanted = _next_round(guide, found)
            if wanted is None:
                yield _finish(guide, found, searches)
            else:
                rounds.append((found, wanted))
        _report_best(guide, searches)
        if guide.prefetcher is not None:
            surely = [question for found, wanted in rounds for question in found.exploration.questions(wanted)]
            guide.hand_over(surely)
        for found, wanted in rounds:
            _run(guide, found, wanted)
            if guide.deadline is None and wanted.later:
                waiting.append(found)
            elif guide.deadline is None and guide.prefetcher is None:
                pending.appendleft(found)
            else:
                pending.append(found)
    for found in (*pending, *waiting):
        yield _finish(guide, found, searches)


def _report_best(guide: Guide, searches: Sequence[BlockSearch]) -> None:
    total_us = sum(len(found.parts) * found.exploration.best_us for found in searches)
    if math.isfinite(total_us):
        guide.observer.best_known(total_us)


def _next_round(guide: Guide, found: BlockSearch) -> SearchRound | None:
    if not found.exploration.started:
        for index in found.parts:
            guide.observer.block_started(index, guide.n_blocks, len(found.exploration.lattice.stages))
    return found.exploration.next_round(guide.is_over)


def _finish(guide: Guide, found: BlockSearch, searches: Sequence[BlockSearch]) -> SearchedBlocks:
    best = found.best_known()
    _report_best(guide, searches)
    blocks = tuple(found.blocks(best))
    for block in blocks:
        guide.observer.block_finished(block.index, guide.n_blocks, block)
    return SearchedBlocks(found.exploration, best, blocks)


def _run(guide: Guide, found: BlockSearch, wanted: SearchRound) -> None:
    exploration = found.exploration
    for done, position in enumerate(wanted.positions, 1):
        if guide.is_over():
            return
        if exploration.measure(position, wanted):
            left = len(wanted.positions) - done
            guide.observer.stage_measured(found.index, exploration.latencies.n_measured, left)
