"""Every strategy: how a stage may run, how stages may run in each search, and the schedules that need none.

A strategy of stages is a member of `Strategy` and a rule in `STAGES`: the search, the proof, the schedule file and the
pictures go by the rules alone. Beside them it needs a lowering for each kind of device (`runtime/`), and a latency on a
GPU that is not there (`profiler/devices/analytic/`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeGuard, get_args

from iosched.models.errors import UsageError
from iosched.models.graph import ComputationGraph
from iosched.models.merge_rule import MergeKey, merge_key, refusal
from iosched.scheduler.baselines import greedy, sequential
from iosched.scheduler.pruning import DEFAULT_PRUNING, Pruning
from iosched.scheduler.schedule import Schedule, Stage, Strategy


def can_merge(graph: ComputationGraph, operators: Iterable[str]) -> bool:
    """Whether two or more operators of `graph` may run as one merged operator; see `merge_key`."""
    return merge_refusal(graph, operators) is None


def merge_refusal(graph: ComputationGraph, operators: Iterable[str]) -> str | None:
    """Why these operators of `graph` may not run as one merged operator; None where they may."""
    return refusal([graph.by_name[name] for name in operators])


def merge_classes(graph: ComputationGraph, operators: Iterable[str]) -> tuple[tuple[str, ...], ...]:
    """The largest sets of `operators` that may be merged; every subset of two or more may be merged too."""
    classes: dict[MergeKey, list[str]] = {}
    for name in operators:
        key = merge_key(graph.by_name[name])
        if key is not None:
            classes.setdefault(key, []).append(name)
    return tuple(tuple(names) for names in classes.values() if len(names) > 1)


Names = Sequence[str]


@dataclass(frozen=True)
class StageRule:
    """What a strategy asks of the operators of a stage, and how such a stage looks.

    Attributes:
        largest_sets: of some operators, those sets that may run so as a whole; every part of two or more of such a set
            may run so too.
        refusal: why these operators may not run so; None where they may.
        is_one_operator: whether two or more operators run as one. They do not depend on each other, and each is listed
            as a group of its own.
        mark: a word beside the stage in pictures; none for the usual strategy.
        colour: of the dashed line around it.
        legend: what such a line says.
        is_in_order: whether operators run one after another, also those of different groups.
    """

    largest_sets: Callable[[ComputationGraph, Names], Sequence[Names]]
    refusal: Callable[[ComputationGraph, Names], str | None]
    is_one_operator: bool
    mark: str = ""
    colour: str = ""
    legend: str = ""
    is_in_order: bool = False


STAGES: dict[Strategy, StageRule] = {
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
        legend="one session of onnxruntime over all cores",
        is_in_order=True,
    ),
}
"""In order of preference: of two strategies that take equally long, a stage runs by the first (thesis, algorithm 1)."""

_BY_STATES = (Strategy.MERGE, Strategy.CONCURRENT)
"""How the stages of a block's states may run. Files may have sessions, but none is searched for: operators that need no
session of their own made them no faster than stages (ADR 0039)."""


SEARCHES: dict[SearchStrategy, tuple[Strategy, ...]] = {
    "both": _BY_STATES,
    "concurrent": (Strategy.CONCURRENT,),
    "merge": (Strategy.MERGE,),
    "dos": _BY_STATES,
}
"""How stages of two and more operators may run in a search; a single operator runs by `Strategy.CONCURRENT` always."""

BASELINES: dict[str, Callable[[ComputationGraph], Schedule]] = {"greedy": greedy, "sequential": sequential}


def runs_as_one(stage: Stage) -> bool:
    """Whether two or more operators run as one in this stage."""
    return STAGES[stage.strategy].is_one_operator and len(stage.operators) > 1


def groups_side_by_side(stage: Stage) -> tuple[tuple[str, ...], ...]:
    """The groups of the stage that run at the same time; all operators in one where they run one after another."""
    return (stage.operators,) if STAGES[stage.strategy].is_in_order else stage.groups


def masks_of(
    graph: ComputationGraph, names: Names, strategies: Sequence[Strategy]
) -> Mapping[Strategy, tuple[int, ...]]:
    """For each strategy the largest sets of the operators `names` that may run so; none if it is not in `strategies`.

    A set is a mask: bit i stands for `names[i]`.
    """
    bit = {name: 1 << index for index, name in enumerate(names)}
    return {
        strategy: tuple(sum(bit[name] for name in found) for found in rule.largest_sets(graph, names))
        if strategy in strategies
        else ()
        for strategy, rule in STAGES.items()
    }


SearchStrategy = Literal["both", "concurrent", "merge", "dos"]
"""What a search can be asked for."""

BaselineStrategy = Literal["greedy", "sequential"]
"""Schedules that need no search."""

StrategyName = Literal[SearchStrategy, BaselineStrategy]
"""What `optimize` can be asked for."""

RecordedStrategy = Literal[StrategyName, "packed", "mixed"]
"""How a schedule file says that its schedule was found; the last two are of several models: side by side throughout, or
also one in some operators."""

SEARCH_NAMES: tuple[SearchStrategy, ...] = get_args(SearchStrategy)
BASELINE_NAMES: tuple[BaselineStrategy, ...] = get_args(BaselineStrategy)
NAMES: tuple[StrategyName, ...] = (*SEARCH_NAMES, *BASELINE_NAMES)

DOS = Pruning(r=1, s=None)
"""The limits of DOS, which came before IOS: the operators of a stage do not depend on each other."""

LIMITED: dict[str, Pruning] = {"dos": DOS}
"""Searches under limits of their own, in place of those that are given; `bench` makes them on request only."""

COMPARED: tuple[StrategyName, ...] = tuple(
    name for is_limited in (False, True) for name in reversed(NAMES) if (name in LIMITED) is is_limited
)
"""All strategies in the order in which `bench` compares them: from the plainest on."""


MEANINGS: dict[StrategyName, str] = {
    "sequential": "one operator after another",
    "greedy": "all operators that are ready form the next stage",
    "concurrent": "IOS-Parallel: groups side by side",
    "merge": "IOS-Merge: operators of one input merged",
    "both": "IOS: each stage concurrent or merged, whichever is better",
    "dos": "DOS: one operator in each group",
}
"""What each strategy makes of a model, in short."""

ONE_SESSION = "session"
"""The name of another way to run one operator after another, on devices that have it: all as one session."""


def is_searched(name: str) -> TypeGuard[SearchStrategy]:
    """Whether this is the name of a search, not of a baseline."""
    return name in SEARCH_NAMES


def refuse_limits(name: str, given: Pruning) -> None:
    """Refuses limits beside a strategy that has its own, unless they are the default ones or the same.

    Raises:
        UsageError: they would be passed over.
    """
    own = LIMITED.get(name)
    if own is not None and given not in (own, DEFAULT_PRUNING):
        raise UsageError(
            f"strategy {name!r} is r={own.r}, s={own.s}, and was given r={given.r}, s={given.s}: leave them out"
        )


def pruning_of(name: str, given: Pruning) -> Pruning:
    """The limits that the strategy searches under: its own, or else those given."""
    return LIMITED.get(name, given)
