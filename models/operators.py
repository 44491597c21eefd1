"""Makes the computation graph of a working ONNX graph."""

from __future__ import annotations

import onnx

from iosched.models.attributes import unit_attributes
from iosched.models.costs import node_flops
from iosched.models.editable_graph import EditableGraph
from iosched.models.fusion import find_units
from iosched.models.fusion.queries import Unit, is_dequantize
from iosched.models.graph import ComputationGraph, Operator, TensorSpec
from iosched.models.shapes import weight_spec
from iosched.models.wiring import is_standard, reads, writes


def computation_graph(name: str, graph: EditableGraph) -> ComputationGraph:
    """The computation graph of `graph`, whose types are inferred and whose nodes stand in topological order.

    Complexity: O(nodes + edges), in addition to that of finding the units.
    """
    operators = tuple(_operator(graph, unit) for unit in find_units(graph))
    inputs = tuple(graph.tensors[name] for name in graph.inputs)
    computed = (name for node in graph.nodes for name in writes(node))
    tensors = tuple(graph.tensors.get(name) or TensorSpec(name, "", None) for name in computed)
    return ComputationGraph(name, inputs, tuple(graph.outputs), operators, tensors)


def _operator(graph: EditableGraph, unit: Unit) -> Operator:
    nodes = [graph.node(name) for name in unit.nodes]
    inner = {name for node in nodes for name in writes(node)}
    read = dict.fromkeys(name for node in nodes for name in reads(node) if name not in inner)
    inputs = tuple(name for name in read if name not in graph.weights)
    weights = tuple(weight_spec(name, graph.weights[name]) for name in read if name in graph.weights)
    first, *rest = writes(nodes[-1])
    outputs = (first, *(name for name in rest if graph.uses(name)))
    moved = (*(graph.tensors.get(_stored(graph, name)) for name in (*inputs, *outputs)), *weights)
    anchor = graph.node(unit.anchor)
    return Operator(
        name=first,
        type=unit.type if is_standard(anchor) else f"{anchor.domain}::{unit.type}",
        nodes=tuple(node.name for node in nodes),
        inputs=inputs,
        outputs=outputs,
        attributes=unit_attributes(graph, unit),
        weights=weights,
        flops=sum(_flops(graph, node) for node in nodes),
        nbytes=sum(spec.nbytes for spec in moved if spec is not None),
        node_types=tuple(node.op_type for node in nodes),
        merges=unit.merges,
    )


def _stored(graph: EditableGraph, name: str) -> str:
    """The tensor that lies in memory between operators: of one that is only dequantized, the whole numbers."""
    node = graph.producer(name)
    is_passing = node is not None and name not in graph.outputs and is_dequantize(node)
    return str(node.input[0]) if node is not None and is_passing else name


def _flops(graph: EditableGraph, node: onnx.NodeProto) -> int:
    return node_flops(node, [_shape(graph, name) for name in node.input], [_shape(graph, name) for name in node.output])


def _shape(graph: EditableGraph, name: str) -> tuple[int, ...] | None:
    if name in graph.weights:
        return graph.weights[name].shape
    spec = graph.tensors.get(name)
    return None if spec is None else spec.shape
