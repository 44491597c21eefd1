"""First come, first served: models are batched layer by layer from their inputs, up to the first layer that differs.

That is what Retiarii's engine in NNI does across graphs, as DPBat describes it: the baseline `fcfs`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from iosched.scheduler.baselines import ready_sets
from iosched.scheduler.batching.costs import BatchingCosts
from iosched.scheduler.batching.ensemble import Ensemble
from iosched.scheduler.batching.plan import Plan


def layered(ensemble: Ensemble, costs: BatchingCosts) -> Plan:
    """The plan that matches each member with the one before it, whatever it is worth.

    Matched operators are equally deep, and an edge leads from a less deep to a deeper operator; so there is no cycle.
    """
    plan = Plan(ensemble, costs)
    known: set[str] = set(ensemble.sequences[0]) if ensemble.sequences else set()
    for old, new in zip(ensemble.sequences, ensemble.sequences[1:], strict=False):
        pairs = [pair for pair in _matches(ensemble, new, old) if pair[0] not in known]
        plan = plan.with_pairs(pairs)
        known.update(new)
    return plan


def _matches(ensemble: Ensemble, new: Sequence[str], old: Sequence[str]) -> Iterator[tuple[str, str]]:
    before = ensemble.graph.predecessors.__getitem__
    for ours, theirs in zip(ready_sets(new, before), ready_sets(old, before), strict=False):
        keys = [Counter(ensemble.likeness[name].key for name in layer) for layer in (ours, theirs)]
        if keys[0] != keys[1]:
            return
        waiting: dict[str, list[str]] = {}
        for name in theirs:
            waiting.setdefault(ensemble.likeness[name].key, []).append(name)
        for name in ours:
            other = waiting[ensemble.likeness[name].key].pop(0)
            if ensemble.are_alike(name, other):
                yield name, other
