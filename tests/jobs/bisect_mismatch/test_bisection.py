"""The search for the first operator that differs: what it names differs, and nothing that it reads does."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import ceil, log2

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iosched.jobs.bisect_mismatch.bisect import find_differing
from iosched.models.graph import ComputationGraph, Operator


def graph_of(reads: Sequence[Collection[int]]) -> ComputationGraph:
    """Operators "0", "1", ... of which each reads earlier ones."""
    operators = tuple(
        Operator(str(number), "Relu", (str(number),), tuple(map(str, sorted(before))), (str(number),))
        for number, before in enumerate(reads)
    )
    read = {name for operator in operators for name in operator.inputs}
    outputs = tuple(operator.name for operator in operators if operator.name not in read)
    return ComputationGraph("g", (), outputs, operators, ())


class Looker:
    """Looks at operators of which it is known which differ."""

    def __init__(self, differing: Collection[str], dark: Collection[str] = ()) -> None:
        self.differing, self.dark, self.cuts = differing, dark, list[Sequence[str]]()

    def __call__(self, operators: Sequence[str]) -> Mapping[str, bool]:
        self.cuts.append(operators)
        return {name: name not in self.differing for name in operators if name not in self.dark}


graphs = st.integers(1, 12).flatmap(
    lambda n: st.tuples(*(st.sets(st.integers(0, max(i - 1, 0)), max_size=min(i, 3)) for i in range(n)))
).map(graph_of)  # fmt: skip


def spread(graph: ComputationGraph, faulty: str, dies: Collection[str]) -> set[str]:
    """What differs if one operator is wrong, and differences die out in some others."""
    wrong = {faulty}
    for operator in graph.operators:
        if operator.name not in dies and wrong.intersection(operator.inputs):
            wrong.add(operator.name)
    return wrong


def searched(graph: ComputationGraph, looker: Looker, **more: int):
    order = [operator.name for operator in graph.operators]
    wrong = [name for name in graph.outputs if name in looker.differing]
    return find_differing(graph, order, wrong, set(graph.outputs) - set(wrong), looker, **more)


@given(graphs, st.data())
def test_one_wrong_operator_is_named_though_its_difference_dies_out_on_some_ways(graph, data) -> None:
    names = [operator.name for operator in graph.operators]
    faulty = data.draw(st.sampled_from(names))
    looker = Looker(spread(graph, faulty, data.draw(st.sets(st.sampled_from(names)))))
    if not looker.differing.intersection(graph.outputs):
        return
    found = searched(graph, looker)
    assert (found.operator, found.unseen, found.is_complete) == (faulty, (), True)


@given(graphs, st.data())
def test_of_several_wrong_ones_one_is_named_that_reads_nothing_wrong(graph, data) -> None:
    names = [operator.name for operator in graph.operators]
    differing = data.draw(st.sets(st.sampled_from(names), min_size=1))
    if not differing.intersection(graph.outputs):
        return
    found = searched(graph, Looker(differing))
    assert found.operator in differing
    assert differing.isdisjoint(graph.predecessors[found.operator])


@given(graphs, st.data())
def test_what_cannot_be_looked_at_is_named_beside_it(graph, data) -> None:
    names = [operator.name for operator in graph.operators]
    faulty, dark = data.draw(st.sampled_from(names)), data.draw(st.sets(st.sampled_from(names)))
    looker = Looker(spread(graph, faulty, ()), dark)
    found = searched(graph, looker)
    assert faulty in (found.operator, *found.unseen)
    assert dark.issuperset(found.unseen)
    assert found.is_complete


@pytest.mark.parametrize("faulty", [0, 1, 500, 998, 999])
def test_a_chain_of_a_thousand_takes_ten_looks_at_one_tensor(faulty: int) -> None:
    graph = graph_of([{number - 1} if number else set() for number in range(1000)])
    looker = Looker(spread(graph, str(faulty), ()))
    assert searched(graph, looker).operator == str(faulty)
    assert len(looker.cuts) <= ceil(log2(1000)) + 1
    assert all(len(cut) == 1 for cut in looker.cuts)


def test_the_search_ends_where_it_was_told_to_and_says_what_was_left() -> None:
    graph = graph_of([{number - 1} if number else set() for number in range(100)])
    found = searched(graph, Looker(spread(graph, "3", ())), most_looks=2)
    assert (found.operator, found.is_complete, found.looks) == ("24", False, 2)
    assert found.unseen == tuple(map(str, range(24)))
