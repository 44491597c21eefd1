"""Dequantizes integer weights of float kernels once instead of in every run.

Without an integer kernel, as for int8 by int8 convolutions on x86, onnxruntime runs a float one and dequantizes its
weights each time. Such a convolution can also be divided only if its weights are constants.
"""

from __future__ import annotations

import numpy as np
import onnx

from iosched.models.editable_graph import EditableGraph, node_name
from iosched.runtime.session import DERIVED, load_onnxruntime, open_session

_MAX_NBYTES = 64 << 20  # of one result


def dequantize_weights(graph: EditableGraph) -> None:
    """Move the results of every DequantizeLinear of constants to the weights, bit for bit; O(weights)."""
    for node in graph.nodes:
        if _is_constant(graph, node):
            value = _computed(graph, node)
            graph.remove(node_name(node))
            graph.add_weight(node.output[0], value)
    graph.drop_unread_weights()


def _is_constant(graph: EditableGraph, node: onnx.NodeProto) -> bool:
    if node.op_type != "DequantizeLinear" or any(name and name not in graph.weights for name in node.input):
        return False
    return graph.tensors[node.output[0]].nbytes <= _MAX_NBYTES


def _computed(graph: EditableGraph, node: onnx.NodeProto) -> np.ndarray:
    weights = {name: graph.weights[name] for name in node.input if name}
    made = onnx.helper.make_graph([node], "constant", [], [onnx.ValueInfoProto(name=node.output[0])])
    made.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in weights.items())
    proto = onnx.ModelProto(ir_version=graph.frame.ir_version, opset_import=graph.frame.opset_import, graph=made)
    options = load_onnxruntime().SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    array: np.ndarray = open_session(proto.SerializeToString(), options, called=DERIVED).run(None, {})[0]
    return array
