"""A mutator's read-only view of a model: nodes, tensors and shapes.

Shapes come from onnx's inference, with additional checks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from types import MappingProxyType

import numpy as np
import onnx
from onnx.helper import np_dtype_to_tensor_dtype

from iosched.models.editable_graph import EditableGraph, node_name
from iosched.models.errors import InvalidModelError, UsageError, first_line
from iosched.models.graph import AttributeValue, TensorSpec
from iosched.models.initializers import describe_weight
from iosched.models.model import INLINE_NBYTES, Model
from iosched.models.node_attributes import integer, integers, plain_values
from iosched.models.shapes.inference import dtype_of, shape_of, weight_spec
from iosched.models.shapes.reshapes import keeps_size
from iosched.models.wiring import dependencies_first, is_standard, reads, topological_order, writes

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Node:
    """A node of the working graph.

    Attributes:
        name: its first output, which is unique.
        type: an ONNX op type ("Conv"), or "domain::Type" outside ONNX's own domain.
        inputs: the tensors that it reads, including weights; "" for omitted ones.
        outputs: the tensors that it computes; "" likewise.
        attributes: by name; tensors and graphs as hashes.
    """

    name: str
    type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, AttributeValue] = field(hash=False)


@dataclass(frozen=True, eq=False)
class GraphView:
    """A snapshot of the graph.

    Attributes:
        editable: nodes, weights and types, which must not be changed; more types are inferred on demand.
        outputs: the tensor that each graph output returns, at first of the same name.
    """

    editable: EditableGraph
    outputs: Mapping[str, str]

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of all graph inputs."""
        return tuple(self.editable.inputs)

    @property
    def weights(self) -> Mapping[str, np.ndarray]:
        """All constants by name; read-only."""
        return self.editable.weights

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes in topological order. O(nodes log nodes), once."""
        protos = self.editable.nodes
        return tuple(_shown(protos[index]) for index in topological_order(protos))

    def has_node(self, name: str) -> bool:
        """Whether there is a node of this name."""
        return self.editable.has_node(name)

    def node(self, name: str) -> Node:
        """The node of this name; raises `UsageError` if there is none."""
        if not self.editable.has_node(name):
            raise UsageError(f"the graph has no node {name!r}; a node is named by its first output")
        return _shown(self.editable.node(name))

    def producer(self, tensor: str) -> Node | None:
        """The node that computes a tensor; None for inputs, constants and unknown names."""
        proto = self.editable.producer(tensor)
        return None if proto is None else _shown(proto)

    def consumers(self, tensor: str) -> tuple[Node, ...]:
        """The nodes that read a tensor, each once, unordered."""
        return tuple(map(_shown, self.editable.consumers(tensor)))

    def spec(self, tensor: str) -> TensorSpec | None:
        """Type and shape of a tensor; None if it or its type is unknown. Raises as `infer`."""
        if tensor in self.weights:
            return weight_spec(tensor, self.weights[tensor])
        infer(self.editable, [tensor])
        value = self.editable.declared.get(tensor)
        if value is None or not dtype_of(value.type):
            return None
        return TensorSpec(tensor, dtype_of(value.type), shape_of(value.type))

    def shape(self, tensor: str) -> tuple[int, ...]:
        """The shape of a tensor or weight.

        Raises:
            UsageError: it is unknown before the run, or there is no such tensor.
            InvalidModelError: shapes before it do not fit.
        """
        spec = self.spec(tensor)
        if spec is None or spec.shape is None:
            reason = "it is not known before the run" if self.has(tensor) else "there is no such tensor"
            raise UsageError(f"tensor {tensor!r} has no known shape: {reason}")
        return spec.shape

    def has(self, tensor: str) -> bool:
        """Whether a tensor is an input, a constant or computed."""
        return self.editable.has(tensor)

    def is_computed(self, tensor: str) -> bool:
        """Whether a tensor is an input or computed."""
        return self.has(tensor) and tensor not in self.weights


def view_of(model: Model) -> GraphView:
    """The working graph of a model. O(nodes)."""
    graph = EditableGraph.of(model.proto, model.weights)
    known = graph.declared | graph.outputs | graph.inputs
    types = {name: value.type for name, value in known.items() if graph.has(name)}
    graph.declared = {name: onnx.ValueInfoProto(name=name, type=kind) for name, kind in types.items()}
    return GraphView(graph, {name: name for name in graph.outputs})


def _shown(proto: onnx.NodeProto) -> Node:
    kind = proto.op_type if is_standard(proto) else f"{proto.domain}::{proto.op_type}"
    attributes = MappingProxyType(plain_values(proto))
    return Node(node_name(proto), kind, tuple(proto.input), tuple(proto.output), attributes)


def infer(graph: EditableGraph, tensors: Iterable[str]) -> None:
    """Declare those of `tensors` that nodes compute, and all computed tensors before them, if onnx knows the types.

    Raises:
        InvalidModelError: shapes do not fit, or a tensor would be empty.
    """
    unknown = [tensor for tensor in tensors if tensor not in graph.declared]
    for tensor in dependencies_first(unknown, partial(_unknown_before, graph)):
        node = graph.producer(tensor)
        if node is not None and tensor not in graph.declared:
            for name, kind in _outputs_of(graph, node).items():
                graph.declared[name] = onnx.ValueInfoProto(name=name, type=kind)


def called(node: onnx.NodeProto) -> str:
    """The node in messages."""
    return f"{node.op_type} node {writes(node)[0]!r}"


def _unknown_before(graph: EditableGraph, tensor: str) -> list[str]:
    node = graph.producer(tensor)
    unknown = (name for name in (reads(node) if node else ()) if name not in graph.declared)
    return [name for name in unknown if graph.producer(name) is not None]


def _outputs_of(graph: EditableGraph, node: onnx.NodeProto) -> dict[str, onnx.TypeProto]:
    unknown = {name: onnx.TypeProto() for name in writes(node)}
    weights = {name: graph.weights[name] for name in reads(node) if name in graph.weights}
    types = {name: _type_of(array) for name, array in weights.items()}
    types |= {name: graph.declared[name].type for name in reads(node) if name in graph.declared}
    if not is_standard(node) or any(name and name not in types for name in node.input):
        return unknown
    given = {name: array for name, array in weights.items() if array.nbytes <= INLINE_NBYTES and array.dtype != object}
    small = {name: describe_weight(name, array) for name, array in given.items()}
    opsets = [onnx.helper.make_opsetid("", graph.opset)]
    try:
        schema = onnx.defs.get_schema(node.op_type, graph.opset, "")
        found = onnx.shape_inference.infer_node_outputs(schema, node, types, small, opset_imports=opsets)
    except (onnx.defs.SchemaError, onnx.shape_inference.InferenceError, RuntimeError, ValueError) as error:
        raise InvalidModelError(f"{called(node)} does not fit its inputs: {first_line(error)}") from error
    read, computed = [_shape(types, name) for name in node.input], [_shape(found, name) for name in writes(node)]
    if node.op_type == "Reshape" and node.input[1] in weights and read[0] is not None:
        target = weights[node.input[1]].tolist()
        if not keeps_size(read[0], target, node):
            raise InvalidModelError(f"{called(node)} cannot reshape {_text(read[0])} to {_text(tuple(target))}")
    _check(node, read, computed)
    return unknown | {name: kind for name, kind in found.items() if name in unknown}


def _type_of(array: np.ndarray) -> onnx.TypeProto:
    kind = onnx.TensorProto.STRING if array.dtype == object else np_dtype_to_tensor_dtype(array.dtype)
    return onnx.helper.make_tensor_type_proto(kind, array.shape)


def _check(node: onnx.NodeProto, read: Sequence[Shape | None], computed: Sequence[Shape | None]) -> None:
    check = _CHECKS.get(node.op_type)
    known = [shape for shape in read if shape is not None]
    if check is not None and len(known) == len(read) and not check(node, known):
        sizes = " and ".join(map(_text, known))
        raise InvalidModelError(f"{called(node)} does not fit its inputs: {sizes}")
    fed = all(0 not in shape for shape in known)
    if fed and any(shape is not None and min(shape, default=1) < 1 for shape in computed):
        raise InvalidModelError(f"{called(node)} has an empty result for an input of {_text(known[0])}")


def _fits_conv(node: onnx.NodeProto, shapes: Sequence[Shape]) -> bool:
    data, kernel, *bias = shapes
    if not len(data) == len(kernel) >= 3:
        return False
    group, declared = integer(node, "group", 1), integers(node, "kernel_shape")
    read, made = kernel[1] * group, kernel[0]
    if node.op_type == "ConvTranspose":
        read, made = made, read
    fits = group >= 1 and data[1] == read and kernel[0] % group == 0 and declared in ((), kernel[2:])
    return fits and all(shape == (made,) for shape in bias)


def _fits_normalization(node: onnx.NodeProto, shapes: Sequence[Shape]) -> bool:
    data, *parameters = shapes
    return len(data) >= 2 and all(shape == (data[1],) for shape in parameters)


_CHECKS: Mapping[str, Callable[[onnx.NodeProto, Sequence[Shape]], bool]] = {
    **dict.fromkeys(("Conv", "ConvTranspose"), _fits_conv),
    **dict.fromkeys(("BatchNormalization", "InstanceNormalization"), _fits_normalization),
}


def _shape(types: Mapping[str, onnx.TypeProto], name: str) -> Shape | None:
    return shape_of(types[name]) if name in types else None


def _text(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "scalar"
