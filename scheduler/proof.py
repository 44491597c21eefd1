"""Proofs about a schedule, and the condition under which proofs of blocks prove the whole graph.

A schedule is *optimal* if no legal schedule of the whole graph, under the same pruning, takes less under the same cost.
The search proves this for each block. Both are the same if no schedule gains by a stage across a cut between blocks:

    Let every operator before a cut lead to every operator after it (`loses_nothing`). At most one stage crosses the
    cut, since none before it holds operators from after the cut, and none after it holds operators from before. It is
    an interval of the order: with two operators it has all on paths between them. Each of its operators before the cut
    leads to each one after it along such a path, so the stage is one group. Its operators do not run as one, since
    merged operators are independent. If a stage of one group takes at least as long as its operators in separate stages
    (`AdditiveGroups`), replacing it by these takes no longer, is legal under every pruning, and keeps the cut.

    If stages hold no dependent operators, because r is 1 or the operators of every stage run as one, no stage crosses
    such a cut at all, whatever the cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from iosched.models.graph import ComputationGraph
from iosched.scheduler.cost import AdditiveGroups, CostModel
from iosched.scheduler.pruning import Pruning
from iosched.scheduler.schedule import Scope, Strategy
from iosched.scheduler.strategies import STAGE_RULES


def proof_text(proven: Scope | None, under: str = "", *, measured: bool = False) -> str:
    """The proof in words, shared by all commands; it holds `under` the named latencies.

    Another measurement may have another optimum, so measured latencies are named.
    """
    if proven is None:
        return "not proven optimal"
    optimal = f"optimal {under}" if under else "optimal"
    if measured:
        optimal = "best by the measured latencies"
    return optimal if proven == "whole" else f"each block {optimal}, the whole graph not proven"


def gap_text(
    gap: float | None, of: Scope | None, under: str, *, measured: bool = False, predicted: float | None = None
) -> str:
    """The distance of a found schedule from the optimum, in words; None without a search.

    `gap` is the share of the latency that the optimum in scope `of` may save, `under` the latencies that a gap of 0
    holds under, and `predicted` the gap by predictions, if these ended the search. Bounds of measured latencies are
    estimates, because of caches and noise.
    """
    if gap is None:
        return "nothing was searched"
    if gap == 0:
        return proof_text(of, under, measured=measured)
    if gap < 1 and predicted is not None:
        return f"best found; by predicted stage latencies, at most {predicted:.1%} is left to gain"
    if gap < 1 and measured:
        return f"best found; by estimated bounds, at most {max(gap, 0.001):.1%} is left to gain"
    if gap < 1:
        possible = "possible" if of == "whole" else "possible in these blocks"
        return f"within {max(gap, 0.001):.1%} of the best {possible} under the stages' bounds"
    return f"best found, {proof_text(None)}"


def scope(
    graph: ComputationGraph,
    blocks: Sequence[Sequence[str]],
    cost: CostModel,
    strategies: Sequence[Strategy],
    pruning: Pruning,
) -> Scope:
    """The scope in which the best schedules of all `blocks` form the best schedule; see above.

    The first k blocks form a down-set, for every k, and their operators are in topological order.
    """
    if len(blocks) < 2:
        return "whole"
    dependent = {strategy for strategy in strategies if not STAGE_RULES[strategy].is_one_operator and pruning.r != 1}
    additive = isinstance(cost, AdditiveGroups) and cost.groups_are_additive
    bounded = not dependent or (dependent == {Strategy.CONCURRENT} and additive)
    return "whole" if bounded and loses_nothing(graph, blocks) else "blocks"


def loses_nothing(graph: ComputationGraph, blocks: Sequence[Sequence[str]]) -> bool:
    """Whether at each cut between blocks every operator before it leads to every one after it.

    That holds if all sinks before the cut are read by all sources after it: a path between them has no operator in
    between. Time O(operators + edges).
    """
    names = [name for block in blocks for name in block]
    ends, starts, edges = _across(graph, names)
    cuts = list(accumulate(map(len, blocks)))[:-1]
    return all(edges[cut] == ends[cut] * starts[cut] for cut in cuts)


def _across(graph: ComputationGraph, names: Sequence[str]) -> tuple[list[int], list[int], list[int]]:
    """For the cut before each position of a topological order, three counts.

    Operators before it that none before it reads, operators after it that read none after it, and edges between these.
    """
    n = len(names)
    position = {name: index for index, name in enumerate(names)}
    before = [[position[other] for other in graph.predecessors[name]] for name in names]
    first_reader = [n] * n
    for index in reversed(range(n)):
        for other in before[index]:
            first_reader[other] = index
    ends, starts, edges = [0] * (n + 2), [0] * (n + 2), [0] * (n + 2)
    for index in range(n):
        last_read = max(before[index], default=-1)
        _add(ends, index + 1, first_reader[index])
        _add(starts, last_read + 1, index)
        for other in before[index]:
            _add(edges, last_read + 1, first_reader[other])
    return list(accumulate(ends)), list(accumulate(starts)), list(accumulate(edges))


def _add(changes: list[int], first: int, last: int) -> None:
    if first <= last:
        changes[first] += 1
        changes[last + 1] -= 1
