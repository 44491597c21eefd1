"""Plans which operators of several models are batched, by a policy.

"dpbat" adds model by model, each matched with one in the plan (DPBat, algorithm 3). "greedy" does the same with equal
gains. "fcfs" goes layer by layer from the inputs to the first layer that differs, like Retiarii's engine in NNI,
according to DPBat.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

from iosched.models.batching.ensemble import Ensemble, Group
from iosched.scheduler.baselines import ready_sets
from iosched.scheduler.batching.clusters import similarities
from iosched.scheduler.batching.costs import BatchingCosts, EqualGains, spread
from iosched.scheduler.batching.plan import Plan, difference_us
from iosched.scheduler.batching.policy_names import UNBATCHED, PolicyName
from iosched.scheduler.batching.runs import Pairing


def planned(ensemble: Ensemble, costs: BatchingCosts, policy: PolicyName) -> Plan:
    """The plan of a policy at these costs; "auto" is "dpbat", and "serial" and "packed" batch nothing."""
    if policy in UNBATCHED:
        return Plan(ensemble, costs)
    if policy == "fcfs":
        return layered(ensemble, costs)
    if policy == "greedy":
        return Plan(ensemble, costs, folded(ensemble, EqualGains()).groups)
    return folded(ensemble, costs)


def folded(ensemble: Ensemble, costs: BatchingCosts) -> Plan:
    """The plan of all members, added in order of similarity.

    Each member is matched with the most similar member of the plan; operators join the groups of matched operators. A
    member whose matches make the plan worse is left out. This is done with the given costs and with costs spread over
    all models; the better plan is pruned and returned. Complexity: two `Pairing` for each member, and O(operators) for
    the line.

    No cycle can arise. There always is a line of positions, each for one group or single operator, such that every edge
    leads to a later position. The first member's order is such a line. A new member is matched with the operators of
    one member in the order of their positions, one for each position, so matches ascend in both orders. Its unmatched
    operators are inserted between the positions of the matches before and after them, in its own topological order.
    Then every edge of the new member leads to a later position, and the line keeps its order. Operators that it shares
    with earlier members are in the line already, and their predecessors are shared too. An operator may therefore only
    match after all shared operators that it, or an earlier operator of its member, reads; unmatched operators are
    inserted after them too.
    """
    similarity = similarities([[ensemble.likeness[name].key for name in each] for each in ensemble.sequences])
    prices = [costs, spread(costs, len(similarity))] if len(similarity) > 2 else [costs]
    plans = (Plan(ensemble, costs, _folded(ensemble, each, similarity).groups) for each in prices)
    return max((pruned(plan) for plan in plans), key=lambda plan: plan.value_us())


def _folded(ensemble: Ensemble, costs: BatchingCosts, similarity: Sequence[Sequence[float]]) -> Plan:
    plan, line = Plan(ensemble, costs), [name for first in ensemble.sequences[:1] for name in first]
    for new, old in _order(similarity):
        plan, line = _with_member(plan, line, new, old)
    return plan


def _with_member(plan: Plan, line: list[str], new: int, old: int) -> tuple[Plan, list[str]]:
    """The plan and the line with member `new`, matched with member `old`; `line` has one operator of each position."""
    ensemble = plan.ensemble
    heads = {plan.group(name)[0]: index for index, name in enumerate(line)}
    both = (*ensemble.sequences[new], *ensemble.sequences[old])
    position = {name: heads[head] for name in both if (head := plan.group(name)[0]) in heads}
    fresh = [name for name in ensemble.sequences[new] if name not in position]
    floors = _floors(ensemble, fresh, position)
    there = {position[name]: name for name in ensemble.sequences[old]}
    positions = sorted(there)
    pairing = Pairing(plan, fresh, [there[index] for index in positions], lambda i, j: positions[j] > floors[i])
    _, matches = pairing.best()
    larger = plan.with_pairs((fresh[i], there[positions[j]]) for i, j in matches)
    if difference_us(plan, larger, [fresh[i] for i, _ in matches]) < 0:
        matches, larger = (), plan
    matched = {fresh[i]: positions[j] for i, j in matches}
    return larger, _drawn(line, fresh, floors, matched)


def _floors(ensemble: Ensemble, fresh: Sequence[str], position: dict[str, int]) -> list[int]:
    """For each operator, the last position in the line that it or an earlier one reads from; -1 without any."""
    before = ensemble.graph.predecessors
    lasts = (max((position[other] for other in before[name] if other in position), default=-1) for name in fresh)
    return [*accumulate(lasts, max)]


def _drawn(line: list[str], fresh: Sequence[str], floors: Sequence[int], matched: dict[str, int]) -> list[str]:
    """The line with the unmatched operators, each as early as matches and floors allow."""
    inserted: list[list[str]] = [[] for _ in range(len(line) + 1)]
    last = -1
    for name, floor in zip(fresh, floors, strict=True):
        last = matched.get(name, max(last, floor))
        if name not in matched:
            inserted[last + 1].append(name)
    return [*inserted[0], *(name for head, after in zip(line, inserted[1:], strict=True) for name in (head, *after))]


def _order(similarity: Sequence[Sequence[float]]) -> Iterator[tuple[int, int]]:
    """All members but the first, each time the one most similar to an earlier member, with that member."""
    closest = dict.fromkeys(range(1, len(similarity)), 0)
    while closest:
        new = max(closest, key=lambda other: (similarity[other][closest[other]], -other))
        yield new, closest.pop(new)
        for other, old in closest.items():
            if similarity[other][new] > similarity[other][old]:
                closest[other] = new


def pruned(plan: Plan) -> Plan:
    """The plan without groups that cost more than they save; a local optimum.

    Single groups and connected chains of groups are removed until no removal saves time. Complexity: O(operators +
    edges) for each round, one more than the rounds with a removal.
    """
    while True:
        before = plan
        for gone in [*([group] for group in before.all_groups()), *_chains(before)]:
            names = [name for group in gone for name in group]
            if not plan.groups.keys() >= set(names):
                continue
            smaller = plan.without(gone)
            if difference_us(plan, smaller, names) > 0:
                plan = smaller
        if plan is before:
            return plan


def _chains(plan: Plan) -> list[list[Group]]:
    chains: dict[str, list[Group]] = {}
    for group in plan.all_groups():  # each after its feeders
        chain = chains[group[0]] = [group]
        for port in range(len(plan.ensemble.reads[group[0]])):
            feeder = plan.feeder(group, port)
            if feeder is not None and chains[feeder[0]] is not chain:
                chain += chains[feeder[0]]
                chains.update((each[0], chain) for each in chain)
    found = {id(chain): chain for chain in chains.values() if len(chain) > 1}
    return list(found.values())


def layered(ensemble: Ensemble, costs: BatchingCosts) -> Plan:
    """The plan that matches each member with the one before it, regardless of its value.

    Matched operators are equally deep, and edges lead from less deep to deeper operators, so there is no cycle.
    """
    plan = Plan(ensemble, costs)
    known: set[str] = set(ensemble.sequences[0]) if ensemble.sequences else set()
    for old, new in zip(ensemble.sequences, ensemble.sequences[1:], strict=False):
        pairs = [pair for pair in _matches(ensemble, new, old) if pair[0] not in known]
        plan = plan.with_pairs(pairs)
        known.update(new)
    return plan


def _matches(ensemble: Ensemble, new: Sequence[str], old: Sequence[str]) -> Iterator[tuple[str, str]]:
    def key(name: str) -> str:
        return ensemble.likeness[name].key

    before = ensemble.graph.predecessors.__getitem__
    for ours, theirs in zip(ready_sets(new, before), ready_sets(old, before), strict=False):
        pairs = [*zip(sorted(ours, key=key), sorted(theirs, key=key), strict=False)]
        if len(ours) != len(theirs) or any(key(name) != key(other) for name, other in pairs):
            return
        yield from (pair for pair in pairs if ensemble.are_alike(*pair))
