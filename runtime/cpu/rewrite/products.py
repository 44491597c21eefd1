"""Transposes constant matrices that multiply a single row, so that the product can be divided among cores."""

from __future__ import annotations

import numpy as np
import onnx

from iosched.models.editable_graph import EditableGraph, node_name
from iosched.models.node_attributes import assign, integer

_MAX_NBYTES = 64 << 20  # larger ones are not copied
_OPTIONAL_BIAS_OPSET = 11  # of Gemm


def transpose_row_weights(graph: EditableGraph) -> None:
    """Transpose every constant matrix that multiplies one row; O(nodes + weights of such products).

    A slice of the row's results is then a contiguous slice of rows of the matrix.
    """
    for node in graph.nodes:
        if not _is_row_by_columns(graph, node):
            continue
        row, matrix, *rest = node.input
        turned = graph.add_weight(graph.fresh(f"{matrix}/rows"), np.ascontiguousarray(graph.weights[matrix].T))
        node.op_type = "Gemm" if node.op_type == "MatMul" else node.op_type
        assign(node, transB=1)
        graph.set_inputs(node_name(node), [row, turned, *rest])
    graph.drop_unread_weights()


def _is_row_by_columns(graph: EditableGraph, node: onnx.NodeProto) -> bool:
    if (node.domain, node.op_type) not in (("", "MatMul"), ("", "Gemm"), ("com.microsoft", "FusedGemm")):
        return False
    if node.op_type == "MatMul" and graph.opset < _OPTIONAL_BIAS_OPSET:
        return False
    row, matrix = graph.tensors.get(node.input[0]), graph.weights.get(node.input[1])
    if row is None or matrix is None or matrix.dtype != np.float32 or matrix.ndim != 2 or matrix.nbytes > _MAX_NBYTES:
        return False
    is_one_row = row.shape is not None and len(row.shape) == 2 and row.shape[0] == 1
    return is_one_row and not integer(node, "transA") and not integer(node, "transB")
