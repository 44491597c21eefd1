"""Sums that onnxruntime makes one kernel with the normalization behind them, as two nodes again.

Its kernel for both takes four to eight times as long as its kernels for a sum and for a normalization one after the
other, on rows of 256 and 768 numbers (`benchmarks/skip_norm.py`, `benchmarks/results/skip_norm.json`). As two nodes
they are also shared out between rows.
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
"""For each kernel of onnxruntime's that adds first: the one that only normalizes, and the place of a bias among the
operands, which is added too. Operands before it, behind the two that are always added, belong to the normalization."""
_EPSILON = 1e-12  # where the node has none; onnxruntime's kernels for normalization alone have another default
_SUM = 3  # the place of the sum among the results


def spell_out_skip_norms(graph: EditableGraph) -> None:
    """Replace such kernels; O(nodes). Results differ by a few units in the last place."""
    for node in graph.nodes:
        if _is_known(graph, node):
            _spell_out(graph, node)


def _is_known(graph: EditableGraph, node: onnx.NodeProto) -> bool:
    if node.domain != "com.microsoft" or node.op_type not in _PLAIN or any(node.output[1:_SUM]):
        return False
    spec = graph.tensors[node.output[0]]
    return spec.dtype == "float32" and spec.is_static


def _spell_out(graph: EditableGraph, node: onnx.NodeProto) -> None:
    """The sum of two or, with a bias, of three, and its normalization."""
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
    """The name at a place; "" where there is none."""
    return names[place] if place < len(names) else ""
