"""The benchmark networks are the measured ones: counts, shapes and edges as their authors published them."""

from collections import Counter
from functools import cache
from math import prod

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from networks import zoo_file, zoo_model

from iosched.models import zoo
from iosched.models.errors import UsageError
from iosched.models.zoo import randwire

# Nodes by type; multiply-accumulates of the convolutions in units of 1e9; published total in the same unit.
_PUBLISHED = {
    "squeezenet": (
        {"Conv": 30, "Relu": 30, "Concat": 8, "Add": 8, "MaxPool": 3, "GlobalAveragePool": 1}, 1.18710016, 1.2297,
    ),
    "inception_v3": (
        {"Conv": 94, "Relu": 94, "Concat": 11, "AveragePool": 9, "MaxPool": 4, "GlobalAveragePool": 1},
        5.711168096, 5.7863,
    ),
    "nasnet_a": (
        {"Conv": 488, "Relu": 268, "Add": 113, "AveragePool": 62, "Concat": 29, "MaxPool": 8, "GlobalAveragePool": 1},
        22.18445853, 23.1204,
    ),
    "randwire": ({"Conv": 226, "Relu": 113, "Add": 141, "Concat": 1, "GlobalAveragePool": 1}, 7.821761024, 8.0671),
}  # fmt: skip
_OUTPUTS = {
    "squeezenet": (1, 1000, 1, 1), "inception_v3": (1, 2048, 1, 1), "nasnet_a": (1, 3360, 1, 1),
    "randwire": (1, 1280, 1, 1), "bert_mini": (1, 128, 256), "decoder_mini": (1, 128, 8192),
}  # fmt: skip
_TEXTS = {"bert_mini": ("ids", "mask"), "decoder_mini": ("ids",)}


@cache
def _built(name: str) -> onnx.ModelProto:
    """The network, whose large weights stay in their file."""
    return onnx.load(zoo_file(name), load_external_data=False)


@cache
def _shapes(name: str) -> dict[str, tuple[int, ...]]:
    graph = onnx.shape_inference.infer_shapes(_built(name), strict_mode=True).graph
    infos = [*graph.input, *graph.value_info, *graph.output]
    return {info.name: tuple(dim.dim_value for dim in info.type.tensor_type.shape.dim) for info in infos}


def _image_shape(name: str) -> tuple[int, ...]:
    side = {"inception_v3": 299, "nasnet_a": 331}.get(name, 224)
    return (1, 3, side, side)


def _run(name: str) -> np.ndarray:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 2
    random = np.random.default_rng(0)
    feeds = {"input": random.standard_normal(_image_shape(name), dtype=np.float32)}
    if name in _TEXTS:
        feeds = {"ids": random.integers(0, 8192, (1, 128)), "mask": np.ones((1, 128), np.int64)}
        feeds = {key: feeds[key] for key in _TEXTS[name]}
    return ort.InferenceSession(zoo_file(name), options).run(None, feeds)[0]


@pytest.mark.parametrize("name", _PUBLISHED)
def test_nodes_and_work_are_the_published_ones(name: str) -> None:
    model, (nodes, gmacs, published) = _built(name), _PUBLISHED[name]
    weights = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    macs = sum(
        prod(_shapes(name)[node.output[0]]) * prod(weights[node.input[1]][1:])
        for node in model.graph.node
        if node.op_type == "Conv"
    )
    assert Counter(node.op_type for node in model.graph.node) == nodes
    assert macs / 1e9 == pytest.approx(gmacs, rel=1e-9)
    assert macs / 1e9 == pytest.approx(published, rel=0.05)  # the published total counts biases and sums too


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name == "vgg16" else []) for name in zoo.names()]
)
def test_is_valid_onnx_of_the_promised_shape(name: str) -> None:
    model = _built(name)
    onnx.checker.check_model(zoo_file(name))
    assert (model.ir_version, model.opset_import[0].version) == (10, 17)
    inputs = {tensor.name: _shapes(name)[tensor.name] for tensor in model.graph.input}
    assert inputs == (dict.fromkeys(_TEXTS[name], (1, 128)) if name in _TEXTS else {"input": _image_shape(name)})
    assert [tensor.name for tensor in model.graph.output] == ["output"]
    assert _shapes(name)["output"] == _OUTPUTS.get(name, (1, 1000))


@pytest.mark.slow
@pytest.mark.parametrize("name", zoo.names())
def test_outputs_are_finite_and_different_from_each_other(name: str) -> None:
    output = _run(name)
    assert np.isfinite(output).all()
    assert 1e-2 < output.std() < 1e2
    assert len(np.unique(output)) > output.size // 2


@pytest.mark.parametrize("name", ["squeezenet", "googlenet"])
def test_builds_the_same_bits_every_time(name: str) -> None:
    assert zoo.build(name).SerializeToString() == zoo.build(name).SerializeToString()


def test_networks_do_not_share_weights() -> None:
    first, second = (zoo_model(name).weights["conv1/weight"] for name in ("resnet50", "googlenet"))
    assert (first.flat[:4] != second.flat[:4]).all()


def test_average_pooling_counts_its_padding() -> None:
    pools = [
        node
        for name in ("inception_v3", "nasnet_a")
        for node in _built(name).graph.node
        if node.op_type == "AveragePool"
    ]
    assert all(any(a.name == "count_include_pad" and a.i == 1 for a in pool.attribute) for pool in pools)


def test_randwire_stages_are_watts_strogatz_graphs() -> None:
    wirings = randwire.wirings()
    assert [len(wiring) for wiring in wirings] == [16, 32, 32, 32]
    assert [sum(map(len, wiring)) for wiring in wirings] == [32, 64, 64, 64]  # n nodes of 4 neighbours: 2 n edges
    for wiring in wirings:
        assert all(len(set(before)) == len(before) and max(before, default=-1) < n for n, before in enumerate(wiring))


def test_randwire_stages_are_connected() -> None:
    for wiring in randwire.wirings():
        reached, frontier = {0}, [0]
        neighbours = {
            n: {*before, *(m for m, other in enumerate(wiring) if n in other)} for n, before in enumerate(wiring)
        }
        while frontier:
            fresh = neighbours[frontier.pop()] - reached
            reached |= fresh
            frontier += fresh
        assert reached == set(range(len(wiring)))


def test_every_name_is_described_without_building() -> None:
    assert zoo.names()[:4] == ("inception_v3", "randwire", "nasnet_a", "squeezenet")
    assert {name: zoo.describe(name).operators for name in zoo.names()[:4]} == {
        "inception_v3": 119, "randwire": 120, "nasnet_a": 374, "squeezenet": 50,
    }  # fmt: skip


def test_an_unknown_name_gets_the_nearest_one() -> None:
    with pytest.raises(UsageError, match="did you mean squeezenet"):
        zoo.build("sqeezenet")
    with pytest.raises(UsageError, match="choose from inception_v3"):
        zoo.describe("qqqq")


@pytest.mark.parametrize("name", ["inception_v3", "randwire", "nasnet_a", "squeezenet", "googlenet"])
def test_operators_are_counted_as_in_the_thesis(name: str) -> None:
    model = zoo_model(name)
    assert len(model.graph.operators) == zoo.describe(name).operators


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet50", "vgg16", "densenet121"])
def test_operators_of_the_controls_are_counted_as_described(name: str) -> None:
    model = zoo_model(name)
    assert len(model.graph.operators) == zoo.describe(name).operators


def test_edges_between_operators_are_the_published_ones() -> None:
    # Edges from the input and from one block to the next included.
    graph = zoo_model("squeezenet").graph
    assert sum(len(operator.inputs) for operator in graph.operators) == 66
