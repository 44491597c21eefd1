"""DOS, the predecessor of IOS: the strategy finds the same as its recursion, run by brute force."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import combinations

from by_definition import TableCost
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper
from small_models import loaded, proto_of, weight

from iosched.models.graph import ComputationGraph
from iosched.scheduler.blocks import partition
from iosched.scheduler.pruning import NO_PRUNING, Pruning
from iosched.scheduler.search import search
from iosched.scheduler.strategies import can_merge


@st.composite
def convolutions(draw: st.DrawFn) -> ComputationGraph:
    """Convolutions, each of the model's input or of another output, and sums of two of these."""
    made, nodes, weights = ["x"], [], {}
    for index in range(draw(st.integers(1, 6))):
        name = f"y{index}"
        source = draw(st.sampled_from(made))
        if len(made) > 2 and draw(st.integers(0, 3)) == 0:
            nodes.append(helper.make_node("Add", [source, draw(st.sampled_from(made))], [name]))
        else:
            size = draw(st.sampled_from([1, 3]))
            weights[f"w{index}"] = weight(4, 4, size, size)
            nodes.append(helper.make_node("Conv", [source, f"w{index}"], [name], pads=[size // 2] * 4))
        made.append(name)
    return loaded(proto_of(nodes, {"x": (1, 4, 4, 4)}, made[1:], weights)).graph


def dos_us(graph: ComputationGraph, names: Iterable[str], stage_us: Callable[[frozenset[str]], float]) -> float:
    """DOS(S): the last stage is any set of operators that have no successor in S; DOS(S less that) comes before it."""
    cost: dict[frozenset[str], float] = {frozenset(): 0.0}

    def dos(state: frozenset[str]) -> float:
        if state not in cost:
            last = [name for name in sorted(state) if not state.intersection(graph.successors[name])]
            stages = (frozenset(some) for size in range(1, len(last) + 1) for some in combinations(last, size))
            cost[state] = min(dos(state - stage) + stage_us(stage) for stage in stages)
        return cost[state]

    return dos(frozenset(names))


@given(convolutions(), st.integers(0, 10**6), st.sampled_from([0.0, 0.8]))
def test_dos_finds_the_same_as_its_recursion_and_ios_is_never_worse(
    graph: ComputationGraph, seed: int, bound_factor: float
) -> None:
    cost = TableCost(seed, bound_factor)

    def stage_us(names: frozenset[str]) -> float:
        merged_us = cost.latency_us(names, "merge") if can_merge(graph, names) else float("inf")
        return min(merged_us, cost.latency_us(names))

    found = search(graph, cost, strategy="dos")
    predicted = found.schedule.predicted_us

    assert predicted == sum(dos_us(graph, part.operators, stage_us) for part in partition(graph))
    assert found.proven != "whole" or predicted == dos_us(graph, graph.by_name, stage_us)
    for pruning in (Pruning(3, 8), NO_PRUNING):
        assert (search(graph, cost, strategy="both", pruning=pruning).schedule.predicted_us or 0.0) <= predicted
    assert all(len(group) == 1 for stage in found.schedule.stages for group in stage.groups)
