"""All strategies: how a stage may run, how stages may run in each search, and baselines.

A stage strategy is a member of `Strategy` with a rule in `STAGE_RULES`, which the search, the proof, the schedule file
and the pictures follow. It also needs a lowering for each kind of device (`runtime/`), and a latency on simulated GPUs
(`profiler/devices/analytic/`). Commands take their choices from here, so nothing heavy is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeGuard, get_args

from iosched.models.errors import UsageError
from iosched.models.graph import ComputationGraph
from iosched.models.merging.rule import MergeKey, merge_key, refusal
from iosched.scheduler.baselines import greedy, sequential
from iosched.scheduler.pruning import DEFAULT_PRUNING, Pruning
from iosched.scheduler.schedule import Schedule, Stage, Strategy


def can_merge(graph: ComputationGraph, operators: Iterable[str]) -> bool:
    """Whether two or more operators of `graph` may run as one merged operator; see `merge_key`."""
    return merge_refusal(graph, operators) is None


def merge_refusal(graph: ComputationGraph, operators: Iterable[str]) -> str | None:
    """Why these operators of `graph` cannot be merged; None if they can."""
    return refusal([graph.by_name[name] for name in operators])


def merge_classes(graph: ComputationGraph, operators: Iterable[str]) -> tuple[tuple[str, ...], ...]:
    """The largest sets of `operators` that can be merged, as can every subset of two or more."""
    classes: dict[MergeKey, list[str]] = {}
    for name in operators:
        key = merge_key(graph.by_name[name])
        if key is not None:
            classes.setdefault(key, []).append(name)
    return tuple(tuple(names) for names in classes.values() if len(names) > 1)


Names = Sequence[str]


@dataclass(frozen=True)
class StageRule:
    """The requirements and the looks of a strategy.

    Attributes:
        largest_sets: the largest sets of some operators that may run so, as may every part of two or more.
        refusal: why these operators may not run so; None if they may.
        is_one_operator: whether two or more operators run as one. They are independent, each listed as a group.
        mark, colour, legend: of such stages in pictures; empty for the usual strategy.
        is_in_order: whether all operators run one after another, across groups.
        is_linked: whether groups may read each other's results, see `start_order`.
    """

    largest_sets: Callable[[ComputationGraph, Names], Sequence[Names]]
    refusal: Callable[[ComputationGraph, Names], str | None]
    is_one_operator: bool
    mark: str = ""
    colour: str = ""
    legend: str = ""
    is_in_order: bool = False
    is_linked: bool = False


STAGE_RULES: dict[Strategy, StageRule] = {
    Strategy.MERGE: StageRule(
        merge_classes,
        merge_refusal,
        is_one_operator=True,
        mark="merge",
        colour="#c8553d",
        legend="operators merged into one",
    ),
    Strategy.CONCURRENT: StageRule(lambda graph, names: (names,), lambda graph, names: None, is_one_operator=False),
    Strategy.SESSION: StageRule(
        lambda graph, names: (names,),
        lambda graph, names: None,
        is_one_operator=False,
        mark="session",
        colour="#3a6ea5",
        legend="one onnxruntime session on all cores",
        is_in_order=True,
    ),
    Strategy.LANES: StageRule(
        lambda graph, names: (names,),
        lambda graph, names: None,
        is_one_operator=False,
        mark="lanes",
        colour="#2f8f6b",
        legend="lanes that wait for each other; widths are no times",
        is_linked=True,
    ),
}
"""In order of preference for equal latencies (thesis, algorithm 1)."""

_BY_STATES = (Strategy.MERGE, Strategy.CONCURRENT)
"""Strategies for the stages of a block's states. Files may contain sessions, but none is searched: they were no faster
(ADR 0039).
"""


SEARCHES: dict[SearchStrategy, tuple[Strategy, ...]] = {
    "both": _BY_STATES,
    "concurrent": (Strategy.CONCURRENT,),
    "merge": (Strategy.MERGE,),
    "dos": _BY_STATES,
}
"""Strategies of a search for stages of several operators; a single operator always runs by `Strategy.CONCURRENT`."""

LANES: Literal["lanes"] = "lanes"
"""The baseline of `list_scheduling`, which needs latencies of operators."""

BASELINES: dict[str, Callable[[ComputationGraph], Schedule]] = {"greedy": greedy, "sequential": sequential}


def runs_as_one(stage: Stage) -> bool:
    """Whether two or more operators run as one in this stage."""
    return STAGE_RULES[stage.strategy].is_one_operator and len(stage.operators) > 1


def groups_side_by_side(stage: Stage) -> tuple[tuple[str, ...], ...]:
    """The groups that run concurrently; a single one of all operators if these run one after another."""
    return (stage.operators,) if STAGE_RULES[stage.strategy].is_in_order else stage.groups


def masks_of(
    graph: ComputationGraph, names: Names, strategies: Sequence[Strategy]
) -> Mapping[Strategy, tuple[int, ...]]:
    """For each strategy the largest sets of `names` that may run so, as masks; none if it is not in `strategies`.

    Bit i of a mask is `names[i]`.
    """
    bit = {name: 1 << index for index, name in enumerate(names)}
    return {
        strategy: tuple(sum(bit[name] for name in found) for found in rule.largest_sets(graph, names))
        if strategy in strategies
        else ()
        for strategy, rule in STAGE_RULES.items()
    }


def is_linked(stage: Stage) -> bool:
    """Whether groups of this stage may read each other's results."""
    return STAGE_RULES[stage.strategy].is_linked


