"""What can be asked for: the names of searches and baselines, with the limits that some of them bring along.

The command line takes its choices from here, so nothing heavy is imported. `strategies.py` says what a name stands for.
"""

from __future__ import annotations

from typing import Literal, TypeGuard, get_args

from iosched.models.errors import UsageError
from iosched.scheduler.pruning import DEFAULT_PRUNING, Pruning

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
