"""Quantized models: the pairs of nodes that quantizers write around an operator are part of it."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import pytest
from onnx import helper
from quantized import quantized, quantized_in_the_run
from small_models import branches, data, proto_of, weight

from iosched.models.graph import ComputationGraph, quantized_operators
from iosched.models.load import load_model
from iosched.models.merging.rule import refusal
from iosched.models.zoo.light import light_model

pytest.importorskip("onnxruntime", reason="needs pip install '.[cpu]'")
node = helper.make_node
SCALES = {"s": np.float32(0.1), "z": np.uint8(3), "sw": np.float32(0.02), "zw": np.int8(0)}
IMAGE = {"x": [1, 4, 8, 8]}


def kinds(graph: ComputationGraph) -> Counter[str]:
    return Counter(operator.type for operator in graph.operators)


def loaded(nodes: list[onnx.NodeProto], outputs: list[str], **weights: np.ndarray) -> ComputationGraph:
    return load_model(data(proto_of(nodes, IMAGE, outputs, {**SCALES, **weights}))).graph


def pair(source: str, to: str, scale: tuple[str, str] = ("s", "z")) -> list[onnx.NodeProto]:
    return [
        node("QuantizeLinear", [source, *scale], [f"{to}/q"]),
        node("DequantizeLinear", [f"{to}/q", *scale], [to]),
    ]


WHOLE = np.int8(100 * weight(4, 4, 1, 1).clip(-1, 1))
KERNEL = node("DequantizeLinear", ["w", "sw", "zw"], ["wf"])


@pytest.mark.parametrize(
    ("name", "activations", "per_channel"),
    [
        ("squeezenet", "uint8", True),
        ("squeezenet", "int8", False),
        pytest.param("shufflenet", "uint8", True, marks=pytest.mark.slow),
    ],
)
def test_a_quantized_network_has_the_operators_of_the_network(name: str, activations: str, per_channel: bool) -> None:
    made = quantized(light_model(name), activations=activations, per_channel=per_channel)
    found, floats = kinds(load_model(data(made)).graph), kinds(load_model(data(light_model(name))).graph)
    assert len(made.graph.node) > 3 * found.total()
    for kind in ("Conv", "Concat", "MaxPool", "AveragePool", "GlobalAveragePool", "Reshape", "Transpose", "Gemm"):
        assert found[kind] == floats[kind], kind
    assert found["QuantizeLinear"] == 1  # the network's input


def test_a_quantized_operator_counts_flops_as_in_floats_and_bytes_as_integers() -> None:
    floats = load_model(data(branches(channels=32))).graph
    whole = load_model(data(quantized(branches(channels=32)))).graph
    one, other = (next(o for o in graph.operators if o.integers("kernel_shape") == (3, 3)) for graph in (floats, whole))
    assert other.attribute("quantized") == "uint8"
    assert {*other.attributes} - {*one.attributes} == {("quantized", "uint8")}
    assert other.flops == one.flops
    spread = sum(spec.nbytes for spec in other.weights if spec.shape != (32, 32, 3, 3))  # scales and the like
    assert 4 * (other.nbytes - spread) == one.nbytes


def test_quantized_operators_are_not_merged() -> None:
    graph = load_model(data(quantized(branches()))).graph
    convolutions = [operator for operator in graph.operators if operator.type == "Conv"]
    assert len({operator.inputs for operator in convolutions}) == 1
    assert f"{convolutions[0].name!r} is quantized; only floating-point operators" in str(refusal(convolutions))


def test_a_separate_dequantize_linear_belongs_to_its_reader() -> None:
    nodes = [node("Relu", ["x"], ["a"]), node("QuantizeLinear", ["a", "s", "z"], ["q"])]
    for name in ("b", "c"):
        nodes += [node("DequantizeLinear", ["q", "s", "z"], [f"{name}/f"]), node("Tanh", [f"{name}/f"], [name])]
    graph = loaded(nodes, ["b", "c"])
    assert [operator.nodes for operator in graph.operators] == [("a", "q"), ("b/f", "b"), ("c/f", "c")]


def test_weights_that_are_quantized_in_the_model_belong_to_the_operator() -> None:
    nodes = [*pair("w", "wf", ("sw", "zw")), *pair("x", "xf"), node("Conv", ["xf", "wf"], ["y"])]
    graph = loaded(nodes, ["y"], w=weight(4, 4, 1, 1))
    assert [operator.nodes for operator in graph.operators] == [("xf/q", "xf"), ("wf/q", "wf", "y")]
    assert graph.operators[1].integer("out_channels") == 4
    assert not graph.operators[1].merges


def test_weights_of_two_operators_are_dequantized_separately() -> None:
    nodes = [KERNEL, node("Conv", ["x", "wf"], ["a"]), node("Conv", ["a", "wf"], ["y"])]
    graph = loaded(nodes, ["y"], w=WHOLE)
    assert [operator.type for operator in graph.operators] == ["DequantizeLinear", "Conv", "Conv"]


def test_a_computed_scale_prevents_fusion() -> None:
    nodes = [node("ReduceMax", ["x"], ["s2"], keepdims=0), node("Relu", ["x"], ["a"]), *pair("a", "y", ("s2", "z"))]
    assert kinds(loaded(nodes, ["y"]))["Relu"] == 1
    assert len(loaded(nodes, ["y"]).operators) == 4


def test_graph_outputs_are_not_fused_away() -> None:
    nodes = [node("Relu", ["x"], ["a"]), *pair("a", "b"), node("Tanh", ["b"], ["y"])]
    assert [operator.nodes for operator in loaded(nodes, ["a", "y"]).operators] == [("a",), ("b/q", "b"), ("y",)]
    returned = loaded(nodes, ["b", "y"]).by_name["b"]
    assert (returned.nodes, returned.nbytes) == (("a", "b/q", "b"), 2 * 4 * 4 * 8 * 8 + 4 + 1)  # floats leave it


@pytest.mark.parametrize("with_pairs", [True, False])
def test_quantized_operators_are_listed_by_name(with_pairs: bool) -> None:
    whole = load_model(data(quantized(branches(), with_pairs=with_pairs))).graph
    assert quantized_operators(whole) == tuple(operator.name for operator in whole.operators)
    assert not quantized_operators(load_model(data(branches())).graph)


def test_dynamic_quantization_is_a_separate_operator() -> None:
    whole = load_model(data(quantized_in_the_run(light_model("squeezenet")))).graph
    found = kinds(whole)
    assert found["ConvInteger"] == 26
    assert found.keys() == {"DynamicQuantizeLinear", "ConvInteger", "MaxPool", "Concat", "GlobalAveragePool"}
    assert not any(operator.merges for operator in whole.operators if operator.type == "ConvInteger")
    assert {operator.node_types for operator in whole.operators if operator.type == "ConvInteger"} == {
        ("Mul", "ConvInteger", "Cast", "Mul", "Add", "Relu")
    }


def test_scales_and_sums_with_other_readers_are_not_fused() -> None:
    nodes = [
        node("DynamicQuantizeLinear", ["x"], ["q", "qs", "qz"]),
        node("Mul", ["qs", "sw"], ["scale"]),
        node("ConvInteger", ["q", "w", "qz"], ["i"]),
        node("Cast", ["i"], ["f"], to=1),
        node("Mul", ["f", "scale"], ["y"]),
    ]
    apart = [("q", "qs", "qz"), ("scale",), ("i", "f", "y")]
    assert [operator.nodes for operator in loaded(nodes, ["y", "scale"], w=WHOLE).operators][1:] == apart[1:]
    assert len(loaded(nodes, ["y", "f"], w=WHOLE).operators) == 5
