"""A member with new weights computes the same as the new model; the others are unchanged."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from batches import assert_as_alone, greedy_groups
from onnx import helper
from small_models import chain, data, headed, loaded, proto_of, weight
from variants import retrained

from iosched.models.batching.replacement import replaced, write_record
from iosched.models.batching.rewrite import batched
from iosched.models.composition.compose import Composition, compose
from iosched.models.errors import UsageError
from iosched.models.load import load_model
from iosched.models.model import Model
from iosched.models.zoo.light import light_model

node = helper.make_node


def one_file(models: dict[str, Model], *, batches: bool, shared: tuple[str, ...] = ()) -> tuple[Composition, Model]:
    """The models in one model, which was written and read."""
    whole = compose(models, shared)
    groups = greedy_groups(whole) if batches else ()
    made = batched(whole.model, groups) if batches else whole.model
    proto = onnx.ModelProto()
    proto.CopyFrom(made.proto)
    if batches:
        write_record(proto, whole.model.proto, groups, whole.model.weight_digests)
    del proto.graph.initializer[:]
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(np.asarray(a), n) for n, a in made.weights.items())
    return whole, load_model(data(proto), name="super")


def check(models: dict[str, Model], new: Model, *, batches: bool, name: str = "b") -> Model:
    whole, super_model = one_file(models, batches=batches)
    found, unshared = replaced(super_model, name, new)
    assert not unshared
    assert_as_alone(found, whole.members, {**models, name: new})
    assert found.structure == super_model.structure
    return found


@pytest.mark.parametrize("batches", [False, True])
def test_a_retrained_chain_replaces_the_earlier_one(batches: bool) -> None:
    models = {name: loaded(chain(seed), name) for seed, name in enumerate("abc")}
    check(models, loaded(chain(9), "new"), batches=batches)


@pytest.mark.slow
@pytest.mark.parametrize("network", ["squeezenet", "shufflenet"])
def test_retrained_networks(network: str) -> None:
    light = light_model(network)
    models = {name: loaded(retrained(light, seed), name) for seed, name in enumerate("ab")}
    check(models, loaded(retrained(light, 7), "new"), batches=True)


def test_products_with_scaled_and_transposed_weights() -> None:
    def gemms(seed: int) -> onnx.ModelProto:
        nodes = [
            node("Gemm", ["x", "w", "b"], ["h"], transB=1, alpha=0.5, beta=2.0),
            node("Relu", ["h"], ["r"]),
            node("MatMul", ["r", "v"], ["m"]),
            node("Add", ["m", "c"], ["y"]),
        ]
        weights = {
            "w": weight(6, 8, seed=seed), "b": weight(6, seed=seed + 1), "v": weight(6, 3, seed=seed + 2),
            "c": weight(3, seed=seed + 3),
        }  # fmt: skip
        return proto_of(nodes, {"x": [2, 8]}, ["y"], weights)

    models = {name: loaded(gemms(10 * seed), name) for seed, name in enumerate("abc")}
    check(models, loaded(gemms(99), "new"), batches=True, name="a")


def test_members_can_be_replaced_one_after_another() -> None:
    models = {name: loaded(chain(seed), name) for seed, name in enumerate("abc")}
    whole, super_model = one_file(models, batches=True)
    first, second = loaded(chain(9), "new"), loaded(chain(10), "newer")
    found, _ = replaced(replaced(super_model, "a", first)[0], "c", second)
    assert_as_alone(found, whole.members, {"a": first, "b": models["b"], "c": second})


def test_shared_weights_are_unshared() -> None:
    models = {name: loaded(chain(0), name) for name in "ab"}
    whole, super_model = one_file(models, batches=False)
    new = loaded(chain(5), "new")
    for name in "ab":
        found, unshared = replaced(super_model, name, new)
        assert sorted(unshared) == ["a/v", "a/w"]
        assert_as_alone(found, whole.members, {**models, name: new})


def test_operators_shared_for_equal_weights_must_be_batched_again() -> None:
    models = {name: loaded(chain(0), name) for name in "ab"}
    _, super_model = one_file(models, batches=True)
    with pytest.raises(UsageError, match=r"'b' shares the weights of 'b/\w' with other models"):
        replaced(super_model, "b", loaded(chain(5), "new"))


def test_a_shared_backbone_cannot_be_replaced() -> None:
    models = {name: loaded(headed(seed), name) for seed, name in enumerate("ab")}
    whole, super_model = one_file(models, batches=False, shared=("x",))
    new = loaded(headed(9), "new")
    assert_as_alone(replaced(super_model, "b", new)[0], whole.members, {**models, "b": new})
    nodes = [node("Conv", ["x", "w"], ["a"], pads=[1] * 4), node("Relu", ["a"], ["b"]), node("Conv", ["b", "v"], ["y"])]
    weights = {"w": weight(4, 4, 3, 3, seed=8), "v": weight(4, 4, 1, 1)}
    other = loaded(proto_of(nodes, {"x": [1, 4, 12, 12]}, ["y"], weights), "other")
    with pytest.raises(UsageError, match="'b' shares node 'a/a' with other models"):
        replaced(super_model, "b", other)


def test_another_structure_and_an_unknown_name_are_refused() -> None:
    models = {name: loaded(chain(seed), name) for seed, name in enumerate("ab")}
    _, super_model = one_file(models, batches=True)
    with pytest.raises(UsageError, match=r"'new' has another structure than 'a': .*Sigmoid"):
        replaced(super_model, "a", loaded(chain(0, kind="Sigmoid"), "new"))
    with pytest.raises(UsageError, match="no model 'z': it has a, b"):
        replaced(super_model, "z", models["a"])
    with pytest.raises(UsageError, match="it is not a batch of models"):
        replaced(models["a"], "a", models["b"])
    with pytest.raises(UsageError, match=r"'new' needs opset 18 of ai\.onnx; the file has 17"):
        replaced(super_model, "a", loaded(chain(0, opset=18), "new"))


def test_weights_that_a_subgraph_reads_are_replaced() -> None:
    def guarded(seed: int) -> onnx.ModelProto:
        inner = [
            helper.make_graph([node(kind, ["a", "w"], [kind])], kind, [], [
                helper.make_tensor_value_info(kind, onnx.TensorProto.FLOAT, None)
            ])
            for kind in ("Add", "Mul")
        ]  # fmt: skip
        nodes = [
            node("Relu", ["x"], ["a"]),
            node("ReduceMax", ["a"], ["most"], keepdims=0),
            node("Greater", ["most", "zero"], ["is_more"]),
            node("If", ["is_more"], ["y"], then_branch=inner[0], else_branch=inner[1]),
        ]
        weights = {"w": weight(2, 4, seed=seed), "zero": np.zeros((), np.float32)}
        return proto_of(nodes, {"x": [2, 4]}, ["y"], weights)

    models = {name: loaded(guarded(seed), name) for seed, name in enumerate("ab")}
    check(models, loaded(guarded(7), "new"), batches=False)
    equal = {name: loaded(guarded(0), name) for name in "ab"}
    _, super_model = one_file(equal, batches=False)
    for name in "ab":
        with pytest.raises(UsageError, match="Batch the models again"):
            replaced(super_model, name, loaded(guarded(7), "new"))


def test_a_shared_result_cannot_be_replaced() -> None:
    """The output of the second is a copy of that of the first, and no node belongs to the second alone."""

    def net(seed: int) -> onnx.ModelProto:
        nodes = [node("Relu", ["x"], ["r"]), node("Conv", ["r", "w"], ["y"], pads=[1] * 4)]
        return proto_of(nodes, {"x": [1, 4, 6, 6]}, ["y"], {"w": weight(4, 4, 3, 3, seed=seed)})

    _, super_model = one_file({name: loaded(net(0), name) for name in "ab"}, batches=False, shared=("x",))
    with pytest.raises(UsageError, match="'b' shares node 'a/y' with other models"):
        replaced(super_model, "b", loaded(net(5), "new"))
