"""Blocks: every operator once, in an order that respects all edges, under the bound, cut where the thesis cuts."""

from __future__ import annotations

from collections import Counter

import pytest
from by_definition import dags, graph_of
from calls import count_calls
from hypothesis import given
from hypothesis import strategies as st

from iosched.models.graph import ComputationGraph, Operator, TensorSpec
from iosched.scheduler import lattice as lattices
from iosched.scheduler.blocks import BlockOperators, partition


def sizes(parts: tuple[BlockOperators, ...]) -> list[int]:
    return [len(part.operators) for part in parts]


@given(dags(12), st.sampled_from([2, 3, 5, 20, 8000]))
def test_blocks_are_a_chain_of_down_sets_under_the_bound(graph: ComputationGraph, max_states: int) -> None:
    parts = partition(graph, max_states)
    done: set[str] = set()
    for part in parts:
        inside: set[str] = set()
        for name in part.operators:
            assert set(graph.predecessors[name]) <= done | inside
            inside.add(name)
        assert not inside & done
        done |= inside
        assert len(lattices.down_sets(lattices.relation(graph, part.operators))) <= max_states
    assert done == set(graph.by_name)


def test_a_block_ends_with_its_cut_vertex_and_single_operators_form_chains() -> None:
    diamond = [(2, 3), (2, 4), (3, 5), (4, 5)]
    # stem 0-1-2, a diamond that ends in 5, tail 6-7
    graph = graph_of(8, [(0, 1), (1, 2), *diamond, (5, 6), (6, 7)])

    assert [part.operators for part in partition(graph)] == [("0", "1", "2"), ("3", "4", "5"), ("6", "7")]
    assert all(part.narrow for part in partition(graph))


def test_a_way_past_an_operator_keeps_it_from_being_a_cut() -> None:
    graph = graph_of(5, [(0, 1), (1, 2), (2, 3), (0, 3), (3, 4)])

    assert [part.operators for part in partition(graph)] == [("0",), ("1", "2", "3"), ("4",)]


def test_towers_without_a_common_operator_stay_in_one_block() -> None:
    towers = graph_of(6, [(0, 1), (1, 2), (3, 4), (4, 5)])

    assert sizes(partition(towers)) == [6]


def test_an_operator_that_only_gathers_ends_the_block_before_it() -> None:
    plain = graph_of(5, [(0, 1), (0, 2), (1, 3), (2, 3), (3, 4)])
    last = plain.operators[-1]
    gathers = ComputationGraph(
        "g", plain.inputs, plain.outputs,
        (*plain.operators[:-1], Operator(last.name, "Identity", last.nodes, last.inputs, last.outputs)), (),
    )  # fmt: skip

    assert sizes(partition(plain)) == [1, 3, 1]
    assert sizes(partition(gathers)) == [1, 4]


def test_cells_with_two_inputs_are_cut_between_cells() -> None:
    """Like NASNet: every cell reads the two cells before it, so there is no cut vertex inside."""
    edges, cells = [], [0, 1]
    n = 2
    for _ in range(4):
        inner = list(range(n, n + 7))
        edges += [(cells[-1 - index % 2], operator) for index, operator in enumerate(inner)]
        edges += [(operator, n + 7) for operator in inner]
        cells.append(n + 7)
        n += 8
    graph = graph_of(n, [(0, 1), *edges])
    parts = partition(graph, 300)

    assert [part.operators[-1] for part in parts][-4:] == [str(cell) for cell in cells[2:]]
    assert all(part.narrow for part in parts)


def test_graphs_that_are_too_wide_are_split_at_cuts_that_are_not_narrow() -> None:
    wide = graph_of(31, [(index, 30) for index in range(30)])
    parts = partition(wide, 100)

    assert max(sizes(parts)) <= 7
    assert not any(part.narrow for part in parts[:-1])


def test_a_cut_between_concurrent_operators_is_not_narrow() -> None:
    """Operators without readers, and towers: few or no results cross a cut, but it costs concurrency."""
    independent = partition(graph_of(20, []), 100)
    towers = partition(graph_of(60, [(index, index + 3) for index in range(57)]), 100)

    assert len(independent) > 1
    assert len(towers) > 1
    assert not any(part.narrow for part in independent)
    assert not any(part.narrow for part in towers)


def test_a_cut_among_operators_without_readers_is_not_narrow() -> None:
    outputs = partition(graph_of(40, [(0, index) for index in range(1, 40)]), 100)

    assert len(outputs) > 1
    assert not any(part.narrow for part in outputs if len(part.operators) > 1)


