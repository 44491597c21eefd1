"""Fusion patterns, and the attributes of fused operators."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
import onnx
import pytest
from onnx import helper
from small_models import data, proto_of, units, weight

from iosched.models.graph import ComputationGraph
from iosched.models.load import load_model

node = helper.make_node
NORM = {"scale": np.ones(4, np.float32), "shift": weight(4), "mean": weight(4), "var": np.ones(4, np.float32)}
WEIGHTS = {"w3": weight(4, 4, 3, 3), "w1": weight(4, 4, 1, 1), "dw": weight(4, 1, 3, 3), "bias": weight(4), **NORM}
IMAGE = {"x": [1, 4, 8, 8]}


def graph_of(
    nodes: Sequence[onnx.NodeProto], outputs: Sequence[str], inputs: Mapping[str, list[int]] = IMAGE, **keywords: object
) -> ComputationGraph:
    used = {name for item in nodes for name in item.input}
    weights = {name: array for name, array in WEIGHTS.items() if name in used}
    return load_model(data(proto_of(nodes, inputs, outputs, weights, **keywords))).graph  # type: ignore[arg-type]


def conv(source: str, to: str, kernel: str = "w3", **attributes: object) -> onnx.NodeProto:
    pads = [0] * 4 if kernel == "w1" else [1] * 4
    return node("Conv", [source, kernel], [to], pads=pads, group=4 if kernel == "dw" else 1, **attributes)


def norm(source: str, to: str) -> onnx.NodeProto:
    return node("BatchNormalization", [source, *NORM], [to])


def op(kind: str, *names: str, **attributes: object) -> onnx.NodeProto:
    return node(kind, list(names[:-1]), [names[-1]], **attributes)


def sep_conv(source: str, to: str) -> list[onnx.NodeProto]:
    return [op("Relu", source, f"{to}/r"), conv(f"{to}/r", f"{to}/d", "dw"), conv(f"{to}/d", to, "w1")]


def shown(graph: ComputationGraph) -> list[tuple[str, str]]:
    return [(operator.type, operator.name) for operator in graph.operators]


def test_convolution_norm_residual_and_activation_are_one_operator():
    nodes = [conv("x", "c"), norm("c", "n"), op("Add", "n", "x", "s"), op("Relu", "s", "y")]
    (operator,) = graph_of(nodes, ["y"]).operators
    assert (operator.type, operator.nodes, operator.inputs) == ("Conv", ("c", "n", "s", "y"), ("x",))
    assert operator.attribute("activation") == "Relu"
    assert operator.attribute("residual") == 1
    assert [spec.name for spec in operator.weights] == ["w3", *NORM]


def test_a_constant_scale_and_shift_count_as_norm():
    scale = {"k": np.full((4, 1, 1), 2, np.float32)}
    nodes = [conv("x", "c"), op("Mul", "c", "k", "m"), op("Add", "m", "k", "a"), op("Relu", "a", "y")]
    model = load_model(data(proto_of(nodes, IMAGE, ["y"], {"w3": WEIGHTS["w3"], **scale})))
    assert units(model) == [("Conv", 4)]


@pytest.mark.parametrize("kind", ["Relu", "LeakyRelu", "Sigmoid", "Tanh", "HardSwish", "Elu", "Softplus"])
def test_activations_join_the_convolution(kind: str):
    (operator,) = graph_of([conv("x", "c"), op(kind, "c", "y")], ["y"]).operators
    assert operator.attribute("activation") == kind


def test_an_activation_brings_its_parameters():
    (leaky,) = graph_of([conv("x", "c"), op("LeakyRelu", "c", "y", alpha=0.25)], ["y"]).operators
    assert leaky.attribute("activation.alpha") == 0.25
    bounds = {"low": np.array(0, np.float32), "high": np.array(6, np.float32), "w3": WEIGHTS["w3"]}
    clip = proto_of([conv("x", "c"), node("Clip", ["c", "low", "high"], ["y"])], IMAGE, ["y"], bounds)
    (operator,) = load_model(data(clip)).graph.operators
    assert operator.attribute("activation") == "Clip"
    assert operator.attribute("activation.input_2") == (6.0,)


def test_values_with_other_readers_end_an_operator():
    read_twice = [conv("x", "c"), op("Relu", "c", "r"), op("Tanh", "c", "t"), op("Add", "r", "t", "y")]
    assert shown(graph_of(read_twice, ["y"])) == [("Conv", "c"), ("Relu", "r"), ("Tanh", "t"), ("Add", "y")]
    returned = [conv("x", "c"), op("Relu", "c", "y")]
    assert shown(graph_of(returned, ["c", "y"])) == [("Conv", "c"), ("Relu", "y")]


def test_the_deeper_of_two_summed_convolutions_computes_the_sum():
    deep = [
        conv("x", "a"),
        op("Relu", "a", "r"),
        conv("r", "b"),
        conv("x", "short", "w1"),
        op("Add", "b", "short", "y"),
    ]
    assert shown(graph_of(deep, ["y"])) == [("Conv", "r"), ("Conv", "short"), ("Conv", "y")]
    graph = graph_of(deep, ["y"])
    assert graph.by_name["y"].inputs == ("r", "short")


def test_a_broadcast_sum_is_no_residual():
    graph = graph_of([conv("x", "c"), op("Add", "c", "v", "y")], ["y"], {**IMAGE, "v": [1, 1, 8, 8]})
    assert shown(graph) == [("Conv", "c"), ("Add", "y")]


def test_relu_depthwise_pointwise_is_a_sep_conv():
    (operator,) = graph_of([*sep_conv("x", "p"), norm("p", "y")], ["y"]).operators
    assert (operator.type, operator.nodes) == ("ReluSepConv", ("p/r", "p/d", "p", "y"))
    assert operator.node_types == ("Relu", "Conv", "Conv", "BatchNormalization")
    assert dict(operator.attributes) == {
        "activation": "", "dilations": (1, 1), "group": 4, "in_channels": 4, "kernel_shape": (3, 3),
        "out_channels": 4, "pads": (1, 1, 1, 1), "strides": (1, 1),
    }  # fmt: skip


def test_a_sep_conv_takes_its_relu_from_the_convolution_before_it():
    nodes = [*sep_conv("x", "a"), norm("a", "n"), *sep_conv("n", "y")]
    assert [kind for kind, _ in shown(graph_of(nodes, ["y"]))] == ["ReluSepConv", "ReluSepConv"]
    nodes = [conv("x", "c"), *sep_conv("c", "y")]
    assert [kind for kind, _ in shown(graph_of(nodes, ["y"]))] == ["Conv", "ReluSepConv"]


def test_depthwise_and_pointwise_without_relu_are_not_fused():
    assert len(graph_of([conv("x", "d", "dw"), conv("d", "y", "w1")], ["y"]).operators) == 2


def test_relu_before_a_dense_1x1_convolution():
    pool = node("MaxPool", ["x"], ["p"], kernel_shape=[1, 1])
    assert shown(graph_of([pool, op("Relu", "p", "r"), conv("r", "y", "w1")], ["y"]))[-1] == ("ReluConv", "y")
    three = shown(graph_of([pool, op("Relu", "p", "r"), conv("r", "y", "w3")], ["y"]))
    assert [kind for kind, _ in three] == ["MaxPool", "Relu", "Conv"]
    own = shown(graph_of([conv("x", "c"), op("Relu", "c", "r"), conv("r", "y", "w1")], ["y"]))
    assert own == [("Conv", "r"), ("Conv", "y")]
    after_sum = [pool, op("Add", "p", "x", "s"), op("Relu", "s", "r"), conv("r", "y", "w1")]
    assert [kind for kind, _ in shown(graph_of(after_sum, ["y"]))] == ["MaxPool", "Add", "Relu", "Conv"]


def test_sums_are_folded_into_a_sep_conv_or_concat_that_is_their_only_reader():
    two = {**IMAGE, "z": [1, 4, 8, 8]}
    chain = [op("Add", "x", "z", "a"), op("Add", "a", "t", "b"), *sep_conv("b", "y")]
    graph = graph_of([op("Tanh", "x", "t"), *chain], ["y"], two)
    assert shown(graph) == [("Tanh", "t"), ("ReluSepConv", "y")]
    assert graph.by_name["y"].inputs == ("x", "z", "t")
    assert graph.by_name["y"].attribute("terms") == (3,)
    nodes = [op("Tanh", "x", "t"), op("Sum", "x", "t", "z", "s"), node("Concat", ["t", "s"], ["y"], axis=1)]
    graph = graph_of(nodes, ["y"], two)
    assert shown(graph) == [("Tanh", "t"), ("Concat", "y")]
    assert graph.by_name["y"].attribute("terms") == (1, 3)


def test_a_chain_of_sums_may_be_longer_than_python_recurses():
    length = sys.getrecursionlimit() + 50
    names = ["x", *(f"s{index}" for index in range(length))]
    chain = [op("Add", before, "z", after) for before, after in pairwise(names)]
    graph = graph_of([*chain, *sep_conv(names[-1], "y")], ["y"], {**IMAGE, "z": [1, 4, 8, 8]})
    assert graph.by_name["y"].attribute("terms") == (length + 1,)


def test_sums_with_several_readers_stay_and_swallow_the_sums_below():
    two = {**IMAGE, "z": [1, 4, 8, 8]}
    nodes = [op("Add", "x", "z", "a"), op("Add", "a", "x", "s"), *sep_conv("s", "p"), *sep_conv("s", "q")]
    graph = graph_of(nodes, ["p", "q"], two)
    assert shown(graph) == [("Add", "s"), ("ReluSepConv", "p"), ("ReluSepConv", "q")]
    assert graph.by_name["s"].attribute("terms") == (2, 1)
    returned = [op("Add", "x", "z", "s"), node("Concat", ["s", "x"], ["y"], axis=1)]
    assert shown(graph_of(returned, ["s", "y"], two)) == [("Add", "s"), ("Concat", "y")]


def test_products_take_bias_and_activation():
    weights = {"w": weight(3, 5), "b": weight(5)}
    nodes = [op("MatMul", "x", "w", "m"), op("Add", "m", "b", "a"), op("Relu", "a", "r"), op("Tanh", "r", "y")]
    model = load_model(data(proto_of(nodes, {"x": [2, 3]}, ["y"], weights)))
    assert units(model) == [("MatMul", 3), ("Tanh", 1)]
    assert model.graph.operators[0].flops == 2 * 2 * 3 * 5 + 10 + 10
    gemm = [op("Gemm", "x", "w", "b", "g", alpha=0.5), op("Relu", "g", "y")]
    model = load_model(data(proto_of(gemm, {"x": [2, 3]}, ["y"], weights)))
    assert units(model) == [("Gemm", 2)]
    assert model.graph.operators[0].attribute("alpha") == 0.5


@pytest.mark.parametrize(
    ("auto_pad", "pads"), [("SAME_UPPER", (0, 0, 1, 1)), ("SAME_LOWER", (1, 1, 0, 0)), ("VALID", (0, 0, 0, 0))]
)
def test_padding_of_convolutions_is_resolved(auto_pad: str, pads: tuple[int, ...]):
    convolution = node("Conv", ["x", "w3"], ["y"], auto_pad=auto_pad, strides=[2, 2])
    (operator,) = graph_of([convolution], ["y"]).operators
    assert (operator.attribute("pads"), operator.attribute("strides")) == (pads, (2, 2))


def test_work_and_bytes_of_an_operator():
    (operator,) = graph_of([conv("x", "c"), op("Relu", "c", "y")], ["y"]).operators
    pixels = 4 * 8 * 8
    assert operator.flops == 2 * pixels * 4 * 9 + pixels
    assert operator.nbytes == 4 * (2 * pixels + 4 * 4 * 9)
    pool = node("MaxPool", ["x"], ["y"], kernel_shape=[2, 2], strides=[2, 2])
    assert graph_of([pool], ["y"]).operators[0].flops == 4 * 4 * 4 * 4


def test_an_operator_with_several_outputs_shows_those_that_are_read():
    split = node("Split", ["x"], ["a", "b", "c"], axis=1, num_outputs=3)
    graph = graph_of([split, op("Relu", "c", "y")], ["y"], {"x": [6, 6]}, opset=18)
    assert graph.by_name["a"].outputs == ("a", "c")


def test_the_order_of_nodes_does_not_decide_which_operator_computes_a_sum():
    """Of two convolutions of equal depth, the sum's second operand computes it, in any order in the file."""
    a, b = conv("x", "a"), conv("x", "b")
    for nodes in ([a, b], [b, a]):
        graph = graph_of([*nodes, op("Add", "a", "b", "y")], ["y"])
        assert shown(graph) == [("Conv", "a"), ("Conv", "y")]
        assert graph.by_name["y"].nodes == ("b", "y")
