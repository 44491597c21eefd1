"""Products of one row with a constant matrix, the matrix laid out by results, so that they can be split over cores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import onnx

from iosched.models.node_attributes import assign, integer
from iosched.models.wiring import reads
from iosched.runtime.cpu.kernel_graph import KernelGraph
from iosched.runtime.cpu.working import fresh_name

_MAX_NBYTES = 64 << 20  # larger ones are not copied
_OPTIONAL_BIAS_OPSET = 11  # of Gemm


def lay_out_by_results(kernels: KernelGraph) -> KernelGraph:
    """The graph with every matrix that one row is multiplied by transposed; O(nodes + weights of such products).

    A part of the results of one row is then a part of the rows of the matrix, which is contiguous.
    """
    nodes, weights = list(kernels.nodes), dict(kernels.weights)
    for index, node in enumerate(nodes):
        if not _is_row_by_columns(kernels, node):
            continue
        name = fresh_name(f"{node.input[1]}/rows", weights, kernels.tensors)
        weights[name] = np.ascontiguousarray(kernels.weights[node.input[1]].T)
        made = onnx.NodeProto()
        made.CopyFrom(node)
        made.input[1] = name
        made.op_type = "Gemm" if node.op_type == "MatMul" else node.op_type
        assign(made, transB=1)
        nodes[index] = made
    return replace(kernels, nodes=tuple(nodes), weights=_used(weights, nodes, kernels.outputs))


def _is_row_by_columns(kernels: KernelGraph, node: onnx.NodeProto) -> bool:
    if (node.domain, node.op_type) not in (("", "MatMul"), ("", "Gemm"), ("com.microsoft", "FusedGemm")):
        return False
    if node.op_type == "MatMul" and kernels.opsets.get("", 0) < _OPTIONAL_BIAS_OPSET:
        return False
    row, matrix = kernels.tensors.get(node.input[0]), kernels.weights.get(node.input[1])
    if row is None or matrix is None or matrix.dtype != np.float32 or matrix.ndim != 2 or matrix.nbytes > _MAX_NBYTES:
        return False
    is_one_row = row.shape is not None and len(row.shape) == 2 and row.shape[0] == 1
    return is_one_row and not integer(node, "transA") and not integer(node, "transB")


def _used(
    weights: Mapping[str, np.ndarray], nodes: list[onnx.NodeProto], outputs: tuple[str, ...]
) -> dict[str, np.ndarray]:
    used = {name for node in nodes for name in reads(node)}.union(outputs)
    return {name: array for name, array in weights.items() if name in used}
