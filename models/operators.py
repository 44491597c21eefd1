"""Makes the computation graph of a working ONNX graph."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx

from iosched.models.attributes import unit_attributes
from iosched.models.costs import node_flops
from iosched.models.fusion import find_units
from iosched.models.fusion.view import GraphView, Unit
from iosched.models.graph import ComputationGraph, Operator, TensorSpec
from iosched.models.shapes import dtype_of, shape_of, tensor_specs, weight_spec
from iosched.models.wiring import is_standard, reads, writes


def computation_graph(name: str, graph: onnx.GraphProto, weights: Mapping[str, np.ndarray]) -> ComputationGraph:
    """The computation graph of `graph`, which has inferred shapes and whose nodes stand in topological order.

    Complexity: O(nodes + edges), in addition to that of finding the units.
    """
    view = GraphView(graph, weights, tensor_specs(graph))
    outputs = tuple(value.name for value in graph.output)
    units = find_units(view)
    operators = tuple(_operator(view, unit, frozenset(outputs)) for unit in units)
    inputs = tuple(TensorSpec(value.name, dtype_of(value.type), shape_of(value.type)) for value in graph.input)
    return ComputationGraph(name, inputs, outputs, operators, _computed_tensors(view))


def _computed_tensors(view: GraphView) -> tuple[TensorSpec, ...]:
    names = (name for node in view.nodes for name in writes(node))
    return tuple(view.specs.get(name) or TensorSpec(name, "", None) for name in names)


def _operator(view: GraphView, unit: Unit, returned: frozenset[str]) -> Operator:
    nodes = [view.nodes[index] for index in unit.nodes]
    inner = {name for node in nodes for name in writes(node)}
    read = dict.fromkeys(name for node in nodes for name in reads(node) if name not in inner)
    inputs = tuple(name for name in read if name not in view.weights)
    weights = tuple(weight_spec(name, view.weights[name]) for name in read if name in view.weights)
    outputs = _outputs(view, nodes[-1], returned)
    moved = (*(view.specs.get(_stored(view, name, returned)) for name in (*inputs, *outputs)), *weights)
    anchor = view.nodes[unit.anchor]
    return Operator(
        name=outputs[0],
        type=unit.type if is_standard(anchor) else f"{anchor.domain}::{unit.type}",
        nodes=tuple(node.name for node in nodes),
        inputs=inputs,
        outputs=outputs,
        attributes=unit_attributes(view, unit),
        weights=weights,
        flops=sum(_flops(view, node) for node in nodes),
        nbytes=sum(spec.nbytes for spec in moved if spec is not None),
        node_types=tuple(node.op_type for node in nodes),
        merges=unit.merges,
    )


def _outputs(view: GraphView, last: onnx.NodeProto, returned: frozenset[str]) -> tuple[str, ...]:
    first, *rest = writes(last)
    return (first, *(name for name in rest if view.uses[name] or name in returned))


def _stored(view: GraphView, name: str, returned: frozenset[str]) -> str:
    """The tensor that lies in memory between operators: of one that is only dequantized, the whole numbers."""
    index = view.producer.get(name)
    is_passing = index is not None and name not in returned and view.is_dequantize(index)
    return str(view.nodes[index].input[0]) if index is not None and is_passing else name


def _flops(view: GraphView, node: onnx.NodeProto) -> int:
    return node_flops(node, [_shape(view, name) for name in node.input], [_shape(view, name) for name in node.output])


def _shape(view: GraphView, name: str) -> tuple[int, ...] | None:
    if name in view.weights:
        return view.weights[name].shape
    spec = view.specs.get(name)
    return None if spec is None else spec.shape
