"""Which operator is the first to differ, found by looking at few tensors of a graph."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from iosched.models.graph import ComputationGraph

Look = Callable[[Sequence[str]], Mapping[str, bool]]
"""Says of operators whether all that they compute is as it should be; those that it cannot look at are left out."""


@dataclass(frozen=True)
class Differing:
    """An operator that differs, though nothing that it reads does.

    Attributes:
        operator: its name.
        unseen: operators right before it, in order, that could not be looked at: it may as well be one of them.
        looks: how often the graph was looked at.
        is_complete: whether the search came to its end; else `unseen` are all that were still in question.
    """

    operator: str
    unseen: tuple[str, ...]
    looks: int
    is_complete: bool


def find_differing(
    graph: ComputationGraph,
    order: Sequence[str],
    differing: Collection[str],
    alike: Collection[str],
    look: Look,
    most_looks: int = 64,
) -> Differing:
    """Finds an operator that differs, while all that it reads is as it should be, on the way to one that differs.

    Each look is at a cut: those operators before the middle of what is in question whose results are read behind it.
    Where all of them are as they should be, the fault lies behind; where one is not, before the first of these or in
    it. That a difference may die out again on its way, and that others begin elsewhere, changes nothing: what is left
    in the end is seen to differ, and all that it reads is seen to be as it should be.

    Args:
        order: all operators in the order in which they run, which is a topological one.
        differing: operators that are known to differ, one at least; the search is on the way to the first of them.
        alike: operators that are known to compute what they should.
        look: see `Look`.
        most_looks: after so many the search ends.

    Complexity: looks: about log2 of the operators before the first of `differing`, and one more for each that cannot be
    looked at; besides, O(looks * (operators + edges)).
    """
    place = {name: number for number, name in enumerate(order)}
    good, dark, looks = set(alike), set[str](), 0
    bad = min(differing, key=place.__getitem__)
    while True:
        between = sorted(_between(graph, bad, good), key=place.__getitem__)
        seeable = [name for name in between if name not in dark]
        if not seeable or looks >= most_looks:
            return Differing(bad, tuple(between), looks, not seeable)
        cut = [name for name in _cut(graph, between, bad, seeable[len(seeable) // 2]) if name not in dark]
        seen = look(cut)
        looks += 1
        dark.update(name for name in cut if name not in seen)
        good.update(name for name in cut if seen.get(name))
        bad = min((name for name in cut if seen.get(name) is False), key=place.__getitem__, default=bad)


def _between(graph: ComputationGraph, bad: str, good: Collection[str]) -> set[str]:
    """What `bad` is computed from, back to operators that are good."""
    found, waiting = set[str](), [bad]
    while waiting:
        for name in graph.predecessors[waiting.pop()]:
            if name not in found and name not in good:
                found.add(name)
                waiting.append(name)
    return found


def _cut(graph: ComputationGraph, between: Sequence[str], bad: str, middle: str) -> list[str]:
    """Those up to `middle` whose results are read behind it."""
    until = between.index(middle) + 1
    behind = {bad, *between[until:]}
    return [name for name in between[:until] if not behind.isdisjoint(graph.successors[name])]
