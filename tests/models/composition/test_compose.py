"""A composed model computes the same as its members, and shared parts once."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import pytest
from batches import assert_as_alone
from hypothesis import given
from hypothesis import strategies as st
from networks import zoo_file
from onnx import TensorProto, helper
from small_models import data, models, proto_of, weight
from variants import renamed, retrained

from iosched.models.composition.compose import Composition, compose
from iosched.models.composition.members import dependent_members, members_of, owners
from iosched.models.composition.values import is_random
from iosched.models.errors import InvalidModelError, UsageError
from iosched.models.export import write_model
from iosched.models.load import assembled_model, load_model
from iosched.models.model import Model
from iosched.models.zoo.light import light_model

node = helper.make_node


def loaded(protos: Mapping[str, onnx.ModelProto]) -> dict[str, Model]:
    return {name: load_model(data(proto), name=name) for name, proto in protos.items()}


def composed(protos: Mapping[str, onnx.ModelProto], shared: tuple[str, ...] = ()) -> Composition:
    """The composition, after it was compared with its members."""
    members = loaded(protos)
    found = compose(members, shared)
    assert_as_alone(found.model, found.members, members)
    return found


def backbone(head: int, *, channels: int = 4) -> onnx.ModelProto:
    """Two convolutions that all such models share, and a head with separate weights."""
    nodes = [
        node("Conv", ["x", "w0"], ["c0"], pads=[1] * 4),
        node("Relu", ["c0"], ["r0"]),
        node("Conv", ["r0", "w1"], ["c1"], pads=[1] * 4),
        node("Conv", ["c1", "wh"], ["h"]),
        node("Relu", ["h"], ["y"]),
    ]
    weights = {"w0": weight(4, 4, 3, 3), "w1": weight(4, 4, 3, 3, seed=1), "wh": weight(channels, 4, 1, 1, seed=head)}
    return proto_of(nodes, {"x": [1, 4, 6, 6]}, ["y"], weights)


@given(models(), models(), st.booleans())
def test_random_models_compute_the_same_together(a: onnx.ModelProto, b: onnx.ModelProto, shares: bool) -> None:
    found = composed({"a": a, "b": b}, ("x",) if shares else ())
    assert owners(found.model, found.members) == dependent_members(found.model.graph, found.members)
    again = assembled_model("batch", onnx.ModelProto.FromString(data(found.model.proto)), dict(found.model.weights))
    assert (found.model.digest, found.model.graph) == (again.digest, again.graph)
    assert (found.model.structure, found.model.bindings) == (again.structure, again.bindings)
    alone = sum(len(load_model(data(proto)).proto.graph.node) for proto in (a, b))
    copies = sum(each.op_type == "Identity" for each in found.model.proto.graph.node)
    assert len(found.model.proto.graph.node) - copies <= alone - found.shared


@pytest.mark.slow
@pytest.mark.parametrize("pair", [("squeezenet", "shufflenet"), ("densenet121", "squeezenet")])
def test_light_models_compute_the_same_together(pair: tuple[str, str]) -> None:
    composed({name: light_model(name) for name in pair})


def test_networks_with_external_weights_compute_the_same_together() -> None:
    path = zoo_file("squeezenet")
    members = {"a": load_model(path), "b": load_model(path, batch_size=2), "c": load_model(path)}
    found = compose(members)
    assert_as_alone(found.model, found.members, members)
    assert found.weights.together_nbytes * 3 == found.weights.alone_nbytes
    assert found.shared == 0


def test_a_frozen_backbone_is_computed_once_where_its_input_is_shared() -> None:
    found = composed({name: backbone(seed) for seed, name in enumerate("abc", start=2)}, ("x",))
    types = [operator.type for operator in found.model.graph.operators]
    assert types.count("Conv") == 2 + 3
    assert found.shared == 2 * 3
    assert [spec.name for spec in found.model.graph.inputs] == ["x"]
    assert found.model.graph.outputs == ("a/y", "b/y", "c/y")


def test_a_backbone_with_separate_inputs_shares_only_its_weights() -> None:
    found = composed({name: backbone(seed) for seed, name in enumerate("ab", start=2)})
    assert found.shared == 0
    head, shared = 4 * 4 * 4, 2 * 4 * 4 * 9 * 4
    assert found.weights.alone_nbytes == 2 * (shared + head)
    assert found.weights.together_nbytes == shared + 2 * head


def test_operators_belong_to_the_models_whose_outputs_need_them() -> None:
    found = composed({name: backbone(seed) for seed, name in enumerate("ab", start=2)}, ("x",))
    owned = owners(found.model, found.members)
    assert [owned[operator.name] for operator in found.model.graph.operators] == [0b11, 0b11, 0b01, 0b10]


def test_one_model_twice_has_all_outputs_under_both_names() -> None:
    again = renamed(backbone(2))
    again.graph.input[0].name = again.graph.node[0].input[0] = "x"
    found = composed({"a": backbone(2), "b": again}, ("x",))
    assert found.model.graph.outputs == ("a/y", f"b/{again.graph.output[0].name}")
    assert [each.op_type for each in found.model.proto.graph.node].count("Conv") == 3


def test_random_operators_are_never_shared() -> None:
    nodes = [node("RandomNormalLike", ["x"], ["n"]), node("Add", ["x", "n"], ["y"])]
    proto = proto_of(nodes, {"x": [2, 3]}, ["y"], {})
    found = compose(loaded({"a": proto, "b": proto}), ("x",))
    assert [each.op_type for each in found.model.proto.graph.node].count("RandomNormalLike") == 2
    assert found.shared == 0


def test_a_dropout_is_random_only_in_training_mode() -> None:
    """Exporters leave it in models that do not train, whose outputs are compared all the same."""
    assert not is_random(node("Dropout", ["x"], ["y", "mask"]))
    assert not is_random(node("Dropout", ["x", "ratio", ""], ["y"]))
    assert is_random(node("Dropout", ["x", "ratio", "training"], ["y"]))
    assert is_random(node("BiasDropout", ["x"], ["y"], domain="com.microsoft"))


def test_graphs_inside_nodes_keep_their_meaning() -> None:
    then = helper.make_graph([node("Mul", ["h", "two"], ["t"])], "then", [], [_value("t")])
    other = helper.make_graph([node("Neg", ["h"], ["e"])], "else", [], [_value("e")])
    nodes = [
        node("Relu", ["x"], ["h"]),
        node("ReduceSum", ["h"], ["s"], keepdims=0),
        node("Greater", ["s", "limit"], ["c"]),
        node("If", ["c"], ["y"], then_branch=then, else_branch=other),
    ]

    def proto(limit: float) -> onnx.ModelProto:
        constants = {"two": np.full(1, 2, np.float32), "limit": np.array(limit, np.float32)}
        return proto_of(nodes, {"x": [2, 3]}, ["y"], constants)

    found = composed({"a": proto(0.0), "b": proto(99.0), "c": proto(0.0)}, ("x",))
    assert [each.op_type for each in found.model.proto.graph.node].count("If") == 2


def _value(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3])


def test_splits_into_different_numbers_of_parts_are_not_shared() -> None:
    def proto(parts: int) -> onnx.ModelProto:
        outputs = [f"y{index}" for index in range(parts)]
        return proto_of([node("Split", ["x"], outputs, axis=1)], {"x": [1, 6, 2]}, outputs, opset=13)

    for first, second in ((2, 3), (3, 2)):
        assert composed({"a": proto(first), "b": proto(second)}, ("x",)).shared == 0


def test_names_that_clash_and_several_inputs_and_outputs() -> None:
    def proto(seed: int) -> onnx.ModelProto:
        nodes = [
            node("Conv", ["x", "w"], ["a/x"], pads=[1] * 4),
            node("Add", ["a/x", "z"], ["b/y"]),
            node("Relu", ["a/x"], ["y"]),
        ]
        shape, weights = [1, 4, 5, 5], {"w": weight(4, 4, 3, 3, seed=seed)}
        return proto_of(nodes, {"x": shape, "z": shape}, ["b/y", "y"], weights)

    found = composed({"a": proto(1), "b": proto(2), "a.b": proto(1)}, ("z",))
    assert [spec.name for spec in found.model.graph.inputs] == ["a/x", "z", "b/x", "a.b/x"]
    assert found.model.graph.outputs[:2] == ("a/b/y", "a/y")


def test_dynamic_shapes_are_bound_as_in_the_members() -> None:
    proto = proto_of([node("Relu", ["x"], ["y"])], {"x": ["n", 3]}, ["y"])
    members = {"a": load_model(data(proto), batch_size=2), "b": load_model(data(proto), input_shapes={"x": (5, 3)})}
    found = compose(members)
    assert_as_alone(found.model, found.members, members)
    assert found.model.bindings == {"a/x": (2, 3), "b/x": (5, 3)}
    with pytest.raises(UsageError, match="2x3 in 'a' but float32 5x3 in 'b'"):
        compose(members, ("x",))


def test_the_written_file_is_the_same_model_and_knows_its_members() -> None:
    found = composed({"a": backbone(2), "b": retrained(backbone(2), 7)}, ("x",))
    written = write_model(found.model.proto, found.model.weights, None)
    again = load_model(written, name="batch")
    assert again.digest == found.model.digest
    assert members_of(again.proto) == found.members
    assert members_of(load_model(data(backbone(2))).proto) == ()


@pytest.mark.parametrize("text", ["[1]", "{", '[{"name": "a", "inputs": {"x": "gone"}, "outputs": {}}]'])
def test_metadata_without_members_is_ignored(text: str) -> None:
    proto = backbone(2)
    proto.metadata_props.add(key="io.iosched.members", value=text)
    assert members_of(load_model(data(proto)).proto) == ()


@pytest.mark.parametrize(
    ("names", "shared", "says"),
    [
        ((), (), "no model"),
        (("a/b",), (), "'a/b' is not a valid model name"),
        (("a",), ("a/x",), "shared input 'a/x' has the name of an input of model 'a'"),
    ],
)
def test_ambiguous_names_are_refused(names: tuple[str, ...], shared: tuple[str, ...], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        compose({name: load_model(data(backbone(2))) for name in names}, shared)


@pytest.mark.parametrize("name", ["squeezenet", "shufflenet"])
def test_models_of_another_opset_are_converted_upward(name: str) -> None:
    newer = backbone(2)
    newer.opset_import[0].version = 21
    found = composed({"old": light_model(name), "new": newer})
    assert found.model.proto.opset_import[0].version == 21


def test_only_the_version_is_raised_where_no_operator_changes() -> None:
    older, newer = backbone(2), backbone(3)
    older.opset_import[0].version, newer.opset_import[0].version = 15, 18
    found = composed({"a": older, "b": newer}, ("x",))
    assert found.shared == 3


def test_a_model_that_onnx_cannot_convert_is_named() -> None:
    old = proto_of([node("LpPool", ["x"], ["y"], kernel_shape=[2, 2])], {"x": [1, 1, 4, 4]}, ["y"], opset=1)
    with pytest.raises(InvalidModelError, match=r"model 'old' has opset 1 and another model has opset 17.*LpPool"):
        compose(loaded({"old": old, "new": backbone(2)}))
