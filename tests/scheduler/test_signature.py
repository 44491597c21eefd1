"""Equal stages get one signature, whatever their names; anything that changes the latency changes it."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import combinations

import pytest
from by_definition import dags, graph_of, groups_of
from hypothesis import given
from hypothesis import strategies as st

from iosched.models.graph import ComputationGraph, Operator, TensorSpec
from iosched.scheduler.schedule import Division, Stage, Strategy
from iosched.scheduler.signature import Signatures, stage_signature

LABELS = "ab"
Lanes = tuple[tuple[int, ...], ...]


def whole(graph: ComputationGraph, names: list[str]) -> Stage:
    return Stage(Strategy.CONCURRENT, (tuple(names),))


@given(dags(6), st.integers(0, 10**6))
def test_renaming_and_reordering_keep_the_signature(graph: ComputationGraph, seed: int) -> None:
    names = [operator.name for operator in graph.operators]
    new_name = dict(
        zip(names, random.Random(seed).sample([f"n{index}" for index in range(20)], len(names)), strict=True)
    )
    renamed = [
        replace(
            op,
            name=new_name[op.name],
            inputs=tuple(new_name.get(i, i) for i in op.inputs),
            outputs=(new_name[op.name],),
        )
        for op in graph.operators
    ]
    kind = {operator.name: LABELS[int(operator.name) % 2] for operator in graph.operators}
    kind |= {new_name[name]: label for name, label in kind.items()}
    other = ComputationGraph("other", graph.inputs, (new_name[graph.outputs[0]],), tuple(reordered(renamed, seed)), ())

    ours = stage_signature(graph, whole(graph, names), lambda operator: kind[operator.name])
    order = [operator.name for operator in other.operators]
    assert stage_signature(other, whole(other, order), lambda operator: kind[operator.name]) == ours


def reordered(operators: list[Operator], seed: int) -> list[Operator]:
    """A random topological order."""
    dice, left, done = random.Random(seed), list(operators), {"x"}
    found = []
    while left:
        chosen = dice.choice([operator for operator in left if done.issuperset(operator.inputs)])
        left.remove(chosen)
        done.add(chosen.name)
        found.append(chosen)
    return found


def pair(**changes: object) -> tuple[ComputationGraph, Stage]:
    """Two convolutions side by side; `changes` go to the second one."""
    given = {"type": "Conv", "attributes": (("strides", (1, 1)),), "inputs": ("x",), **changes}
    shape = given.pop("shape", (1, 8, 4, 4))
    operators = (
        Operator("a", "Conv", ("a",), ("x",), ("a",), (("strides", (1, 1)),)),
        Operator("b", given["type"], ("b",), given["inputs"], ("b",), given["attributes"]),
    )
    tensors = (TensorSpec("a", "float32", (1, 8, 4, 4)), TensorSpec("b", "float32", shape))
    inputs = (TensorSpec("x", "float32", (1, 8, 4, 4)), TensorSpec("y", "float32", (1, 8, 4, 4)))
    graph = ComputationGraph("g", inputs, ("a", "b"), operators, tensors)
    return graph, Stage(Strategy.CONCURRENT, (("a", "b"),) if given["inputs"] == ("a",) else (("a",), ("b",)))


@pytest.mark.parametrize(
    "changes",
    [
        {"type": "MaxPool"},
        {"attributes": (("strides", (2, 2)),)},
        {"shape": (1, 16, 4, 4)},
        {"inputs": ("a",)},
        {"inputs": ("y",)},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_changes_that_affect_the_latency_change_the_signature(changes: dict[str, object]) -> None:
    assert stage_signature(*pair(**changes)) != stage_signature(*pair())


def test_the_signature_depends_on_the_strategy_but_not_on_the_order_of_groups() -> None:
    graph, stage = pair()
    assert stage_signature(graph, replace(stage, strategy=Strategy.MERGE)) != stage_signature(graph, stage)
    assert stage_signature(graph, replace(stage, groups=(("b",), ("a",)))) == stage_signature(graph, stage)


def test_the_signature_of_lanes_depends_on_their_order_and_dependencies() -> None:
    """1 and 2 read 0, and 3 reads 2."""
    graph = graph_of(4, [(0, 1), (0, 2), (2, 3)])

    def signature(*groups: tuple[str, ...]) -> str:
        return stage_signature(graph, Stage(Strategy.LANES, groups))

    found = {
        signature(("0", "1"), ("2", "3")),
        signature(("0", "2"), ("1", "3")),
        signature(("0", "2", "1"), ("3",)),
        signature(("0", "1", "2"), ("3",)),
    }
    assert len(found) == 4
    assert signature(("0",), ("1",)) == signature(("0",), ("1",)) != stage_signature(graph, whole(graph, ["0", "1"]))


def test_equal_stages_have_equal_signatures() -> None:
    graph, stage = pair()
    assert stage_signature(graph, stage) == stage_signature(*pair())
    assert len(stage_signature(graph, stage)) == 64


@given(dags(7), st.integers(1, 3))
def test_signatures_do_not_depend_on_earlier_stages(graph: ComputationGraph, kinds: int) -> None:
    """Groups seen in other stages, alone or next to others, change nothing."""
    names = [operator.name for operator in graph.operators]

    def label(operator: Operator) -> str:
        return str(int(operator.name) % kinds)

    together = Signatures(graph, label)
    for size in range(1, len(names) + 1):
        for chosen in combinations(names, size):
            groups = (sorted(group, key=int) for group in groups_of(graph, frozenset(chosen)))
            stage = Stage(Strategy.CONCURRENT, tuple(map(tuple, groups)))
            assert together.of(stage) == stage_signature(graph, stage, label)


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        (((0,), (1, 2)), ((2,), (0, 1)), True),
        (((0,), (1, 2)), ((0, 1), (2,)), False),
        (((0,), (1,)), ((0,), (0,)), False),
        (((0,), (0, 1)), ((1,), (0, 1)), True),
        (((0,), (1, 2)), ((0,), (0, 1)), False),
    ],
)
def test_divisions_that_differ_only_by_lane_numbers_have_one_text(one: Lanes, other: Lanes, alike: bool) -> None:
    """The operators are unlike, so it matters which of them has more lanes."""
    known = Signatures(graph_of(2, []), lambda operator: operator.name)
    texts = []
    for groups in (one, other):
        stage = Stage(Strategy.CONCURRENT, (("0",), ("1",)), division=Division(3, groups))
        turned = Stage(Strategy.CONCURRENT, stage.groups[::-1], division=Division(3, groups[::-1]))
        assert known.of_division(stage) == known.of_division(turned)
        assert known.of_division(replace(stage, division=Division(4, groups))) != known.of_division(stage)
        texts.append(known.of_division(stage))
    assert (texts[0] == texts[1]) is alike
    assert known.of_division(replace(stage, division=None)) == ""
