"""Batched models compute the same as their members, for any groups."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import onnx
import pytest
from batches import assert_as_alone, batch, greedy_groups, variants
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper
from small_models import data, models, proto_of, weight
from variants import renamed, retrained, shuffled

from iosched.models.batching.operator_batch import ensemble_of, likeness_of
from iosched.models.batching.rewrite import batched
from iosched.models.composition.compose import compose
from iosched.models.composition.members import members_of, owners
from iosched.models.export import write_model
from iosched.models.load import load_model
from iosched.models.model import Model
from iosched.models.zoo.light import light_model

node = helper.make_node
keeps = st.integers(0, 2**12 - 1)


@pytest.mark.slow
@given(models(), models(), keeps, st.booleans(), st.integers(1, 2))
def test_two_random_models(a: onnx.ModelProto, b: onnx.ModelProto, keep: int, shares: bool, batch_size: int) -> None:
    batch([a, retrained(b, 1)], ["x"] if shares else (), lambda index: bool(keep >> index & 1), batch_size)


@pytest.mark.slow
@given(models(), keeps, st.booleans(), st.integers(1, 2))
def test_a_random_model_and_others_of_its_structure(
    model: onnx.ModelProto, keep: int, shares: bool, batch_size: int
) -> None:
    """Some weights are equal; names differ, as does the order of nodes where no input is shared."""
    others = [retrained(model, 1), retrained(model, 2)]
    if not shares:
        others[1] = shuffled(renamed(others[1]), 3)
    batch([model, *others], ["x"] if shares else (), lambda index: bool(keep >> index & 1), batch_size)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "batch_size", "operators"),
    [("squeezenet", 1, 38 + 26), ("squeezenet", 2, 38 + 26), ("shufflenet", 1, None), ("shufflenet", 2, None)],
)
def test_light_models_of_different_weights(name: str, batch_size: int, operators: int | None) -> None:
    """Everything is batched; the only additional nodes are Reshapes, a Concat before and a Split after."""
    found = batch([retrained(light_model(name), seed) for seed in range(3)], batch_size=batch_size)
    once = {node.op_type for node in light_model(name).graph.node} - {"Concat", "Gemm", "MatMul", "Reshape"}
    one = load_model(data(light_model(name)))
    for op_type in once - {"Dropout", "Constant", "Softmax", "Transpose"}:
        assert found.types[op_type] == [node.op_type for node in one.proto.graph.node].count(op_type), op_type
    assert found.types["Split"] == 1
    assert operators is None or len(found.model.graph.operators) == operators


@pytest.mark.slow
def test_different_networks_share_equal_parts() -> None:
    found = batch([light_model("squeezenet"), retrained(light_model("squeezenet"), 5), light_model("shufflenet")])
    assert found.types["Split"] < 10


def test_heads_on_a_frozen_backbone() -> None:
    nodes = [
        node("Conv", ["x", "w"], ["c"]), node("Relu", ["c"], ["r"]), node("GlobalAveragePool", ["r"], ["p"]),
        node("Flatten", ["p"], ["f"]), node("Gemm", ["f", "v"], ["g"]), node("Relu", ["g"], ["h"]),
        node("Gemm", ["h", "u"], ["y"]),
    ]  # fmt: skip
    found = batch(
        variants(
            nodes, {"x": [2, 3, 8, 8]}, ["y"],
            lambda seed: {"w": weight(4, 3, 3, 3), "v": weight(4, 6, seed=seed), "u": weight(6, 5, seed=seed)}, 16,
        ),
        ["x"],
    )  # fmt: skip
    assert (found.types["Conv"], found.types["Gemm"], found.types["MatMul"], found.types["Split"]) == (1, 1, 1, 1)
    assert found.types["Concat"] == 0


def three_chains() -> dict[str, Model]:
    """Two convolutions each, with the Relu "b" after the first; "y" is the output."""
    nodes = [node("Conv", ["x", "w"], ["a"]), node("Relu", ["a"], ["b"]), node("Conv", ["b", "v"], ["y"])]
    protos = variants(
        nodes,
        {"x": [1, 4, 6, 6]},
        ["y"],
        lambda seed: {"w": weight(4, 4, 3, 3, seed=seed), "v": weight(4, 4, 1, 1, seed=seed)},
    )
    return {f"m{index}": load_model(data(proto)) for index, proto in enumerate(protos)}


def test_a_later_group_may_have_fewer_members() -> None:
    """The second group has two of the three members of the first."""
    members = three_chains()
    whole = compose(members)
    for group in combinations(("m0/y", "m1/y", "m2/y"), 2):
        model = batched(whole.model, [("m0/b", "m1/b", "m2/b"), group])
        assert_as_alone(model, whole.members, members)


def test_operators_between_batched_ones_belong_to_one_member() -> None:
    """Although all outputs depend on the batched operators after them; also in the written file."""
    whole = compose(three_chains())
    model = batched(whole.model, [("m0/y", "m1/y"), ("m1/b", "m2/b")])
    again = load_model(write_model(model.proto, model.weights, None))
    for each in (model, again):
        owned = owners(each, whole.members)
        found = {name: owned[name] for name in ("m0/b", "m0/y", "m1/b", "m2/y")}
        assert found == {"m0/b": 0b001, "m0/y": 0b011, "m1/b": 0b110, "m2/y": 0b100}
        assert sorted(owned.values()) == [0b001, 0b011, 0b011, 0b011, 0b100, 0b110, 0b110, 0b110]


def test_a_result_that_only_one_member_returns_is_split() -> None:
    nodes = [node("Conv", ["x", "w"], ["a"]), node("Conv", ["a", "v"], ["y"])]
    weights = [{"w": weight(4, 4, 3, 3, seed=seed), "v": weight(4, 4, 1, 1, seed=seed)} for seed in range(3)]
    inputs = {"x": [1, 4, 6, 6]}
    protos = [proto_of(nodes, inputs, ["y", "a"] if own == 1 else ["y"], each) for own, each in enumerate(weights)]
    assert batch(protos).types == {"Concat": 1, "Conv": 2, "Split": 2}


def test_the_written_file_is_the_same_model_and_knows_its_members() -> None:
    found = batch([retrained(light_model("squeezenet"), seed) for seed in range(2)])
    again = load_model(write_model(found.model.proto, found.model.weights, None), name=found.model.name)
    assert again.digest == found.model.digest
    assert members_of(again.proto) == found.whole.members


def test_invalid_groups_are_refused() -> None:
    one = [node("Relu", ["x"], ["a"]), node("Neg", ["a"], ["y"])]
    other = [node("Neg", ["x"], ["a"]), node("Relu", ["a"], ["y"])]
    protos = [
        *variants(one, {"x": [2, 3]}, ["y"], lambda _: {}, 1),
        *variants(other, {"x": [2, 3]}, ["y"], lambda _: {}, 1),
    ]
    whole = compose({f"m{index}": load_model(data(proto)) for index, proto in enumerate(protos)})
    with pytest.raises(ValueError, match="groups depend on each other"):
        batched(whole.model, [("m0/a", "m1/y"), ("m0/y", "m1/a")])
    with pytest.raises(ValueError, match="in only one group"):
        batched(whole.model, [("m0/a", "m1/y"), ("m0/a", "m1/a")])
    with pytest.raises(ValueError, match="differ in type"):
        batched(whole.model, [("m0/a", "m1/a")])


def test_input_shapes_are_part_of_the_likeness() -> None:
    nodes = [node("Conv", ["x", "w"], ["y"])]
    small, large = (
        variants(nodes, {"x": [1, 4, size, size]}, ["y"], lambda seed: {"w": weight(4, 4, 3, 3, seed=seed)}, 1)[0]
        for size in (5, 6)
    )
    whole = compose({"a": load_model(data(small)), "b": load_model(data(large))})
    assert greedy_groups(whole) == ()


def test_operators_of_different_files_have_comparable_keys() -> None:
    one, other = (load_model(data(retrained(light_model("squeezenet"), seed))) for seed in range(2))
    keys = [[likeness_of(model)[each.name].key for each in model.structure.operators] for model in (one, other)]
    whole = compose({"a": one, "b": other})
    together = {each.key for each in likeness_of(whole.model).values()}
    assert keys[0] == keys[1]
    assert together == set(keys[0])


def test_defining_constants_are_part_of_the_likeness() -> None:
    """The bounds of a Clip must be equal; they are part of its form."""
    nodes = [node("Clip", ["x", "low"], ["y"])]
    protos = [
        variants(nodes, {"x": [2, 3]}, ["y"], lambda _, bound=bound: {"low": np.float32(bound)}, 1)[0]
        for bound in (0.0, 0.0, 0.5)
    ]
    whole = compose({f"m{index}": load_model(data(proto)) for index, proto in enumerate(protos)})
    assert greedy_groups(whole) == (("m0/y", "m1/y"),)
    assert not any(likeness.spreads for likeness in ensemble_of(whole).likeness.values())
