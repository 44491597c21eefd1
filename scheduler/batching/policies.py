"""The policies by which operators of several models become one, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from iosched.scheduler.batching.costs import BatchingCosts, EqualGains
from iosched.scheduler.batching.ensemble import Ensemble
from iosched.scheduler.batching.folding import folded
from iosched.scheduler.batching.layers import layered
from iosched.scheduler.batching.plan import Plan
from iosched.scheduler.batching.similarity import similarities

Policy = Callable[[Ensemble, BatchingCosts], Plan]


def likeness_square(ensemble: Ensemble) -> tuple[tuple[float, ...], ...]:
    """The similarity of every two members."""
    return similarities([[ensemble.likeness[name].key for name in sequence] for sequence in ensemble.sequences])


def dpbat(ensemble: Ensemble, costs: BatchingCosts) -> Plan:
    """What is worth its price, by dynamic programmes."""
    return folded(ensemble, costs, likeness_square(ensemble))


def greedy(ensemble: Ensemble, costs: BatchingCosts) -> Plan:
    """As much as is alike, whatever it costs."""
    return Plan(ensemble, costs, folded(ensemble, EqualGains(), likeness_square(ensemble)).groups)


def fcfs(ensemble: Ensemble, costs: BatchingCosts) -> Plan:
    """Layer by layer, in the order in which the models came, up to the first layer that differs."""
    return layered(ensemble, costs)


def unbatched(ensemble: Ensemble, costs: BatchingCosts) -> Plan:
    """Nothing."""
    return Plan(ensemble, costs)


POLICIES: Mapping[str, Policy] = {
    "dpbat": dpbat, "fcfs": fcfs, "greedy": greedy, "packed": unbatched, "serial": unbatched,
}  # fmt: skip
"""By name; "serial" and "packed" differ in how models then run, one after another or side by side."""
