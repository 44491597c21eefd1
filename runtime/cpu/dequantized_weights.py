"""Weights in whole numbers that kernels for floats read: dequantized once, not in every run.

Where onnxruntime has no kernel in whole numbers, as for convolutions of int8 by int8 on x86, it runs one in floats, and
dequantizes its weights before it each time. Such a convolution can also be split only when its weights are constants.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx

from iosched.models.wiring import reads
from iosched.runtime.cpu.kernel_graph import KernelGraph
from iosched.runtime.session import DERIVED, load_onnxruntime, open_session

_MAX_NBYTES = 64 << 20  # of one result


def dequantize_weights(kernels: KernelGraph) -> KernelGraph:
    """The graph with the results of every DequantizeLinear of constants among its weights, bit for bit; O(weights)."""
    found = {node.output[0]: _computed(kernels, node) for node in kernels.nodes if _is_constant(kernels, node)}
    if not found:
        return kernels
    nodes = tuple(node for node in kernels.nodes if node.output[0] not in found)
    read = {name for node in nodes for name in reads(node)}.union(kernels.outputs)
    weights = {name: array for name, array in {**kernels.weights, **found}.items() if name in read}
    tensors = {name: spec for name, spec in kernels.tensors.items() if name not in found}
    return replace(kernels, nodes=nodes, weights=weights, tensors=tensors)


def _is_constant(kernels: KernelGraph, node: onnx.NodeProto) -> bool:
    if node.op_type != "DequantizeLinear" or any(name and name not in kernels.weights for name in node.input):
        return False
    return kernels.tensors[node.output[0]].nbytes <= _MAX_NBYTES


def _computed(kernels: KernelGraph, node: onnx.NodeProto) -> np.ndarray:
    """What onnxruntime computes of the node."""
    constants = [
        onnx.numpy_helper.from_array(kernels.weights[name], name) for name in dict.fromkeys(node.input) if name
    ]
    graph = onnx.helper.make_graph([node], "constant", [], [onnx.ValueInfoProto(name=node.output[0])], constants)
    opsets = [onnx.helper.make_opsetid(domain, version) for domain, version in kernels.opsets.items()]
    proto = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=kernels.ir_version)
    options = load_onnxruntime().SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    array: np.ndarray = open_session(proto.SerializeToString(), options, called=DERIVED).run(None, {})[0]
    array.flags.writeable = False
    return array
