"""Infers the shapes of the working graph's tensors, and describes tensors by `TensorSpec`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence, Set
from functools import cache

import numpy as np
import onnx
from onnx import TensorProto, TypeProto
from onnx.helper import tensor_dtype_to_np_dtype

from iosched.models.editable_graph import EditableGraph
from iosched.models.errors import InvalidModelError
from iosched.models.graph import TensorSpec
from iosched.models.kernel_shapes import inferred_as_run
from iosched.models.node_attributes import subgraphs
from iosched.models.wiring import is_standard, nodes_within, writes

MAX_FOLLOWED = 2**20
"""Elements of vectors whose values are followed when shapes are inferred; each takes 70 bytes. Shapes have a few."""

_OPERATOR = re.compile(r"op_type:\s*(\w+)")


_Inferred = tuple[onnx.GraphProto, dict[str, TensorSpec]]
"""A graph with inferred types, and the tensors that it declares."""


def infer(graph: EditableGraph) -> None:
    """Infer the types and shapes of the graph's tensors, as onnxruntime's kernels compute them.

    Sizes that are known only at run time stay without a name. Inference names them where tensors have them in common,
    and onnxruntime 1.32 then makes a Reshape of no rows to (0, -1) of one to (rows, 4), which fails.

    Where shapes stay unknown, the values of vectors are followed too, since a shape may be computed from them. A model
    with long vectors does without: onnx follows every element of each, and a file of a kilobyte can double one forty
    times.

    Raises:
        InvalidModelError: the tensors' types or shapes contradict each other.
    """
    _, (inferred, graph.tensors) = _as_run(graph)
    graph.outputs = {value.name: value for value in inferred.output}
    graph.declared = {value.name: value for value in inferred.value_info}


def check_shapes(graph: EditableGraph) -> None:
    """Infer strictly, which finds what `infer` passes over.

    Raises:
        InvalidModelError: the tensors' types or shapes contradict each other.
    """
    made, _ = _as_run(graph)
    _completed(made.to_proto(), strict=True)


def infer_again(graph: EditableGraph) -> None:
    """Infer from the inputs alone, strictly where shapes stay unknown. Raises as `infer`."""
    forget_inferred(graph, {}, keep_shapes=True)
    bare = graph.copy()
    infer(graph)
    if _leaves_doubt(graph):
        check_shapes(bare)


def _as_run(graph: EditableGraph) -> tuple[EditableGraph, _Inferred]:
    return inferred_as_run(graph, lambda made: _completed(made.to_proto()), lambda found: found[1])


def _completed(proto: onnx.ModelProto, *, strict: bool = False) -> _Inferred:
    inferred = _inferred(proto, strict=strict, values=False)
    specs = tensor_specs(inferred)
    names = (name for node in inferred.node for name in writes(node))
    if all(name in specs and specs[name].shape is not None for name in names):
        return inferred, specs
    if _followed(inferred, specs) > MAX_FOLLOWED:
        return inferred, specs
    inferred = _inferred(proto, strict=strict, values=True)
    return inferred, tensor_specs(inferred)


def _followed(graph: onnx.GraphProto, specs: Mapping[str, TensorSpec]) -> int:
    """Elements of all vectors whose values onnx may follow: of all that are computed, and of weights of integers."""
    shapes = [spec.shape for spec in specs.values()]
    integers = (TensorProto.INT32, TensorProto.INT64)
    shapes += [tuple(tensor.dims) for tensor in graph.initializer if tensor.data_type in integers]
    return sum(shape[0] for shape in shapes if shape and len(shape) == 1)


def _inferred(proto: onnx.ModelProto, *, strict: bool, values: bool) -> onnx.GraphProto:
    infer_shapes = onnx.shape_inference.infer_shapes
    try:
        inferred = infer_shapes(proto, check_type=strict, strict_mode=strict, data_prop=values).graph
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError) as error:
        if strict and _is_of_a_definition(error, proto.graph):
            return _inferred(proto, strict=False, values=values)
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise InvalidModelError(f"shapes do not fit together: {' '.join(lines[:2])[:300]}") from error
    _forget_invented(inferred, {dim.dim_param for value in proto.graph.input for dim in _dims(value)})
    return inferred


def _forget_invented(graph: onnx.GraphProto, known: Set[str]) -> None:
    """Clears the names of dimensions that no input has, here and in all inner graphs."""
    for value in (*graph.value_info, *graph.output):
        for dim in _dims(value):
            if dim.dim_param and dim.dim_param not in known:
                dim.ClearField("dim_param")
    for node in graph.node:
        for inner in subgraphs(node):
            _forget_invented(inner, known)


def _dims(value: onnx.ValueInfoProto) -> Sequence[onnx.TensorShapeProto.Dimension]:
    return value.type.tensor_type.shape.dim if value.type.WhichOneof("value") == "tensor_type" else ()


def _is_of_a_definition(error: Exception, graph: onnx.GraphProto) -> bool:
    """Whether the error is about a node of the function by which onnx defines an operator, not about one of the model.

    onnx 1.23 raises such an error for every MeanVarianceNormalization, which onnxruntime runs.
    """
    named = _OPERATOR.findall(str(error))
    return bool(named) and named[-1] not in {node.op_type for node in nodes_within(graph)}


def _leaves_doubt(graph: EditableGraph) -> bool:
    """Whether a standard node has static inputs and a result of unknown shape.

    Either the shape depends on data, or the shapes contradict each other, which only strict inference says.
    """
    static = graph.weights.keys() | {name for name, spec in graph.tensors.items() if spec.shape is not None}
    return any(
        is_standard(node) and static.issuperset(filter(None, node.input)) and not static.issuperset(writes(node))
        for node in graph.nodes
    )


def tensor_specs(graph: onnx.GraphProto) -> dict[str, TensorSpec]:
    """Every tensor that `graph` declares (inputs, outputs, value_info), by name."""
    values = (*graph.value_info, *graph.output, *graph.input)
    return {value.name: TensorSpec(value.name, dtype_of(value.type), shape_of(value.type)) for value in values}


def weight_spec(name: str, array: np.ndarray) -> TensorSpec:
    """The spec of an initializer."""
    return TensorSpec(name, "string" if array.dtype == object else array.dtype.name, tuple(array.shape))


def dtype_of(kind: TypeProto) -> str:
    """numpy's name of a tensor's element type; ONNX's text for sequences and the like; "" where the type is unknown."""
    if kind.WhichOneof("value") == "tensor_type":
        return _element_name(kind.tensor_type.elem_type)
    return type_text(kind, _element_name)


