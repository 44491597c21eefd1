"""Nodes that are split over cores, run part by part and compared with the whole."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper
from small_models import loaded

from iosched.runtime.cpu.kernel_graph import KernelGraph
from iosched.runtime.cpu.optimized import build_kernel_graph
from iosched.runtime.cpu.slicing import Share
from iosched.runtime.cpu.split import split
from iosched.runtime.inputs import random_inputs


def run_node(kernels: KernelGraph, one: onnx.NodeProto, values: Mapping[str, np.ndarray], weights) -> np.ndarray:
    """The first output of `one` alone in a model, with optimizations off."""
    constants = {name: weights.get(name, kernels.weights[name]) for name in one.input if name in kernels.weights}
    given_values = {name: values[name] for name in one.input if name in values}
    graph = helper.make_graph(
        [one],
        "one",
        [_info(*each) for each in given_values.items()],
        [onnx.ValueInfoProto(name=one.output[0])],
        [numpy_helper.from_array(np.asarray(array, order="C"), name) for name, array in constants.items()],
    )
    imports = [helper.make_opsetid(domain, version) for domain, version in kernels.opsets.items()]
    made = helper.make_model(graph, opset_imports=imports, ir_version=kernels.ir_version)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(made.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, given_values)[0]


def _info(name: str, array: np.ndarray) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)


def cut(array: np.ndarray, part: Share, name: str) -> np.ndarray:
    if name not in part.slices:
        return array
    piece = part.slices[name]
    return array.reshape(-1)[piece.start : piece.start + prod(piece.shape)].reshape(piece.shape)


def check_parts(kernels: KernelGraph, index: int, parts: tuple[Share, ...]) -> None:
    whole_node = kernels.nodes[index]
    values = random_inputs([kernels.tensors[name] for name in kernels.reads[index]], index)
    whole = run_node(kernels, whole_node, values, {})
    result = whole_node.output[0]
    assembled, written = np.zeros(whole.size, whole.dtype), np.zeros(whole.size, int)
    for part in parts:
        found = run_node(kernels, part.node, {n: cut(a, part, n) for n, a in values.items()}, part.weights)
        piece = part.slices[result]
        assert found.shape == piece.shape
        assembled[piece.start : piece.start + found.size] = found.reshape(-1)
        written[piece.start : piece.start + found.size] += 1
    assert (written == 1).all(), "parts overlap or leave something out"
    np.testing.assert_allclose(assembled.reshape(whole.shape), whole, rtol=1e-5, atol=1e-5)


def check_model(proto: onnx.ModelProto, parts: int) -> dict[tuple[str, str], int]:
    """Checks every node of the optimized model; how many parts each kind of node was cut into, at best."""
    kernels = build_kernel_graph(loaded(proto))
    found: dict[tuple[str, str], int] = {}
    for index, each in enumerate(kernels.nodes):
        pieces = split(kernels, index, parts)
        assert len(pieces) <= parts
        if pieces:
            check_parts(kernels, index, pieces)
        kind = (each.domain, each.op_type)
        found[kind] = max(found.get(kind, 0), len(pieces))
    return found
