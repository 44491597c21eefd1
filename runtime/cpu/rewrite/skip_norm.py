"""Splits sums that onnxruntime fused with a normalization back into two nodes.

Its fused kernel takes four to eight times as long as a sum and a normalization in sequence, on rows of 256 and 768
numbers (`benchmarks/skip_norm.py`, `benchmarks/results/skip_norm.json`). Two nodes can also be divided by rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx
from onnx.helper import make_node

from iosched.models.editable_graph import EditableGraph
from iosched.models.node_attributes import number

_PLAIN = {
    "SkipLayerNormalization": ("LayerNormalization", 4),
    "SkipSimplifiedLayerNormalization": ("SimplifiedLayerNormalization", 3),
}
"""For each fused kernel: the plain normalization, and the position of a bias operand that is added too. Operands before
it, after the two summands, belong to the normalization.
"""
_EPSILON = 1e-12  # default; that of onnxruntime's plain normalization differs
_SUM = 3  # position of the sum among the results


def decompose_skip_norms(graph: EditableGraph) -> None:
    """Replace such kernels; O(nodes). Results differ by a few ulps."""
    for node in graph.nodes:
        if _is_known(graph, node):
            _spell_out(graph, node)


def _is_known(graph: EditableGraph, node: onnx.NodeProto) -> bool:
    if node.domain != "com.microsoft" or node.op_type not in _PLAIN or any(node.output[1:_SUM]):
        return False
    spec = graph.tensors[node.output[0]]
    return spec.dtype == "float32" and spec.is_static


def _spell_out(graph: EditableGraph, node: onnx.NodeProto) -> None:
    kind, place = _PLAIN[node.op_type]
    image, skip, *scales = node.input[:place]
    result, bias = node.output[0], _at(node.input, place)
    made: list[onnx.NodeProto] = []
    if bias:
        biased = graph.add_tensor(f"{result}/inner", result)
        made.append(make_node("Add", [image, bias], [biased], name=biased))
        image = biased
    total = _at(node.output, _SUM) or graph.add_tensor(f"{result}/inner", result)
    made.append(make_node("Add", [image, skip], [total], name=total))
    epsilon, inputs = number(node, "epsilon", _EPSILON), [total, *filter(None, scales)]
    graph.replace(result, *made, make_node(kind, inputs, [result], name=node.name, epsilon=epsilon))


def _at(names: Sequence[str], place: int) -> str:
    return names[place] if place < len(names) else ""
