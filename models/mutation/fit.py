"""Whether a node fits what it reads, and what it computes then: onnx's inference, and what that leaves unchecked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import numpy as np
import onnx
from onnx.helper import np_dtype_to_tensor_dtype

from iosched.models.editable_graph import EditableGraph
from iosched.models.errors import InvalidModelError
from iosched.models.initializers import describe_weight
from iosched.models.model import INLINE_NBYTES
from iosched.models.node_attributes import integer, integers
from iosched.models.reshapes import keeps_size
from iosched.models.shapes import shape_of
from iosched.models.wiring import dependencies_first, is_standard, reads, writes

Shape = tuple[int, ...]


def infer(graph: EditableGraph, tensors: Iterable[str]) -> None:
    """Declare those of `tensors` that nodes compute, and before them all that they are computed from.

    What onnx cannot tell is declared without a type.

    Raises:
        InvalidModelError: the shapes do not fit together, or nothing would be left of a tensor.
    """
    unknown = [tensor for tensor in tensors if tensor not in graph.declared]
    for tensor in dependencies_first(unknown, partial(_unknown_before, graph)):
        node = graph.producer(tensor)
        if node is not None and tensor not in graph.declared:
            for name, kind in _outputs_of(graph, node).items():
                graph.declared[name] = onnx.ValueInfoProto(name=name, type=kind)


def called(node: onnx.NodeProto) -> str:
    """The node as messages name it."""
    return f"{node.op_type} node {writes(node)[0]!r}"


def _unknown_before(graph: EditableGraph, tensor: str) -> list[str]:
    node = graph.producer(tensor)
    unknown = (name for name in (reads(node) if node else ()) if name not in graph.declared)
    return [name for name in unknown if graph.producer(name) is not None]


def _outputs_of(graph: EditableGraph, node: onnx.NodeProto) -> dict[str, onnx.TypeProto]:
    unknown = {name: onnx.TypeProto() for name in writes(node)}
    types = _types_read(graph, node)
    if not is_standard(node) or any(name and name not in types for name in node.input):
        return unknown
    weights = {name: graph.weights[name] for name in node.input if name in graph.weights}
    small = {name: describe_weight(name, array) for name, array in weights.items() if _says(array)}
    opsets = [onnx.helper.make_opsetid("", graph.opset)]
    try:
        schema = onnx.defs.get_schema(node.op_type, graph.opset, "")
        found = onnx.shape_inference.infer_node_outputs(schema, node, types, small, opset_imports=opsets)
    except (onnx.defs.SchemaError, onnx.shape_inference.InferenceError, RuntimeError, ValueError) as error:
        raise InvalidModelError(f"{called(node)} does not fit what it reads: {_line(error)}") from error
    read, computed = [_shape(types, name) for name in node.input], [_shape(found, name) for name in writes(node)]
    if node.op_type == "Reshape" and node.input[1] in weights and read[0] is not None:
        target = weights[node.input[1]].tolist()
        if not keeps_size(read[0], target, node):
            raise InvalidModelError(
                f"{called(node)} cannot make {_text(tuple(target))} of what it reads: {_text(read[0])}"
            )
    _check(node, read, computed)
    return unknown | {name: kind for name, kind in found.items() if name in unknown}


def _types_read(graph: EditableGraph, node: onnx.NodeProto) -> dict[str, onnx.TypeProto]:
    weights = {name: _type_of(graph.weights[name]) for name in reads(node) if name in graph.weights}
    return weights | {name: graph.declared[name].type for name in reads(node) if name in graph.declared}


def _type_of(array: np.ndarray) -> onnx.TypeProto:
    kind = onnx.TensorProto.STRING if array.dtype == object else np_dtype_to_tensor_dtype(array.dtype)
    return onnx.helper.make_tensor_type_proto(kind, array.shape)


def _check(node: onnx.NodeProto, read: Sequence[Shape | None], computed: Sequence[Shape | None]) -> None:
    check = _CHECKS.get(node.op_type)
    known = [shape for shape in read if shape is not None]
    if check is not None and len(known) == len(read) and not check(node, known):
        sizes = " and ".join(map(_text, known))
        raise InvalidModelError(f"{called(node)} does not fit what it reads: {sizes}")
    fed = all(0 not in shape for shape in known)
    if fed and any(shape is not None and min(shape, default=1) < 1 for shape in computed):
        raise InvalidModelError(f"{called(node)} leaves nothing of what it reads: {_text(known[0])}")


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


def _says(array: np.ndarray) -> bool:
    return array.nbytes <= INLINE_NBYTES and array.dtype != object


def _shape(types: Mapping[str, onnx.TypeProto], name: str) -> Shape | None:
    return shape_of(types[name]) if name in types else None


def _text(shape: Shape) -> str:
    return "x".join(map(str, shape)) or "scalar"


def _line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
