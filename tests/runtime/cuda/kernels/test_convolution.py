"""A convolution with nodes folded into it computes the same as the nodes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from iosched.models.load import load_model
from iosched.models.model import Model
from iosched.runtime.cuda.builder import Builder
from iosched.runtime.cuda.kernel import Precision
from iosched.runtime.cuda.kernels.conv import Convolution, fused_convolution, merged_convolution, output_shape

RANDOM = np.random.default_rng(0)


def array(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def model_of(nodes: list[onnx.NodeProto], weights: dict[str, np.ndarray], output: str = "y") -> Model:
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 6, 9, 8])],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return load_model(made.SerializeToString(), name="small")


def folded(model: Model, name: str) -> Convolution | None:
    nodes = {node.output[0]: node for node in model.proto.graph.node}
    operator = model.graph.by_name[name]
    return fused_convolution(Builder.of(model, Precision("fp32")), [nodes[n] for n in operator.nodes], operator)


def computed(found: Convolution, x: np.ndarray, residual: np.ndarray | float = 0.0) -> np.ndarray:
    """The convolution by onnxruntime, the rest by numpy."""
    node = helper.make_node(
        "Conv", ["x", "w", "b"], ["y"], pads=found.pads, strides=found.strides, dilations=found.dilations,
        group=found.groups,
    )  # fmt: skip
    graph = helper.make_graph(
        [node],
        "one",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [
            numpy_helper.from_array(found.weight.astype(np.float32), "w"),
            numpy_helper.from_array(found.bias.astype(np.float32), "b"),
        ],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    source = np.maximum(x, 0) if found.leading_relu else x
    (y,) = onnxruntime.InferenceSession(made.SerializeToString()).run(None, {"x": source})
    return found.activation(y + residual)


def expected(model: Model, x: np.ndarray, name: str = "y") -> np.ndarray:
    assert isinstance(model.original, bytes)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model.original, options).run([name], {"x": x})[0]


CONV = helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1, 0, 1, 2], strides=[2, 1])
BATCH_NORM = helper.make_node("BatchNormalization", ["c", "g", "s", "m", "v"], ["n"], epsilon=1e-3)
SCALE = helper.make_node("Mul", ["n", "k"], ["o"])
SHIFT = helper.make_node("Add", ["t", "o"], ["p"])
CONSTANTS = {
    "w": array(4, 6, 3, 3), "b": array(4), "g": array(4), "s": array(4), "m": array(4), "v": array(4) ** 2 + 0.1,
    "k": array(1, 4, 1, 1), "t": array(4, 1, 1),
}  # fmt: skip


@pytest.mark.parametrize("activation", ["Relu", "LeakyRelu", "HardSwish", "Sigmoid"])
def test_normalization_scale_shift_and_activation(activation: str) -> None:
    model = model_of([CONV, BATCH_NORM, SCALE, SHIFT, helper.make_node(activation, ["p"], ["y"])], CONSTANTS)
    found = folded(model, "y")
    assert found is not None
    x = array(2, 6, 9, 8)
    np.testing.assert_allclose(computed(found, x), expected(model, x), rtol=1e-4, atol=1e-4)
    assert output_shape(x.shape, found) == expected(model, x).shape


def test_a_residual_is_added_before_the_activation() -> None:
    side = helper.make_node("Conv", ["x", "w2"], ["r"])
    weights = {"w": array(4, 6, 3, 3), "w2": array(4, 6, 1, 1)}
    nodes = [
        side,
        helper.make_node("Relu", ["r"], ["q"]),
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1] * 4),
        helper.make_node("Add", ["q", "c"], ["a"]),
        helper.make_node("Relu", ["a"], ["y"]),
    ]
    model = model_of(nodes, weights)
    found = folded(model, "y")
    assert found is not None
    assert found.residual == "q"
    x = array(2, 6, 9, 8)
    np.testing.assert_allclose(
        computed(found, x, expected(model_of(nodes[:2], {"w2": weights["w2"]}, "q"), x, "q")),
        expected(model, x), rtol=1e-4, atol=1e-4,
    )  # fmt: skip


def test_a_leading_relu() -> None:
    nodes = [
        helper.make_node("Tanh", ["x"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Conv", ["r", "w"], ["y"]),
    ]
    model = model_of(nodes, {"w": array(4, 6, 1, 1)})
    found = folded(model, "y")
    assert found is not None
    assert (found.leading_relu, found.x) == (True, "h")


def test_a_constant_that_differs_between_pixels_is_not_folded() -> None:
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"]), helper.make_node("Mul", ["c", "k"], ["y"])]
    model = model_of(nodes, {"w": array(4, 6, 1, 1), "k": array(1, 1, 9, 8)})
    assert folded(model, "y") is None


def test_a_merged_convolution_computes_all_of_its_parts() -> None:
    x = array(1, 5, 7, 6)
    parts = [
        Convolution("x", RANDOM.standard_normal((out, 5, *kernel)), RANDOM.standard_normal(out), (1, 2), pads, (1, 1))
        for out, kernel, pads in [(3, (1, 1), (0, 0, 0, 0)), (2, (3, 1), (1, 0, 1, 0)), (4, (3, 5), (1, 2, 1, 2))]
    ]
    merged = merged_convolution(parts)
    assert merged.kernel_shape == (3, 5)
    np.testing.assert_allclose(
        computed(merged, x), np.concatenate([computed(part, x) for part in parts], axis=1), rtol=1e-4, atol=1e-5
    )


def test_dilated_parts_keep_their_taps_in_place() -> None:
    x = array(1, 5, 9, 9)
    one = Convolution("x", RANDOM.standard_normal((3, 5, 1, 1)), np.zeros(3), (1, 1), (0, 0, 0, 0), (2, 2))
    three = replace(one, weight=RANDOM.standard_normal((2, 5, 3, 3)), bias=np.ones(2), pads=(2, 2, 2, 2))
    np.testing.assert_allclose(
        computed(merged_convolution([one, three]), x),
        np.concatenate([computed(one, x), computed(three, x)], axis=1), rtol=1e-4, atol=1e-5,
    )  # fmt: skip
