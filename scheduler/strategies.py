"""Every strategy by name: how a stage may run, what can be searched for, and what is compared with it.

A strategy of stages is a member of `Strategy` and a rule in `STAGES`: the search, the proof, the schedule file and the
pictures go by the rules alone. Beside them it needs a lowering for each kind of device (`runtime/`), and a latency on a
GPU that is not there (`profiler/devices/analytic/`). The command line takes names from here: nothing heavy is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeGuard, get_args

from iosched.models.graph import ComputationGraph
from iosched.scheduler.baselines import greedy, sequential
from iosched.scheduler.merge import merge_classes, merge_refusal
from iosched.scheduler.pruning import Pruning
from iosched.scheduler.schedule import Schedule, Stage, Strategy

Names = Sequence[str]

SearchStrategy = Literal["both", "concurrent", "merge", "dos"]
"""What a search can be asked for."""

StrategyName = Literal[SearchStrategy, "greedy", "sequential"]
"""What `optimize` can be asked for: a search, or a baseline."""


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
    """

    largest_sets: Callable[[ComputationGraph, Names], Sequence[Names]]
    refusal: Callable[[ComputationGraph, Names], str | None]
    is_one_operator: bool
    mark: str = ""
    colour: str = ""
    legend: str = ""


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
}
"""In order of preference: of two strategies that take equally long, a stage runs by the first (thesis, algorithm 1)."""


@dataclass(frozen=True)
class SearchRule:
    """What a search tries.

    Attributes:
        strategies: how stages of two and more operators may run; a single one runs by `Strategy.CONCURRENT` always.
        pruning: limits that belong to the strategy, in place of those that are given.
    """

    strategies: tuple[Strategy, ...]
    pruning: Pruning | None = None


DOS = Pruning(r=1, s=None)
"""The limits of DOS, which came before IOS: the operators of a stage do not depend on each other."""

SEARCHES: dict[SearchStrategy, SearchRule] = {
    "both": SearchRule(tuple(STAGES)),
    "concurrent": SearchRule((Strategy.CONCURRENT,)),
    "merge": SearchRule((Strategy.MERGE,)),
    "dos": SearchRule(tuple(STAGES), DOS),
}

BASELINES: dict[str, Callable[[ComputationGraph], Schedule]] = {"greedy": greedy, "sequential": sequential}
"""Strategies that search nothing."""

NAMES: tuple[StrategyName, ...] = get_args(StrategyName)
LIMITED: tuple[StrategyName, ...] = tuple(name for name, search in SEARCHES.items() if search.pruning is not None)
"""Searches under limits of their own: `bench` makes them on request only."""

COMPARED: tuple[StrategyName, ...] = (*(name for name in reversed(NAMES) if name not in LIMITED), *LIMITED)
"""All strategies in the order in which `bench` compares them: from the plainest on."""


def is_searched(name: str) -> TypeGuard[SearchStrategy]:
    """Whether this is the name of a search; else it is that of a baseline, if of anything."""
    return name in SEARCHES


def own_pruning(name: str) -> Pruning | None:
    """The limits that belong to the strategy; None where it goes by those that are given."""
    return SEARCHES[name].pruning if is_searched(name) else None


def pruning_of(name: str, given: Pruning) -> Pruning:
    """The limits that the strategy searches under: its own, or else those given."""
    return own_pruning(name) or given


def runs_as_one(stage: Stage) -> bool:
    """Whether two or more operators run as one in this stage."""
    return STAGES[stage.strategy].is_one_operator and len(stage.operators) > 1


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
