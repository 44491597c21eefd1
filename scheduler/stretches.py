"""Which stretches of consecutive blocks run as one session each, instead of by the stages that were found for them.

A session costs something at its borders and saves something at every place where two operators meet inside it, so that
neither single stages nor single blocks tell what it is worth. The whole graph is measured as one session, and each
block as one; what is saved where two blocks join is guessed from these. The best way to cut the graph is then a
shortest path over the borders of blocks, an edge of which is a block by its stages or a stretch as a session. As in the
search of a block (`search.py`), guesses on that path are replaced by measurements until none is left on it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from iosched.models.graph import ComputationGraph
from iosched.scheduler.asking import who_answers
from iosched.scheduler.cost import CostModel, Disturbable, Prefetchable, Remeasurable, RunsSessions
from iosched.scheduler.lattice import bits, in_order, relation
from iosched.scheduler.questions import Question
from iosched.scheduler.schedule import Block, Schedule, Stage, Strategy, total_us

FAVOUR = 0.1
"""By how much less than measured sessions count in a second cut: the latencies of a block's stages, each alone, may add
up to that much less than the block takes, and a session has fewer places where that could be."""

MOST_FOR_A_BLOCK = 3
"""How many stretches are measured at most for each block, not counting second measurements."""

Stretch = tuple[int, int]
"""The blocks from the first one up to, and without, the second."""


@dataclass(frozen=True)
class Stretched:
    """What blocks become when those of each session are joined; they are numbered anew.

    Attributes:
        blocks: by the latencies asked for.
        favoured: where sessions are taken to be faster than that by `FAVOUR`.
        measured: how many latencies were asked for.
        remeasured: how many of them a second time.
    """

    blocks: tuple[Block, ...]
    favoured: tuple[Block, ...]
    measured: int = 0
    remeasured: int = 0

    @property
    def has_sessions(self) -> bool:
        """Whether anything runs as a session, by the latencies asked for."""
        return any(stage.strategy is Strategy.SESSION for stage in Schedule(self.blocks).stages)


def session_of(graph: ComputationGraph, names: Sequence[str]) -> Stage:
    """The stage that runs some operators, in topological order, as one session."""
    order = relation(graph, names)
    groups = (tuple(names[index] for index in bits(mask)) for mask in order.groups(order.full))
    return Stage(Strategy.SESSION, tuple(groups))


def with_sessions(
    graph: ComputationGraph,
    cost: CostModel,
    blocks: Sequence[Block],
    *,
    is_over: Callable[[], bool] = lambda: False,
    remeasures: bool = True,
    ahead: Prefetchable | None = None,
) -> Stretched:
    """The blocks with those stretches of them run as sessions that make the whole fastest, as far as is measured.

    At most three measurements are made for each block, and as many once more where the cost model is `Remeasurable`: a
    stretch is taken only by its second latency. What is found never takes longer, by the latencies asked for, than the
    blocks by their stages.

    Complexity: O(n^2) for each measurement of n blocks.

    Args:
        graph: what is scheduled.
        cost: the device; where it has no sessions (`RunsSessions`) the blocks come back as they are.
        blocks: as a search found them, with latencies.
        is_over: asked before each measurement; once true, what is known by then decides.
        remeasures: whether latencies are measured a second time.
        ahead: is handed what is measured in any case before it is asked; by default the cost model if it can.
    """
    own_us = [total_us(block.stages) for block in blocks]
    known_us = [each for each in own_us if each is not None]
    can_run = isinstance(cost, RunsSessions) and cost.runs_sessions
    if not can_run or not blocks or len(known_us) < len(blocks):
        return Stretched(tuple(blocks), tuple(blocks))
    doubted = cost if remeasures and isinstance(cost, Remeasurable) else None
    trial = _Trial(graph, cost, blocks, known_us, doubted)
    favouring = replace(trial, own_us=[us / (1 - FAVOUR) for us in known_us])  # with the same knowledge
    asked_ahead = who_answers(cost, ahead)
    if asked_ahead is not None and not is_over():
        asked_ahead.prefetch([Question(trial.stage(stretch)) for stretch in trial.surely()])
    for stretch in chain(trial.wanted(), favouring.wanted()):
        asked = trial.n_measured + trial.n_remeasured
        if is_over() or asked >= (1 if doubted is None else 2) * MOST_FOR_A_BLOCK * len(blocks):
            break
        trial.learn(stretch)
    found, favoured = (tuple(each.blocks_of(each.path(each.certain_us))) for each in (trial, favouring))
    return Stretched(found, favoured, trial.n_measured, trial.n_remeasured)


@dataclass(eq=False)
class _Trial:
    """What is known of stretches.

    Attributes:
        own_us: of each block by its stages.
        first_us: of stretches, as measured.
        again_us: of those that were measured a second time.
    """

    graph: ComputationGraph
    cost: CostModel
    blocks: Sequence[Block]
    own_us: Sequence[float]
    doubted: Remeasurable | None
    first_us: dict[Stretch, float] = field(default_factory=dict)
    again_us: dict[Stretch, float] = field(default_factory=dict)

    @property
    def n_measured(self) -> int:
        return len(self.first_us)

    @property
    def n_remeasured(self) -> int:
        return len(self.again_us)

    def surely(self) -> Sequence[Stretch]:
        """What is measured in any case: the whole, and each block."""
        return tuple(dict.fromkeys([(0, len(self.blocks)), *((index, index + 1) for index in range(len(self.blocks)))]))

    def wanted(self) -> Iterator[Stretch]:
        """What to measure next, or once more; ends when the best path has nothing left to be measured."""
        yield from (stretch for stretch in self.surely() if stretch not in self.first_us)
        while open_ones := [each for each in self.path(self.guessed_us) if self._is_session(each, self.guessed_us)]:
            unsure = next((each for each in open_ones if not math.isfinite(self.certain_us(each))), None)
            if unsure is None:
                return
            yield unsure

    def learn(self, stretch: Stretch) -> None:
        """Measures the stretch, or if it was, measures it once more."""
        stage = self.stage(stretch)
        if stretch not in self.first_us:
            self.first_us[stretch] = self._first_us(stage, sum(self.own_us[slice(*stretch)]))
        elif self.doubted is not None:
            self.again_us[stretch] = self.doubted.remeasure(stage)

    def _first_us(self, stage: Stage, own_us: float) -> float:
        """The latency of a session, asked once more if it was disturbed and may take less than its blocks' stages."""
        found_us = self.cost.stage_latency_us(stage)
        if isinstance(self.cost, Disturbable):
            low_us = self.cost.disturbed_low_us(stage)
            if low_us is not None and low_us < own_us:
                self.cost.try_again()
                return self.cost.stage_latency_us(stage)
        return found_us

    def stage(self, stretch: Stretch) -> Stage:
        """The session of the stretch."""
        names = (name for block in self.blocks[slice(*stretch)] for stage in block.stages for name in stage.operators)
        return session_of(self.graph, in_order(self.graph, names))

    def certain_us(self, stretch: Stretch) -> float:
        """Its latency as a session where that is known well enough to take it; else infinite."""
        return (self.first_us if self.doubted is None else self.again_us).get(stretch, math.inf)

    def guessed_us(self, stretch: Stretch) -> float:
        """Its latency as a session, the latest; else that of its blocks, less what joining them saves."""
        known = self.again_us.get(stretch, self.first_us.get(stretch))
        if known is not None:
            return known
        start, end = stretch
        around = min((each for each in self.first_us if each[0] <= start and end <= each[1]), key=_length)
        return self._apart_us(stretch) - self._saved_us(around) * (end - start - 1)

    def path(self, latency_us: Callable[[Stretch], float]) -> list[Stretch]:
        """The cut of the blocks into stretches that takes least; single blocks run as is faster for them."""
        best: list[tuple[float, list[Stretch]]] = [(0.0, [])]
        for end in range(1, len(self.blocks) + 1):
            ways = (
                (best[start][0] + self._least_us((start, end), latency_us), [*best[start][1], (start, end)])
                for start in range(end)
            )
            best.append(min(ways, key=lambda way: (way[0], len(way[1]))))
        return best[-1][1]

    def blocks_of(self, path: Sequence[Stretch]) -> Iterator[Block]:
        """The blocks of a path."""
        for index, stretch in enumerate(path):
            if self._is_session(stretch, self.certain_us):
                yield Block(index, (replace(self.stage(stretch), predicted_us=self.certain_us(stretch)),))
            else:
                yield replace(self.blocks[stretch[0]], index=index)

    def _least_us(self, stretch: Stretch, latency_us: Callable[[Stretch], float]) -> float:
        as_session = latency_us(stretch)
        return min(as_session, self.own_us[stretch[0]]) if _length(stretch) == 1 else as_session

    def _is_session(self, stretch: Stretch, latency_us: Callable[[Stretch], float]) -> bool:
        return _length(stretch) > 1 or latency_us(stretch) < self.own_us[stretch[0]]

    def _saved_us(self, stretch: Stretch) -> float:
        """What is saved, in the mean, where two blocks of a measured stretch join."""
        saved_us = self._apart_us(stretch) - self.first_us[stretch]
        return saved_us / (_length(stretch) - 1) if _length(stretch) > 1 and math.isfinite(saved_us) else 0.0

    def _apart_us(self, stretch: Stretch) -> float:
        return sum(self.first_us[index, index + 1] for index in range(*stretch))


def _length(stretch: Stretch) -> int:
    return stretch[1] - stretch[0]
