"""What `optimize` is asked for, whom it talks to meanwhile, and what it answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, Protocol

from iosched.jobs.decision import Ratio
from iosched.models.graph import ComputationGraph
from iosched.scheduler.cost import CostModel
from iosched.scheduler.document import ScheduleDocument
from iosched.scheduler.effort import Effort
from iosched.scheduler.precision import DEFAULT_PRECISION
from iosched.scheduler.proof import Scope
from iosched.scheduler.pruning import Pruning
from iosched.scheduler.schedule import Block, Schedule, Stage
from iosched.scheduler.search import SearchResult, search
from iosched.scheduler.strategies import BASELINES, StrategyName, is_searched, pruning_of

Shipped = Literal["iosched", "reference", "sequential"]
Barriers = Literal["auto", "stage", "none"]


@dataclass(frozen=True)
class OptimizeSettings:
    """What to optimize for, and how hard to try.

    Attributes:
        device: as `--device` takes it.
        threads: cores to use; all that the process may use by default.
        strategy: "concurrent", "merge", "both", "dos", or a baseline: "sequential", "greedy".
        r: most operators in a group, None for any number; "dos" has its own limits.
        s: most groups in a stage, None for any number.
        budget_s: seconds after which the best schedule known is taken; comparing whole models is part of them.
        profile_db: the database; the user's own by default.
        precision: what a planned GPU computes in: "fp32", "tf32" or "fp16".
        exhaustive: measure every stage instead of searching lazily.
        resume: take what the database knows; False measures anew and replaces it.
        barriers: on an attached GPU, whether a stage waits for all of the one before ("stage"), for what it reads alone
            ("none"), or as is faster ("auto").
        schedule_from: the schedule to take, of a model of the same structure, in place of one that is searched.
    """

    device: str = "auto"
    threads: int | None = None
    strategy: StrategyName = "both"
    r: int | None = 3
    s: int | None = 8
    budget_s: float | None = None
    profile_db: Path | None = None
    precision: str = DEFAULT_PRECISION
    exhaustive: bool = False
    resume: bool = True
    barriers: Barriers = "auto"
    schedule_from: ScheduleDocument | None = None

    @property
    def pruning(self) -> Pruning:
        """The limits on stages that the strategy is searched under."""
        return pruning_of(self.strategy, Pruning(self.r, self.s))


class Observer(Protocol):
    """Told how the work goes."""

    def progress(self, done: int, total: int | None, text: str) -> None:
        """`done` steps of `total` (None: not known) are behind us."""
        ...


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


@dataclass(frozen=True)
class OptimizeResult:
    """A schedule, what it is worth, and what finding it took. Latencies are medians in microseconds.

    `measured_us` and `reference_us` are None where nothing was measured, `greedy_us` also where the budget left no time
    for it, and `gap` where nothing was searched. `gap` is about the schedule found, within `gap_of`; what is proven of
    the schedule in `document` is said there. `ratio` compares the schedule that ships, or the one found, with what
    there is without it; None where nothing was measured, or too seldom to tell. Latencies are of runs in a row;
    `rested_us` has those after a rest by the names "measured", "sequential", "greedy" and "reference". `notes` are
    sentences on what else a user should know.
    """

    document: ScheduleDocument
    schedule: Schedule
    device_kind: str
    device_name: str
    cost: str
    predicted_us: float
    measured_us: float | None
    sequential_us: float
    greedy_us: float | None
    reference_us: float | None
    shipped: str
    reason: str
    seconds: float
    states: int
    transitions: int
    stages: int
    signatures: int
    measurements: int
    cache_hits: int
    kernels_before: int
    kernels_after: int
    gap: float | None = None
    gap_of: Scope | None = None
    ratio: Ratio | None = None
    rested_us: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def proven(self) -> Scope | None:
        """What `schedule` is proven to be the best schedule of."""
        return self.document.proven

    @property
    def optimal(self) -> bool:
        """Whether it is proven that no legal schedule of the whole graph is better."""
        return self.document.optimal


def baseline(schedule: Schedule) -> SearchResult:
    """A schedule that needed no search."""
    n_stages = len(tuple(schedule.stages))
    return SearchResult(schedule, states=0, transitions=0, stages=n_stages, measured=0, lower_bound_us=0.0)


def taken(schedule: Schedule, latency_us: Callable[[Stage], float | None]) -> SearchResult:
    """A schedule that was given: nothing is searched or proven, and its stages take what `latency_us` says here."""
    blocks = tuple(
        Block(
            block.index,
            tuple(replace(stage, predicted_us=latency_us(stage), measured_us=None) for stage in block.stages),
            optimal=False,
        )
        for block in schedule.blocks
    )
    n_stages = sum(len(block.stages) for block in blocks)
    return SearchResult(Schedule(blocks), states=0, transitions=0, stages=n_stages, measured=0, lower_bound_us=0.0)


def searched(
    graph: ComputationGraph,
    cost: CostModel,
    settings: OptimizeSettings,
    effort: Effort,
    observer: Observer,
    deadline: Callable[[], bool] | None,
) -> SearchResult:
    """The schedule that the settings ask for: of a baseline, or the best one under `cost`."""
    if not is_searched(settings.strategy):
        return baseline(BASELINES[settings.strategy](graph))
    return search(
        graph,
        cost,
        strategy=settings.strategy,
        pruning=settings.pruning,
        observer=SearchProgress(observer),
        deadline=deadline,
        effort=effort.exhausted() if settings.exhaustive else effort,
    )


def deadline(budget_s: float | None, started: float, interrupt: Interrupt) -> Callable[[], bool] | None:
    """True once `budget_s` have passed since `started` (of `time.monotonic`), or an interruption came."""
    if budget_s is None:
        return (lambda: interrupt.came) if interrupt.can_come else None
    return lambda: interrupt.came or time.monotonic() >= started + budget_s


class Silence:
    """An observer that says nothing."""

    def progress(self, done: int, total: int | None, text: str) -> None:
        """Says nothing."""


class Uninterrupted:
    """Interruptions are raised at once: the caller alone deals with them."""

    can_come = came = accepted = False

    def holding(self) -> AbstractContextManager[None]:
        """Holds nothing back."""
        return nullcontext()

    def ask(self) -> None:
        """Nobody is there to be asked."""


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
