"""A member extracted from a composed or batched model computes the same as before."""

from __future__ import annotations

import numpy as np
import pytest
from batches import batch, variants
from onnx import helper
from small_models import data, feeds_for, weight

from iosched.models.batching.rewrite import batched
from iosched.models.composition.compose import compose
from iosched.models.composition.members import member_alone
from iosched.models.load import load_model
from iosched.models.zoo.light import light_model
from iosched.runtime.reference import Reference

node = helper.make_node
NODES = [node("Conv", ["x", "w"], ["c"]), node("Relu", ["c"], ["r"]), node("Conv", ["r", "v"], ["y"])]


def found(seed: int) -> dict[str, np.ndarray]:
    return {"w": weight(4, 4, 3, 3), "v": weight(4, 4, 1, 1, seed=seed)}


@pytest.mark.parametrize("is_batched", [False, True])
def test_a_member_alone_computes_the_same_as_in_the_whole(is_batched: bool) -> None:
    made = batch(variants(NODES, {"x": [1, 4, 6, 6]}, ["y"], found), shared=["x"], keep=lambda index: index == 0)
    whole = made.model if is_batched else made.whole.model
    feeds = feeds_for(whole)
    with Reference(whole) as session:
        want = session.run(feeds)
    for member in made.whole.members:
        alone = member_alone(whole, member)
        assert [spec.name for spec in alone.graph.inputs] == ["x"]
        with Reference(alone) as session:
            got = session.run(feeds)
        assert got.keys() == set(member.outputs.values())
        np.testing.assert_allclose(got[f"{member.name}/y"], want[f"{member.name}/y"], rtol=1e-5, atol=1e-6)


def test_a_member_alone_has_no_nodes_or_weights_of_other_members() -> None:
    models = {name: load_model(data(light_model(name))) for name in ("squeezenet", "shufflenet")}
    whole = compose(models)
    for member in whole.members:
        alone = member_alone(whole.model, member)
        assert len(alone.graph.operators) == len(models[member.name].graph.operators)
        assert alone.weights.keys() <= {f"{member.name}/{name}" for name in models[member.name].weights}


def test_a_member_of_a_batched_model_keeps_shared_batches() -> None:
    protos = variants(NODES, {"x": [1, 4, 6, 6]}, ["y"], found)
    models = {f"m{seed}": load_model(data(proto)) for seed, proto in enumerate(protos)}
    whole = compose(models)
    joined = batched(whole.model, [tuple(f"{name}/y" for name in models)])
    alone = member_alone(joined, whole.members[0])
    assert [spec.name for spec in alone.graph.inputs] == ["m0/x", "m1/x", "m2/x"]
