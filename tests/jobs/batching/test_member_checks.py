"""Outputs of a file are compared with those of each model alone, and a model that differs is named."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper
from small_models import chains, loaded, proto_of

from iosched.jobs.batching.member_checks import check_members, member_checks
from iosched.jobs.batching.model_clusters import composed
from iosched.models.errors import MismatchError
from iosched.runtime.inputs import random_inputs
from iosched.runtime.reference import Reference


def test_a_model_with_wrong_outputs_is_named() -> None:
    models = chains(2)
    cluster = composed(models)
    inputs = random_inputs(cluster.model.graph.inputs)
    with Reference(cluster.model) as session:
        outputs = session.run(inputs)
    check_members(outputs, inputs, models, cluster.composition.members)
    wrong = {**outputs, "b/y": outputs["b/y"] + np.float32(0.01)}
    with pytest.raises(
        MismatchError, match=r"outputs of model 'b' differ from those of the model alone: output 'y' differs by 0\.01"
    ):
        check_members(wrong, inputs, models, cluster.composition.members)
    checks = member_checks(wrong, inputs, {"a": models["a"]}, cluster.composition.members)
    assert [member.name for member, _ in checks] == ["a"]


def test_random_models_are_not_compared() -> None:
    nodes = [helper.make_node("RandomNormalLike", ["x"], ["y"])]
    models = {"r": loaded(proto_of(nodes, {"x": [1, 4]}, ["y"], {}), "r")}
    members = composed(models).composition.members
    assert not list(member_checks({"r/y": np.zeros((1, 4))}, {"r/x": np.zeros((1, 4))}, models, members))
