"""Plans which operators of several models become one: model by model, each against one that is in the plan already
(DPBat, algorithm 3).
"""

from __future__ import annotations

from collections.abc import Sequence

from iosched.scheduler.batching.costs import BatchingCosts, Spread
from iosched.scheduler.batching.ensemble import Ensemble
from iosched.scheduler.batching.plan import Plan, difference_us
from iosched.scheduler.batching.pruning import pruned
from iosched.scheduler.batching.runs import Pairing


def folded(ensemble: Ensemble, costs: BatchingCosts, similarity: Sequence[Sequence[float]]) -> Plan:
    """The plan of all members, in order of similarity to those that are in it.

    Each member is matched with the one member of the plan that it is most like. An operator joins whatever group the
    matched operator is in. A member whose matches make the whole plan worse, on the edges that are there, is left out.
    This is done with the prices of what is there, and once more with prices spread over as many models as there are;
    the better plan is pruned and returned.

    No cycle can come of it. There always is a line of places, each for one group or one single operator of the plan,
    such that every edge leads from a place to a later one. The first member's order is such a line. A new member is
    matched with the operators of one member p in the order of their places, one for each place, and matches go up in
    both orders. So along the new member's order the matched places go up. Those of its operators that match nothing are
    put between the places of the matches before and behind them, in the new member's own order, which is a topological
    one. Then every edge of the new member leads to a later place, and nothing that stood in the line has changed
    places.

    What the new member shares with earlier ones stands in the line already. Whatever a shared operator reads is shared
    too, so edges lead from shared operators to the others and never back. An operator therefore may only match at a
    place behind all shared operators that it, or one before it in its member's order, reads. An operator that matches
    nothing is put behind them likewise, and the next match stands behind it.

    Args:
        ensemble: the members.
        costs: what groups are worth.
        similarity: of every two members.

    Complexity: that of two `Pairing` for each member, and O(operators) to draw the line.
    """
    prices = [costs, Spread(costs, len(similarity))] if len(similarity) > 2 else [costs]
    plans = (Plan(ensemble, costs, _folded(ensemble, each, similarity).groups) for each in prices)
    return max((pruned(plan) for plan in plans), key=lambda plan: plan.value_us())


def _folded(ensemble: Ensemble, costs: BatchingCosts, similarity: Sequence[Sequence[float]]) -> Plan:
    plan = Plan(ensemble, costs)
    line: list[str] = []
    for new, old in _order(similarity):
        if old is None:
            line = list(ensemble.sequences[new])
            continue
        plan, line = _with_member(plan, line, new, old)
    return plan


def _with_member(plan: Plan, line: list[str], new: int, old: int) -> tuple[Plan, list[str]]:
    """The plan and the line with member `new`, matched with member `old`; `line` has one operator of each place."""
    ensemble = plan.ensemble
    heads = {plan.group(name)[0]: index for index, name in enumerate(line)}
    both = (*ensemble.sequences[new], *ensemble.sequences[old])
    place = {name: heads[head] for name in both if (head := plan.group(name)[0]) in heads}
    fresh = [name for name in ensemble.sequences[new] if name not in place]
    floors = _floors(ensemble, fresh, place)
    there = {place[name]: name for name in ensemble.sequences[old]}
    places = sorted(there)
    pairing = Pairing(plan, fresh, [there[index] for index in places], lambda i, j: places[j] > floors[i])
    _, matches = pairing.best()
    larger = plan.with_pairs((fresh[i], there[places[j]]) for i, j in matches)
    if difference_us(plan, larger, [fresh[i] for i, _ in matches]) < 0:
        matches, larger = (), plan
    matched = {fresh[i]: places[j] for i, j in matches}
    return larger, _drawn(line, fresh, floors, matched)


def _floors(ensemble: Ensemble, fresh: Sequence[str], place: dict[str, int]) -> list[int]:
    """For each operator the last place in the line of what it, or one before it, reads; -1 where there is none."""
    found: list[int] = []
    for name in fresh:
        before = [place[other] for other in ensemble.graph.predecessors[name] if other in place]
        found.append(max([*before, found[-1] if found else -1]))
    return found


def _drawn(line: list[str], fresh: Sequence[str], floors: Sequence[int], matched: dict[str, int]) -> list[str]:
    """The line with the operators that match nothing, each as early as the matches and floors before it allow."""
    behind: list[list[str]] = [[] for _ in range(len(line) + 1)]
    last = -1
    for name, floor in zip(fresh, floors, strict=True):
        last = matched.get(name, max(last, floor))
        if name not in matched:
            behind[last + 1].append(name)
    return [*behind[0], *(name for head, after in zip(line, behind[1:], strict=True) for name in (head, *after))]


def _order(similarity: Sequence[Sequence[float]]) -> list[tuple[int, int | None]]:
    """The members, the most similar to those before it first, each with the one that it is most like."""
    if not similarity:
        return []
    found: list[tuple[int, int | None]] = [(0, None)]
    closest = dict.fromkeys(range(1, len(similarity)), 0)
    while closest:
        new = max(closest, key=lambda other: (similarity[other][closest[other]], -other))
        found.append((new, closest.pop(new)))
        for other, old in closest.items():
            if similarity[other][new] > similarity[other][old]:
                closest[other] = new
    return found
