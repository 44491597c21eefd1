"""Computes a model's `Structure`: the form of each operator, and an order that depends on the wiring alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from iosched.models.digest import array_digest, opsets_of, since
from iosched.models.graph import ComputationGraph, Operator
from iosched.models.node_attributes import plain_values
from iosched.models.structure import NodeForm, OperatorForm, PlacedOperator, Structure
from iosched.models.wiring import captures, dependencies_first, is_standard, writes

_MAX_SHOWN = 16  # a constant of more elements is shown by its hash
_MAX_NCHARS = 200  # an attribute of more characters is shown by its hash
_INTEGERS = ("int32", "int64", "uint32", "uint64", "bool")  # integers of less than 32 bits are quantized weights
# Input positions by op type: floats that are attributes in older opsets, and integers that are quantized weights.
_DEFINING_FLOATS = {
    "Clip": (1, 2),
    "NonMaxSuppression": (3, 4),
    "Pad": (2,),
    "Resize": (1, 2),
    "Upsample": (1,),
}
_QUANTIZED = {"DequantizeLinear": (0, 2), "QLinearConv": (8,)}


def structure_of(proto: onnx.ModelProto, weights: Mapping[str, np.ndarray], graph: ComputationGraph) -> Structure:
    """The structure of a working graph. O(nodes + edges + bytes of constants that define behaviour).

    Operators are ordered from the graph's outputs, operand by operand, each after those that it reads. Weight values
    and tensor names are not part of the structure, except for constants that define a node's behaviour (a Reshape's
    shape, a Slice's bounds, axes, a Clip's bounds) and names in subgraphs.
    """
    forms = _Forms(weights, opsets_of(proto), {node.name: node for node in proto.graph.node})
    found = {operator.name: _form_of(operator, graph, forms) for operator in graph.operators}
    producer = graph.producer
    returned = [producer[name] for name in graph.outputs if name in producer]
    order = dependencies_first(returned, lambda name: (producer[each] for each in found[name][1] if each in producer))
    number = {name: index for index, name in enumerate(_tensors(graph, order, found))}
    specs = {spec.name: tensor_text(spec.dtype, spec.shape) for spec in graph.inputs}
    return Structure(
        inputs=tuple((name, specs[name]) for name in number if name in specs),
        operators=tuple(
            PlacedOperator(name, found[name][0], tuple(number[each] for each in found[name][1])) for name in order
        ),
        outputs=tuple(number[name] for name in graph.outputs),
    )


@dataclass(frozen=True, eq=False)
class _Forms:
    weights: Mapping[str, np.ndarray]
    opsets: Mapping[str, int]
    nodes: Mapping[str, onnx.NodeProto]


def _tensors(
    graph: ComputationGraph, order: list[str], found: Mapping[str, tuple[OperatorForm, tuple[str, ...]]]
) -> Iterator[str]:
    """The tensors in the order of their numbers: inputs as operators read them, other inputs, operators' outputs."""
    inputs = {spec.name: spec for spec in graph.inputs}
    read = dict.fromkeys(name for operator in order for name in found[operator][1] if name in inputs)
    read.update(dict.fromkeys(name for name in graph.outputs if name in inputs))
    yield from read
    unread = [spec for spec in graph.inputs if spec.name not in read]
    yield from (spec.name for spec in sorted(unread, key=lambda spec: (spec.dtype, str(spec.shape))))
    yield from (name for operator in order for name in graph.by_name[operator].outputs)


def _form_of(operator: Operator, graph: ComputationGraph, forms: _Forms) -> tuple[OperatorForm, tuple[str, ...]]:
    nodes = walked([forms.nodes[name] for name in operator.nodes])
    inner = {name: node for node in nodes for name in writes(node)}
    last, place = nodes[-1], {node.name: index for index, node in enumerate(nodes)}
    ports: dict[str, int] = {}

    def text(node: onnx.NodeProto, position: int, name: str) -> str:
        if name in inner:
            return _inner_text(inner[name], name, place)
        if name in forms.weights:
            return _weight_text(node, position, forms.weights[name])
        return f"port {ports.setdefault(name, len(ports))}" if name else ""

    described = []
    for node in nodes:
        reads = tuple(text(node, position, name) for position, name in enumerate(slots(node)))
        described.append(NodeForm(_type(node), since(node, forms.opsets), _attributes(node), reads))
    outputs = tuple(_output_text(last, name, graph) for name in operator.outputs)
    return OperatorForm(operator.type, tuple(described), outputs), tuple(ports)


def walked(nodes: Sequence[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """An operator's nodes in the order of its form: operand by operand, from the last node back."""
    inner = {name: node for node in nodes for name in writes(node)}
    named = {node.name: node for node in nodes}
    order = dependencies_first([nodes[-1].name], lambda name: (inner[n].name for n in slots(named[name]) if n in inner))
    return [named[name] for name in order]


def slots(node: onnx.NodeProto) -> tuple[str, ...]:
    """The tensors that a node reads: its inputs by position ("" if omitted), then the captures of its subgraphs."""
    return (*node.input, *captures(node))


def _type(node: onnx.NodeProto) -> str:
    return node.op_type if is_standard(node) else f"{node.domain}::{node.op_type}"


def _attributes(node: onnx.NodeProto) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((key, _short(repr(value))) for key, value in plain_values(node).items()))


def _short(text: str) -> str:
    return text if len(text) <= _MAX_NCHARS else f"sha256:{array_digest(np.frombuffer(text.encode(), np.uint8))[:16]}"


def _inner_text(node: onnx.NodeProto, name: str, place: Mapping[str, int]) -> str:
    output = list(node.output).index(name)
    return f"node {place[node.name]}" + (f" output {output}" if output else "")


def _weight_text(node: onnx.NodeProto, position: int, array: np.ndarray) -> str:
    dtype = "string" if array.dtype == object else array.dtype.name
    spec = tensor_text(dtype, array.shape)
    if not counts_in_form(node, position, dtype):
        return spec
    if array.size > _MAX_SHOWN:
        return f"{spec} = sha256:{array_digest(array)[:16]}"
    return f"{spec} = {array.item() if array.ndim == 0 else tuple(array.reshape(-1).tolist())}"


def counts_in_form(node: onnx.NodeProto, position: int, dtype: str) -> bool:
    """Whether a constant defines what the node does (an axis, a bound) rather than being data."""
    if dtype in _INTEGERS:
        return not (is_standard(node) and position in _QUANTIZED.get(node.op_type, ()))
    return is_standard(node) and position in _DEFINING_FLOATS.get(node.op_type, ())


def _output_text(node: onnx.NodeProto, name: str, graph: ComputationGraph) -> str:
    output = list(node.output).index(name)
    spec = graph.tensor[name]
    return tensor_text(spec.dtype, spec.shape) + (f" (output {output})" if output else "")


def tensor_text(dtype: str, shape: tuple[int, ...] | None) -> str:
    """A tensor's type as text: "float32 1x3x224x224"."""
    sizes = "of unknown shape" if shape is None else "x".join(map(str, shape)) or "scalar"
    return f"{dtype or 'unknown'} {sizes}"
