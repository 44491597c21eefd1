"""What is proven of a schedule, and where it is enough to prove it block by block.

A schedule is *optimal* if no legal schedule of the whole graph, under the same pruning, takes less under the same cost.
The search proves that each block's schedule is the best of that block. Both are the same where no schedule gains by a
stage that reaches across a cut between two blocks:

    Say that every operator before a cut leads to every operator after it (`loses_nothing`), as behind an operator that
    all before it lead to and all after it depend on. No stage before the one that reaches across holds operators from
    behind the cut, and none after it holds operators from before it, so there is at most one such stage. It is an
    interval of the order: with two operators it has all that lie on paths between them. Each of its operators from
    before the cut leads to each one from behind it along such a path, so all of them are weakly connected: the stage is
    one group. Nor do its operators run as one, since of operators that do, none depends on another. Now let a stage of
    one group take at least as long as its operators one after another in stages of their own (`AdditiveGroups`). Then
    replacing it by those takes no longer, is legal under every pruning, and keeps the cut.

    Where stages hold no two operators that depend on each other, because r is 1 or the operators of every stage run as
    one, no stage reaches across such a cut at all, and nothing is asked of the cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from iosched.models.graph import ComputationGraph
from iosched.scheduler.cost import AdditiveGroups, CostModel
from iosched.scheduler.pruning import Pruning
from iosched.scheduler.schedule import Scope, Strategy
from iosched.scheduler.strategies import STAGES


def proof_text(proven: Scope | None, under: str = "", *, measured: bool = False) -> str:
    """What is proven, in the words that every command uses.

    Args:
        proven: what the schedule is proven to be the best of.
        under: what latencies that is said under, if that is said too.
        measured: whether latencies are measured. The best by them is all that can be said then: measured once more,
            they are others, and another schedule may be the best.
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
    """How near the schedule that a search found is to the best, in the same words.

    Args:
        gap: how much less the best schedule may take, as a share of the latency found; None where nothing was searched.
        of: what the gap is about: the best schedule of the whole graph, or the best of each block.
        under: what latencies it is said under, where the gap is 0.
        measured: whether latencies are measured. Their bounds are guesses, since what runs together shares caches, and
            latencies are noisy: what the gap is then is where the search ended, and no promise.
        predicted: the gap that predictions of stages leave, where these ended the search.
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
    """What the best schedules of all `blocks` are together the best schedule of; see above.

    Args:
        graph: the graph that was cut.
        blocks: the operators of each, in topological order; the first k blocks together are a down-set, for every k.
        cost: what schedules are compared by.
        strategies: how stages of several operators may run.
        pruning: the limits on groups.
    """
    if len(blocks) < 2:
        return "whole"
    dependent = {strategy for strategy in strategies if not STAGES[strategy].is_one_operator and pruning.r != 1}
    additive = isinstance(cost, AdditiveGroups) and cost.groups_are_additive
    bounded = not dependent or (dependent == {Strategy.CONCURRENT} and additive)
    return "whole" if bounded and loses_nothing(graph, blocks) else "blocks"


def loses_nothing(graph: ComputationGraph, blocks: Sequence[Sequence[str]]) -> bool:
    """Whether at each cut between blocks every operator before it leads to every one after it.

    That is so if all that nobody before the cut reads are read by all that read nobody after it: a path between two
    such operators has none in between. Time O(operators + edges).
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
    """One more from `first` to `last`, in a list of changes; nothing if `first` is behind `last`."""
    if first <= last:
        changes[first] += 1
        changes[last + 1] -= 1