def test_a_cut_in_one_of_two_towers_is_not_narrow() -> None:
    edges = [(index, index + 1) for tower in (0, 40) for index in range(tower, tower + 39)]
    towers = partition(graph_of(81, [*edges, (39, 80), (79, 80)]), 30)

    assert len(towers) > 2
    assert not towers[0].narrow
    assert not towers[1].narrow


def test_chains_are_cut_into_pieces_and_no_block_has_more_operators_than_a_mask_has_bits() -> None:
    chain = partition(graph_of(100, [(index, index + 1) for index in range(99)]))
    pair = graph_of(82, [(0, 1), *((index, index + 2) for index in range(1, 79)), (0, 2), (79, 81), (80, 81)])

    assert sizes(chain) == [32, 32, 32, 4]
    assert max(sizes(partition(pair))) <= lattices.MAX_OPERATORS


def test_an_operator_listed_early_is_placed_with_its_reader() -> None:
    """A chain whose operators each read another one too: these are listed first, and would all wait for the chain."""
    chain = [(index, index + 1) for index in range(40, 79)]
    parts = partition(graph_of(80, [*chain, *((index, index + 40) for index in range(40))]), 60)

    assert len(parts) > 2
    for part in parts:
        beside = {int(name) for name in part.operators if int(name) < 40}
        along = {int(name) - 40 for name in part.operators if int(name) >= 40}
        assert along
        assert len(beside ^ along) <= 1


@pytest.mark.parametrize("listed", ["in turns", "one after another"])
@pytest.mark.parametrize("towers", [2, 4])
def test_towers_too_long_for_one_block_are_cut_at_the_same_depths(towers: int, listed: str) -> None:
    """However they are listed: a block that had one of them alone would leave nothing to run beside it."""
    steps = 40

    def at(tower: int, step: int) -> int:
        return 1 + (step * towers + tower if listed == "in turns" else tower * steps + step)

    along = [(at(tower, step), at(tower, step + 1)) for tower in range(towers) for step in range(steps - 1)]
    ends = [pair for tower in range(towers) for pair in ((0, at(tower, 0)), (at(tower, steps - 1), towers * steps + 1))]
    parts = partition(graph_of(towers * steps + 2, sorted([*along, *ends])), 300)

    tower_of = {str(at(tower, step)): tower for tower in range(towers) for step in range(steps)}
    assert len(parts) > 2
    for part in parts[1:-1]:
        counts = Counter(tower_of[name] for name in part.operators)
        assert len(counts) == towers
        assert max(counts.values()) - min(counts.values()) <= 1


WAIST = [(0, 1), (0, 2), (0, 3), (1, 4), (2, 4), (3, 4)]


def test_an_operator_that_all_paths_meet_ends_a_block() -> None:
    """Three operators, one that reads them, and three that read that and one of the first three each."""
    past = [(4, 5), (4, 6), (4, 7), (1, 5), (2, 6), (3, 7), (5, 8), (6, 8), (7, 8)]
    parts = partition(graph_of(9, [*WAIST, *past]), 12)
    beside = partition(graph_of(9, [*WAIST[:-1], *past]), 12)

    assert [part.operators[-1] for part in parts if part.narrow][:2] == ["0", "4"]
    assert parts[1].operators == ("1", "2", "3", "4")
    assert not any("4" in part.operators and part.narrow for part in beside), "3 could run beside 4"


def test_of_equally_narrow_cuts_the_one_with_fewer_edges_is_taken() -> None:
    """Results of 5 and 6 cross either cut, but 7 and 8 read both of them twice over."""
    fan = [(0, 1), (0, 2), (1, 3), (2, 3), (1, 4), (2, 4), (3, 5), (4, 5), (3, 6), (4, 6)]
    tail = [(5, 7), (6, 8), (7, 9), (8, 9), (7, 10), (8, 10), (9, 11), (10, 11)]
    parts = partition(graph_of(12, [*fan, *tail]), 14)

    assert [part.operators[-1] for part in parts][:2] == ["0", "6"]


def chain(n: int) -> ComputationGraph:
    names = [str(index) for index in range(n)]
    operators = tuple(
        Operator(name, "Op", (name,), (names[index - 1] if index else "x",), (name,))
        for index, name in enumerate(names)
    )
    return ComputationGraph("chain", (TensorSpec("x", "float32", (1,)),), (names[-1],), operators, ())


def test_chains_take_time_in_proportion_to_their_length() -> None:
    short, long = chain(1000), chain(4000)

    assert sum(sizes(partition(long))) == 4000
    assert count_calls(lambda: partition(long)) < 4.5 * count_calls(lambda: partition(short))


def test_a_graph_without_operators_has_no_blocks() -> None:
    assert partition(ComputationGraph("empty", (TensorSpec("x", "float32", (1,)),), ("x",), (), ())) == ()
