"""Sums that onnxruntime makes one kernel with the normalization behind them, as two nodes again.

Its kernel for both takes four to eight times as long as its kernels for a sum and for a normalization one after the
other, on rows of 256 and 768 numbers (`benchmarks/skip_norm.py`, `benchmarks/results/skip_norm.json`). As two nodes
they are also shared out between rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import onnx
from onnx.helper import make_node

from iosched.models.graph import TensorSpec
from iosched.models.node_attributes import number
from iosched.runtime.cpu.kernel_graph import KernelGraph
from iosched.runtime.cpu.working import fresh_name

_PLAIN = {
    "SkipLayerNormalization": ("LayerNormalization", 4),
    "SkipSimplifiedLayerNormalization": ("SimplifiedLayerNormalization", 3),
}
"""For each kernel of onnxruntime's that adds first: the one that only normalizes, and the place of a bias among the
operands, which is added too. Operands before it, behind the two that are always added, belong to the normalization."""
_EPSILON = 1e-12  # where the node has none; onnxruntime's kernels for normalization alone have another default
_SUM = 3  # the place of the sum among the results


def spell_out_skip_norms(kernels: KernelGraph) -> KernelGraph:
    """The graph without such kernels; O(nodes). Results differ by a few units in the last place."""
    nodes: list[onnx.NodeProto] = []
    tensors = dict(kernels.tensors)
    for node in kernels.nodes:
        nodes.extend(_spelled_out(kernels, node, tensors) if _is_known(kernels, node) else (node,))
    return kernels if len(nodes) == len(kernels.nodes) else replace(kernels, nodes=tuple(nodes), tensors=tensors)


def _is_known(kernels: KernelGraph, node: onnx.NodeProto) -> bool:
    if node.domain != "com.microsoft" or node.op_type not in _PLAIN or any(node.output[1:_SUM]):
        return False
    spec = kernels.tensors[node.output[0]]
    return spec.dtype == "float32" and spec.is_static


def _spelled_out(
    kernels: KernelGraph, node: onnx.NodeProto, tensors: dict[str, TensorSpec]
) -> tuple[onnx.NodeProto, ...]:
    """The sum of two or, with a bias, of three, and its normalization; adds the new tensors to `tensors`."""
    kind, place = _PLAIN[node.op_type]
    result, scales = node.output[0], [name for name in node.input[2:place] if name]
    bias, total = _at(node.input, place), _at(node.output, _SUM)
    made: list[onnx.NodeProto] = []

    def added(one: str, other: str, name: str = "") -> str:
        name = name or fresh_name(f"{result}/inner", tensors, kernels.weights)
        tensors[name] = replace(tensors[result], name=name)
        made.append(make_node("Add", [one, other], [name], name=name))
        return name

    image = added(node.input[0], bias) if bias else node.input[0]
    total = added(image, node.input[1], total)
    epsilon = number(node, "epsilon", _EPSILON)
    return (*made, make_node(kind, [total, *scales], [result], name=node.name, epsilon=epsilon))


def _at(names: Sequence[str], place: int) -> str:
    """The name at a place; "" where there is none."""
    return names[place] if place < len(names) else ""
