"""The sets of operators that may run as one merged operator (strategy "merge"); the rule is `models.merge_rule`."""

from __future__ import annotations

from collections.abc import Iterable

from iosched.models.graph import ComputationGraph
from iosched.models.merge_rule import MergeKey, merge_key, refusal


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
