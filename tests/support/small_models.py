"""Small models to call commands with."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def branches(batch: int | str = 1, channels: int = 8) -> onnx.ModelProto:
    """Two convolutions side by side, a Relu behind one, and their Concat."""
    rng = np.random.default_rng(1)

    def weight(name: str, kernel: int) -> TensorProto:
        values = rng.standard_normal((channels, channels, kernel, kernel)).astype(np.float32) / channels
        return numpy_helper.from_array(values, name)

    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"], kernel_shape=[1, 1]),
        helper.make_node("Conv", ["x", "w3"], ["b"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["c"]),
        helper.make_node("Concat", ["c", "b"], ["y"], axis=1),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, channels, 6, 6])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, 2 * channels, 6, 6])
    graph = helper.make_graph(nodes, "branches", [x], [y], [weight("w1", 1), weight("w3", 3)])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
