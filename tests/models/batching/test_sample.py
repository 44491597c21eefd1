"""A sample computes the same as the samples of its members, without Concat or Split."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from batches import variants
from onnx import helper
from small_models import data, feeds_for, weight

from iosched.models.batching.rewrite import joining, parting, weightless
from iosched.models.batching.rewrite import sample as sample_of
from iosched.models.composition.compose import compose, disjoint_union
from iosched.models.editable_graph import EditableGraph
from iosched.models.graph import TensorSpec
from iosched.models.load import load_model
from iosched.models.model import Model
from iosched.runtime.reference import Reference
from iosched.scheduler.components import components

node = helper.make_node
NODES = [
    node("Conv", ["x", "w"], ["c"], pads=[1] * 4),
    node("Add", ["c", "z"], ["s"]),
    node("Relu", ["s"], ["r"]),
    node("GlobalAveragePool", ["r"], ["p"]),
    node("Flatten", ["p"], ["f"]),
    node("Gemm", ["f", "v"], ["y"]),
]


def whole(shared: tuple[str, ...] = (), batch_size: int = 2) -> Model:
    protos = variants(
        NODES,
        {"x": [2, 4, 5, 5], "z": [2, 6, 5, 5]},
        ["y"],
        lambda seed: {"w": weight(6, 4, 3, 3, seed=seed), "v": weight(6, 3, seed=seed)},
    )
    members = {f"m{index}": load_model(data(proto), batch_size=batch_size) for index, proto in enumerate(protos)}
    return compose(members, shared).model


def sample(model: Model, names: Sequence[str]) -> Model:
    graph = EditableGraph.of(model.proto, model.weights, model.graph.tensor)
    return sample_of(graph, [model.graph.by_name[name] for name in names])


def run(model: Model, feeds: dict[str, np.ndarray]) -> np.ndarray:
    with Reference(model) as reference:
        (found,) = reference.run(feeds).values()
    return np.asarray(found)


@pytest.mark.parametrize("batch_size", [1, 2])
@pytest.mark.parametrize(
    ("name", "axis", "types"),
    [
        ("r", 1, {"Conv": 1, "Add": 1, "Relu": 1}),
        ("p", 1, {"GlobalAveragePool": 1}),
        ("y", 0, {"Reshape": 2, "MatMul": 1}),
    ],
)
def test_one_operator_for_all_members(name: str, axis: int, types: dict[str, int], batch_size: int) -> None:
    model = whole(batch_size=batch_size)
    together = sample(model, [f"m{index}/{name}" for index in range(3)])
    assert Counter(each.op_type for each in together.proto.graph.node) == types
    alone = [sample(model, [f"m{index}/{name}"]) for index in range(3)]
    feeds = [feeds_for(each, seed) for seed, each in enumerate(alone)]
    columns = list(zip(*(each.values() for each in feeds), strict=True))
    fed = {spec.name: np.concatenate(own, axis) for spec, own in zip(together.graph.inputs, columns, strict=True)}
    want = [run(each, own) for each, own in zip(alone, feeds, strict=True)]
    np.testing.assert_allclose(run(together, fed), np.concatenate(want, axis), rtol=1e-4, atol=1e-5)


def test_common_inputs_are_fed_once() -> None:
    model = whole(("x", "z"))
    together = sample(model, [f"m{index}/r" for index in range(3)])
    assert [spec.shape for spec in together.graph.inputs] == [(2, 4, 5, 5), (2, 18, 5, 5)]
    (conv,) = (each for each in together.graph.operators if each.type == "Conv")
    assert (conv.attribute("out_channels"), conv.attribute("group")) == (18, 1)


def test_a_disjoint_union_has_separate_tensors() -> None:
    model = whole(("x", "z"))
    first, second = (sample(model, [name]) for name in ("m0/r", "m1/r"))
    found = disjoint_union([first, second, first])
    assert [operator.type for operator in found.graph.operators] == ["Conv"] * 3
    assert len(found.graph.inputs) == 6
    assert len(components(found.graph)) == 3


def test_a_disjoint_union_has_the_weights_of_its_models() -> None:
    model = whole()
    first, second = (sample(model, [name]) for name in ("m0/y", "m2/y"))
    found = disjoint_union([first, second, first])
    (feed,) = {spec.shape: spec for spec in found.graph.inputs}
    values = np.random.default_rng(0).standard_normal(feed).astype(np.float32)
    with Reference(found) as reference:
        got = list(reference.run({spec.name: values for spec in found.graph.inputs}).values())
    want = [run(each, {spec.name: values for spec in each.graph.inputs}) for each in (first, second)]
    np.testing.assert_array_equal(got, [want[0], want[1], want[0]])
    assert len(found.weights) == 2


@pytest.mark.parametrize("name", ["c", "y"])
def test_without_weights_samples_are_small_and_have_the_same_graph(name: str) -> None:
    nodes = [node("Conv", ["x", "w"], ["c"]), node("Flatten", ["c"], ["f"]), node("Gemm", ["f", "v"], ["y"])]
    protos = variants(
        nodes,
        {"x": [1, 16, 3, 3]},
        ["y"],
        lambda seed: {"w": weight(16, 16, 3, 3, seed=seed), "v": weight(16, 20, seed=seed)},
    )
    model = compose({f"m{index}": load_model(data(proto)) for index, proto in enumerate(protos)}).model
    group = [f"m{index}/{name}" for index in range(3)]
    light, full = (sample(each, group) for each in (weightless(model), model))
    assert (light.graph, light.bindings) == (full.graph, full.bindings)
    assert any(array.nbytes > 1024 for array in light.weights.values())
    assert all(array.nbytes <= 1024 or not any(array.strides) for array in light.weights.values())


@pytest.mark.parametrize("count", [3, 150])
@pytest.mark.parametrize("opset", [11, 13, 18])
def test_tensors_are_joined_and_split(opset: int, count: int) -> None:
    """For any number of them: 150 sizes are too many to be inside a graph."""
    tensor = TensorSpec("t", "float32", (2, 3))
    each = {f"t/{place}": np.full((2, 3), place, np.float32) for place in range(count)}
    joined = run(joining(tensor, count, opset), each)
    np.testing.assert_array_equal(joined[:, 0], np.repeat(np.arange(count), 2))
    with Reference(parting(tensor, count, opset)) as reference:
        parts = reference.run({"t": joined})
    assert parts.keys() == each.keys()
    for name, value in parts.items():
        np.testing.assert_array_equal(value, each[name])


def test_operators_that_cannot_be_batched_are_refused() -> None:
    with pytest.raises(ValueError, match="differ in type"):
        sample(whole(), ["m0/r", "m1/p"])
