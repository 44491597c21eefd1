"""A ReLU and the fusion of a dense 1x1 convolution: the Relu-Conv unit of NASNet."""

from __future__ import annotations

from dataclasses import replace

import onnx

from iosched.models.editable_graph import EditableGraph, node_name
from iosched.models.fusion.queries import Fusion, Fusions, constant_from, is_op, kernel, only_reader
from iosched.models.node_attributes import integer


def match(graph: EditableGraph, node: onnx.NodeProto, fusions: Fusions) -> Fusion | None:
    """The fusion with leading ReLU `node`, unless that is the activation of an earlier fusion."""
    reader = only_reader(graph, node)
    fusion = fusions.of(reader)
    if reader is None or fusion is None or fusion.type != "Conv" or leading_relu(graph, reader, fusions) is not node:
        return None
    return replace(fusion, type="ReluConv", nodes=(node_name(node), *fusion.nodes))


def leading_relu(graph: EditableGraph, node: onnx.NodeProto, fusions: Fusions) -> onnx.NodeProto | None:
    """The ReLU that only the dense 1x1 convolution `node` reads; None if a fusion has it."""
    if not is_op(node, "Conv") or not constant_from(graph, node, 1):
        return None
    relu = graph.producer(node.input[0])
    if relu is None or fusions.of(relu) or not is_op(relu, "Relu") or only_reader(graph, relu) is not node:
        return None
    is_dense = set(kernel(graph, node)[2:]) == {1} and integer(node, "group", 1) == 1
    return relu if is_dense and not _ends_a_sum(graph, relu) else None


def _ends_a_sum(graph: EditableGraph, node: onnx.NodeProto) -> bool:
    """Whether ReLU `node` is the only reader of a sum of computed values, and so belongs to the sum."""
    before = graph.producer(node.input[0])
    if before is None or only_reader(graph, before) is not node:
        return False
    if is_op(before, "Concat") and len(before.input) == 1:
        return True
    return is_op(before, "Add", "Sum") and not any(name in graph.weights for name in before.input)
