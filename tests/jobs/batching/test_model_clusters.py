"""Similar models are clustered within the memory limit, and compute the same batched as alone."""

from __future__ import annotations

import pytest
from batches import assert_as_alone
from onnx import helper
from small_models import data, proto_of, weight
from variants import retrained

from iosched.jobs.batching.model_clusters import BatchSettings, clusters_of, composed, planned_clusters
from iosched.models.composition.compose import footprint_of, together_nbytes
from iosched.models.errors import UsageError
from iosched.models.graph import Operator, TensorSpec
from iosched.models.load import load_model
from iosched.models.model import Model
from iosched.models.zoo.light import light_model
from iosched.scheduler.batching.policy_names import POLICY_NAMES, PolicyName

node = helper.make_node


class Flat:
    """Ten microseconds for every operator that is saved, one for every tensor that is joined or split."""

    def gain_us(self, operators: object, count: int) -> float:
        return 10.0 * (count - 1)

    def join_us(self, tensor: TensorSpec, count: int) -> float:
        return float(count)

    part_us = join_us


class Dear(Flat):
    """Batching never pays off."""

    def gain_us(self, operators: list[Operator], count: int) -> float:  # type: ignore[override]
        return -1.0


def squeezenet(seed: int) -> Model:
    return load_model(data(retrained(light_model("squeezenet"), seed)))


def chain(kind: str, seed: int) -> Model:
    nodes = [node("Conv", ["x", "w"], ["a"]), node(kind, ["a"], ["b"]), node("Conv", ["b", "v"], ["y"])]
    weights = {"w": weight(4, 4, 3, 3, seed=seed), "v": weight(4, 4, 1, 1, seed=seed)}
    return load_model(data(proto_of(nodes, {"x": [1, 4, 6, 6]}, ["y"], weights)))


def test_similar_models_are_clustered_within_the_memory_limit() -> None:
    models = {"a": chain("Sin", 0), "b": chain("Relu", 1), "c": chain("Sin", 2), "d": chain("Relu", 3)}
    pair = together_nbytes(footprint_of(models[name]) for name in "ac")
    assert clusters_of(models) == (("a", "b", "c", "d"),)
    assert clusters_of(models, memory_nbytes=pair) == (("a", "c"), ("b", "d"))
    assert clusters_of(models, "fcfs", memory_nbytes=pair) == (("a", "b"), ("c", "d"))
    with pytest.raises(UsageError, match=r"model 'a' alone needs 0\.0 MB"):
        clusters_of(models, memory_nbytes=10)


@pytest.mark.parametrize("policy", POLICY_NAMES)
def test_models_compute_the_same_by_every_policy(policy: PolicyName) -> None:
    models = {name: squeezenet(seed) for seed, name in enumerate("abc")}
    cluster = composed(models)
    assert [member.name for member in cluster.composition.members] == ["a", "b", "c"]
    found = cluster.batched(cluster.plan(policy, Flat()))
    assert_as_alone(found, cluster.composition.members, models)
    batches = policy not in ("serial", "packed")
    assert (len(found.graph.operators) < len(cluster.model.graph.operators)) == batches


def test_operators_are_not_batched_at_a_loss() -> None:
    cluster = composed({name: chain("Relu", seed) for seed, name in enumerate("ab")})
    assert cluster.batched(cluster.plan("dpbat", Dear())) is cluster.model
    assert cluster.batched(cluster.plan("greedy", Dear())) is not cluster.model


def test_inputs_are_shared_in_the_clusters_that_have_them() -> None:
    models = {name: chain("Relu", seed) for seed, name in enumerate("ab")}
    cluster = composed(models, shared_inputs=["x", "elsewhere"])
    found = cluster.batched(cluster.plan("dpbat", Flat()))
    assert [spec.name for spec in found.graph.inputs] == ["x"]
    assert_as_alone(found, cluster.composition.members, models)


def test_an_unknown_policy_is_refused() -> None:
    models = {"a": chain("Relu", 0)}
    with pytest.raises(UsageError, match="unknown policy 'best': choose from auto, dpbat, greedy, fcfs"):
        planned_clusters(models, BatchSettings(device="v100", policy="best"))  # type: ignore[arg-type]
