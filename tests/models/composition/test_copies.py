"""A disjoint union of models equals the composition of a model with itself, and the model in its file."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
from hypothesis import given
from small_models import data, models

from iosched.models.composition.compose import compose, disjoint_union
from iosched.models.load import assembled_model, load_model
from iosched.models.zoo.light import light_model


@given(models())
def test_copies_equal_the_operators_found_in_their_graph(proto: onnx.ModelProto) -> None:
    model = load_model(data(proto))
    copies = disjoint_union([model] * 3)
    found = assembled_model(copies.name, onnx.ModelProto.FromString(data(copies.proto)), dict(copies.weights))
    assert (copies.digest, copies.structure, copies.bindings) == (found.digest, found.structure, found.bindings)
    assert (copies.graph.operators, copies.graph.tensor) == (found.graph.operators, found.graph.tensor)
    assert set(copies.weights) == {f"0/{name}" for name in model.weights}
    whole = compose(dict.fromkeys("012", model))
    assert whole.shared or copies.digest == whole.model.digest


def test_different_weights_are_stored_once_each() -> None:
    model = load_model(data(light_model("squeezenet")))
    name, array = next((name, array) for name, array in model.weights.items() if array.ndim == 4)
    other = replace(model, weights={**model.weights, name: np.ones_like(array)})
    copies = disjoint_union([model, other, other])
    assert {each for each in copies.weights if each.endswith(f"/{name}")} == {f"0/{name}", f"1/{name}"}
    read = [each for node in copies.proto.graph.node for each in node.input if each.endswith(f"/{name}")]
    assert read == [f"0/{name}", f"1/{name}", f"1/{name}"]