def type_text(kind: TypeProto, element: Callable[[int], str]) -> str:
    """ONNX's text for a type, "seq(map(int64,tensor(float)))"; "" where it is unknown. `element` names numbers."""
    which = kind.WhichOneof("value")
    if which == "tensor_type":
        return f"tensor({element(kind.tensor_type.elem_type)})"
    if which == "sequence_type":
        return f"seq({type_text(kind.sequence_type.elem_type, element)})"
    if which == "optional_type":
        return f"optional({type_text(kind.optional_type.elem_type, element)})"
    if which == "map_type":
        return f"map({element(kind.map_type.key_type)},{type_text(kind.map_type.value_type, element)})"
    if which == "sparse_tensor_type":
        return f"sparse_tensor({element(kind.sparse_tensor_type.elem_type)})"
    return ""


def shape_of(kind: TypeProto) -> tuple[int, ...] | None:
    """The static shape of a tensor type, or None."""
    if kind.WhichOneof("value") != "tensor_type" or not kind.tensor_type.HasField("shape"):
        return None
    dims = kind.tensor_type.shape.dim
    if any(not dim.HasField("dim_value") or dim.dim_value < 0 for dim in dims):
        return None
    return tuple(dim.dim_value for dim in dims)


def forget_inferred(graph: EditableGraph, symbols: Mapping[str, int], *, keep_shapes: bool) -> None:
    """Remove what the file says about inner tensors and outputs, so that inference starts from the inputs.

    ONNX cannot infer the results of operators of other domains. So what the file says about these stays, with the
    numbers of `symbols` in place of symbolic dimensions; without `keep_shapes`, only their types stay.
    """
    opaque = {name for node in graph.nodes if not is_standard(node) for name in node.output}
    graph.declared = {name: value for name, value in graph.declared.items() if name in opaque}
    for value in graph.declared.values():
        _fill_in(value, symbols, keep_shapes)
    for name, value in graph.outputs.items():
        _fill_in(value, symbols, keep_shapes and name in opaque)


def _fill_in(value: onnx.ValueInfoProto, symbols: Mapping[str, int], keep_shape: bool) -> None:
    if value.type.WhichOneof("value") != "tensor_type":
        return
    tensor = value.type.tensor_type
    if not keep_shape:
        tensor.ClearField("shape")
        return
    for dim in tensor.shape.dim:
        if dim.dim_param in symbols:
            dim.dim_value = symbols[dim.dim_param]


@cache
def _element_name(element: int) -> str:
    if element == TensorProto.STRING:
        return "string"
    try:
        return np.dtype(tensor_dtype_to_np_dtype(element)).name
    except KeyError:
        return ""
