"""Shapes are inferred as onnxruntime's kernels compute them, also where its own inference differs."""

from __future__ import annotations

from itertools import product

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from small_models import loaded, proto_of, weight

from iosched.models.editable_graph import EditableGraph
from iosched.models.shapes.inference import infer

node = helper.make_node
WINDOWS = list(product((5, 6, 7, 13), (1, 2, 3), (1, 2, 3)))
"""Sizes of images, extents of windows, and strides."""


def graph_of(proto: onnx.ModelProto) -> EditableGraph:
    return EditableGraph.of(proto, {each.name: numpy_helper.to_array(each) for each in proto.graph.initializer})


def shapes(proto: onnx.ModelProto) -> dict[str, tuple[int, ...] | None]:
    graph = graph_of(proto)
    infer(graph)
    return {name: spec.shape for name, spec in graph.tensors.items()}


def computed(proto: onnx.ModelProto) -> dict[str, tuple[int, ...]]:
    """Shapes of the outputs, if onnxruntime runs the model."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    feeds = {each.name: np.zeros(each.shape, np.float32) for each in session.get_inputs()}
    try:
        found = session.run(None, feeds)
    except onnxruntime.capi.onnxruntime_pybind11_state.RuntimeException:
        return {}
    return {each.name: array.shape for each, array in zip(session.get_outputs(), found, strict=True)}


@pytest.mark.parametrize(("kind", "opset"), [("MaxPool", 17), ("AveragePool", 19), ("LpPool", 18), ("MaxPool", 22)])
@pytest.mark.parametrize("pads", ["none", "all", "behind", "SAME_UPPER", "SAME_LOWER", "VALID"])
def test_pools(kind: str, opset: int, pads: str) -> None:
    """Side by side in one model, each as it would be alone."""
    explicit = {"none": [0] * 4, "all": [1] * 4, "behind": [0, 0, 1, 1]}.get(pads)
    for size in (5, 6, 7, 13):
        nodes = []
        for (_, extent, stride), dilation, rounds_up in product(WINDOWS[:9], (1, 2), (0, 1)):
            if (explicit and max(explicit) >= extent) or (explicit is None and pads != "VALID" and stride > extent):
                continue  # refused, and refused by some kinds of pools
            where = {"pads": explicit} if explicit else {"auto_pad": pads}
            window = {"kernel_shape": [extent] * 2, "strides": [stride] * 2, "dilations": [dilation] * 2}
            if size + sum(explicit or ()) > dilation * extent:
                nodes.append(node(kind, ["x"], [f"y{len(nodes)}"], ceil_mode=rounds_up, **window, **where))
        proto = proto_of(nodes, {"x": (1, 2, size, size)}, [each.output[0] for each in nodes], opset=opset)
        found = shapes(proto)
        expected = computed(proto)
        assert expected
        assert {name: found[name] for name in expected} == expected


def test_consecutive_pools_and_their_readers() -> None:
    window = {"kernel_shape": [2, 2], "strides": [2, 2], "pads": [1] * 4, "ceil_mode": 1}
    nodes = [
        node("MaxPool", ["x"], ["a", "places"], **window),
        node("AveragePool", ["a"], ["b"], **window),
        node("Relu", ["b"], ["c"]),
        node("Flatten", ["c"], ["y"]),
    ]
    outputs = {"y": TensorProto.FLOAT, "places": TensorProto.INT64}
    proto = proto_of(nodes, {"x": (1, 4, 53, 53)}, outputs)
    assert shapes(proto) == {
        "x": (1, 4, 53, 53), "a": (1, 4, 27, 27), "places": (1, 4, 27, 27), "b": (1, 4, 14, 14), "c": (1, 4, 14, 14),
        "y": (1, 4 * 14 * 14),
    }  # fmt: skip
    graph = graph_of(proto)
    infer(graph)
    assert list(graph.nodes) == nodes
    assert shapes(graph.to_proto()) == shapes(proto)


def test_a_size_that_the_file_computes_from_a_pool() -> None:
    """For a dynamic batch, onnxruntime computes it at run time."""
    nodes = [
        node("MaxPool", ["x"], ["p"], kernel_shape=[2, 2], strides=[2, 2], pads=[1] * 4, ceil_mode=1),
        node("Shape", ["p"], ["size"]),
        node("Sigmoid", ["p"], ["q"]),
        node("Reshape", ["q", "size"], ["r"]),
        node("Add", ["r", "p"], ["y"]),
    ]
    proto = proto_of(nodes, {"x": ("batch", 4, 55, 55)}, ["y"])
    assert loaded(proto, batch_size=2).graph.tensor["y"].shape == (2, 4, 28, 28)


@pytest.mark.parametrize(("opset", "size", "factor"), [(10, 40, 3.3), (13, 40, 0.7), (18, 25, 2.6), (13, 9, 2.0)])
def test_images_resized_by_a_factor(opset: int, size: int, factor: float) -> None:
    names = ["x", "by"] if opset == 10 else ["x", "", "by"]
    weights = {"by": np.array([1, 1, factor, factor], np.float32)}
    proto = proto_of([node("Resize", names, ["y"])], {"x": (1, 2, size, size)}, ["y"], weights, opset=opset)
    assert shapes(proto)["y"] == computed(proto)["y"] == (1, 2, round(size * factor), round(size * factor))


@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("groups", [1, 2])
def test_transposed_convolutions_of_the_same_size(mode: str, groups: int) -> None:
    options = {"auto_pad": mode, "strides": [2, 2], "output_padding": [1, 1], "group": groups}
    nodes = [node("ConvTranspose", ["x", "w"], ["y"], **options)]
    proto = proto_of(nodes, {"x": (1, 4, 5, 6)}, ["y"], {"w": weight(4, 3, 3, 3)})
    assert shapes(proto)["y"] == computed(proto)["y"] == (1, 3 * groups, 10, 12)