SearchStrategy = Literal["both", "concurrent", "merge", "dos"]
"""Strategies of searches."""

BaselineStrategy = Literal["lanes", "greedy", "sequential"]
"""Schedules that need no search."""

StrategyName = Literal[SearchStrategy, BaselineStrategy]
"""Strategies of `optimize`."""

RecordedStrategy = Literal[StrategyName, "packed", "mixed"]
"""Strategies in schedule files; the last two are of several models: all concurrent, or partly merged."""

SEARCH_NAMES: tuple[SearchStrategy, ...] = get_args(SearchStrategy)
BASELINE_NAMES: tuple[BaselineStrategy, ...] = get_args(BaselineStrategy)
NAMES: tuple[StrategyName, ...] = (*SEARCH_NAMES, *BASELINE_NAMES)

DOS = Pruning(r=1, s=None)
"""The limits of DOS, the predecessor of IOS: the operators of a stage are independent."""

LIMITED: dict[str, Pruning] = {"dos": DOS}
"""Searches with separate limits; `bench` runs them on request only."""

COMPARED: tuple[StrategyName, ...] = tuple(
    name for is_limited in (False, True) for name in reversed(NAMES) if (name in LIMITED) is is_limited
)
"""All strategies in the order of `bench`, simplest first."""


MEANINGS: dict[StrategyName, str] = {
    "sequential": "one operator after another",
    "greedy": "each stage runs all ready operators",
    "lanes": "list scheduling on lanes, without stages",
    "concurrent": "IOS-Parallel: concurrent groups",
    "merge": "IOS-Merge: operators with the same input merged",
    "both": "IOS: each stage concurrent or merged, whichever is faster",
    "dos": "DOS: one operator per group",
}
"""A short description of each strategy."""

ONE_SESSION = "session"
"""Another way to run operators one after another, on devices that have it: all in one session."""

BY_IMAGE = "by_image"
"""Another way to run a batch on a CPU: each core runs its images one at a time."""


def is_searched(name: str) -> TypeGuard[SearchStrategy]:
    """Whether this is the name of a search, not of a baseline."""
    return name in SEARCH_NAMES


def refuse_limits(name: str, given: Pruning) -> None:
    """Raises a UsageError for limits of a strategy that has its own, unless they are default or equal."""
    own = LIMITED.get(name)
    if own is not None and given not in (own, DEFAULT_PRUNING):
        raise UsageError(
            f"strategy {name!r} always uses r={own.r}, s={own.s}, but got r={given.r}, s={given.s}: omit them"
        )


def pruning_of(name: str, given: Pruning) -> Pruning:
    """The limits of the strategy: its own, else the given ones."""
    return LIMITED.get(name, given)
