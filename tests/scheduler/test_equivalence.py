"""Equal stages and blocks: the same classes as by signatures, whatever the names of operators."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest
from by_definition import dags, graph_of
from hypothesis import given
from hypothesis import strategies as st

from iosched.models.graph import ComputationGraph, Operator, TensorSpec
from iosched.scheduler import lattice as lattices
from iosched.scheduler.equivalence import block_key, group_numbers, stage_classes
from iosched.scheduler.pruning import NO_PRUNING, Pruning
from iosched.scheduler.schedule import Stage, Strategy
from iosched.scheduler.signature import group_form, stage_signature


@given(dags(7), st.integers(1, 3))
def test_stages_have_the_same_class_if_and_only_if_signatures_are_equal(graph: ComputationGraph, kinds: int) -> None:
    names = [operator.name for operator in graph.operators]
    labels = {name: str(int(name) % kinds) for name in names}
    lattice = lattices.build(lattices.relation(graph, names), Pruning())
    classes = stage_classes(graph, names, lattice, labels).tolist()
    signatures = [
        stage_signature(graph, concurrent(lattice.order.groups(mask), names), lambda operator: labels[operator.name])
        for mask in lattice.stages.tolist()
    ]

    assert len(set(zip(classes, signatures, strict=True))) == len(set(classes)) == len(set(signatures))


def concurrent(groups: tuple[int, ...], names: list[str]) -> Stage:
    named = tuple(tuple(names[index] for index in lattices.bits(group)) for group in groups)
    return Stage(Strategy.CONCURRENT, named)


TWICE = graph_of(7, [(0, 1), (0, 2), (3, 4), (3, 5)])  # 6 stands alone, and is the output


def test_blocks_are_equal_if_labels_edges_and_shared_results_agree() -> None:
    alike = dict.fromkeys(TWICE.by_name, "a")

    assert block_key(TWICE, "012", alike) == block_key(TWICE, "345", alike)
    assert block_key(TWICE, "012", alike) != block_key(TWICE, "345", {**alike, "4": "b"})
    assert block_key(TWICE, "01", alike) != block_key(TWICE, "12", alike)


def test_blocks_differ_by_the_results_read_outside() -> None:
    graph = graph_of(6, [(0, 1), (0, 2), (3, 4), (3, 5)])
    alike = dict.fromkeys(graph.by_name, "a")

    assert graph.outputs == ("5",)
    assert block_key(graph, "02", alike) != block_key(graph, "35", alike)
    assert block_key(graph, "01", alike) != block_key(graph, "012", alike)[:2]


def test_blocks_differ_in_which_operators_read_one_value() -> None:
    graph = graph_of(7, [(0, 2), (0, 3), (0, 4), (1, 5)])
    alike = dict.fromkeys(graph.by_name, "a")

    assert block_key(graph, "23", alike) != block_key(graph, "45", alike)


def same_partition(one: Sequence[object], two: Sequence[object]) -> bool:
    return len(set(zip(one, two, strict=True))) == len(set(one)) == len(set(two))


def forms(graph: ComputationGraph, names: Sequence[str], kinds: int) -> tuple[list[int], list[str]]:
    """Every group of every stage: its number, and its canonical form."""
    labels = {name: str(int(name) % kinds) for name in names}
    lattice = lattices.build(lattices.relation(graph, names), NO_PRUNING)
    masks = np.unique(np.concatenate([groups for _, groups in lattices.components(lattice.stages, lattice.order)]))
    exact = [
        group_form(graph, tuple(names[index] for index in lattices.bits(mask)), lambda operator: labels[operator.name])
        for mask in masks.tolist()
    ]
    return group_numbers(graph, names, labels, masks).tolist(), exact


@given(dags(8), st.integers(1, 3))
def test_numbers_are_equal_where_canonical_forms_are(graph: ComputationGraph, kinds: int) -> None:
    assert same_partition(*forms(graph, [operator.name for operator in graph.operators], kinds))


@given(dags(8), st.integers(1, 2))
def test_numbers_depend_on_the_results_read_outside(graph: ComputationGraph, kinds: int) -> None:
    """A block of the first operators only: the others read from it."""
    assert same_partition(*forms(graph, [operator.name for operator in graph.operators][:5], kinds))


@pytest.mark.parametrize("n", [3, 9])
def test_operators_that_are_images_of_each_other_get_one_number_in_any_choice(n: int) -> None:
    """A star has n! orders of its leaves; each choice of k leaves is like every other."""
    graph = graph_of(n + 1, [(0, leaf) for leaf in range(1, n + 1)])
    names = [operator.name for operator in graph.operators]
    masks = np.array([1 | (chosen << 1) for chosen in range(1, 2**n)], dtype=np.uint64)
    # Of the leaves, only the last one is handed on: as the graph's output.
    found = group_numbers(graph, names, dict.fromkeys(names, "Op"), masks).tolist()

    assert same_partition(found, [(mask.bit_count(), mask >> n) for mask in masks.tolist()])


def crossing(number: int, order: Sequence[str]) -> list[Operator]:
    """An operator of two outputs, a reader of each, and one that reads both readers, in `order`."""
    named = {name: f"{name}{number}" for name in "stabc"}
    return [
        Operator(named["s"], "Split", (named["s"],), ("x",), (named["s"], named["t"])),
        Operator(named["a"], "Op", (named["a"],), (named["s"],), (named["a"],)),
        Operator(named["b"], "Op", (named["b"],), (named["t"],), (named["b"],)),
        Operator(named["c"], "Sub", (named["c"],), tuple(named[name] for name in order), (named["c"],)),
    ]


def test_the_order_of_inputs_and_outputs_counts() -> None:
    copies = [crossing(number, order) for number, order in enumerate(["ab", "ba", "ab"])]
    operators = tuple(operator for copy in copies for operator in copy)
    graph = ComputationGraph("copies", (TensorSpec("x", "float32", (1,)),), ("c0", "c1", "c2"), operators, ())
    names = [operator.name for operator in operators]
    labels = {operator.name: operator.type for operator in operators}
    groups = np.array([0xF, 0xF0, 0xF00], dtype=np.uint64)
    one, crossed, same = group_numbers(graph, names, labels, groups).tolist()

    assert one == same != crossed


@pytest.mark.slow
def test_many_groups_can_be_numbered() -> None:
    rng = random.Random(0)
    edges = sorted({(rng.randrange(after), after) for after in range(1, 20) for _ in range(2)})
    graph = graph_of(20, edges)
    names = [operator.name for operator in graph.operators]
    masks = np.arange(1, 2**17, dtype=np.uint64)

    assert len(group_numbers(graph, names, dict.fromkeys(names, "Op"), masks)) == len(masks)
