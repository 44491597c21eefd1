"""Stages and blocks that are alike: the same classes as signatures make, however operators are named."""

from __future__ import annotations

from by_definition import dags, graph_of
from hypothesis import given
from hypothesis import strategies as st

from iosched.models.graph import ComputationGraph
from iosched.scheduler import lattice as lattices
from iosched.scheduler.equivalence import block_key, stage_classes
from iosched.scheduler.pruning import Pruning
from iosched.scheduler.schedule import Stage, Strategy
from iosched.scheduler.signature import stage_signature


@given(dags(7), st.integers(1, 3))
def test_stages_of_one_class_are_those_of_one_signature(graph: ComputationGraph, kinds: int) -> None:
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


def test_blocks_are_alike_where_labels_edges_and_what_is_shared_agree() -> None:
    alike = dict.fromkeys(TWICE.by_name, "a")

    assert block_key(TWICE, "012", alike) == block_key(TWICE, "345", alike)
    assert block_key(TWICE, "012", alike) != block_key(TWICE, "345", {**alike, "4": "b"})
    assert block_key(TWICE, "01", alike) != block_key(TWICE, "12", alike)


def test_blocks_differ_in_what_they_hand_on() -> None:
    graph = graph_of(6, [(0, 1), (0, 2), (3, 4), (3, 5)])
    alike = dict.fromkeys(graph.by_name, "a")

    assert graph.outputs == ("5",)
    assert block_key(graph, "02", alike) != block_key(graph, "35", alike)
    assert block_key(graph, "01", alike) != block_key(graph, "012", alike)[:2]


def test_blocks_differ_in_which_operators_read_one_value() -> None:
    graph = graph_of(7, [(0, 2), (0, 3), (0, 4), (1, 5)])
    alike = dict.fromkeys(graph.by_name, "a")

    assert block_key(graph, "23", alike) != block_key(graph, "45", alike)
