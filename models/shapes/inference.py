"""Infers shapes as onnxruntime's kernels compute them, and describes tensors by `TensorSpec`.

onnxruntime infers shapes as onnx does, but its kernels differ for pools that round up before opset 22, SAME pools with
dilations, SAME transposed convolutions with output_padding, and resizing by factors without an exact float.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence, Set
from functools import cache
from typing import TypeVar

import numpy as np
import onnx
from onnx import TensorProto, TypeProto
from onnx.helper import make_node, np_dtype_to_tensor_dtype, tensor_dtype_to_np_dtype

from iosched.models.editable_graph import EditableGraph, node_name
from iosched.models.errors import InvalidModelError
from iosched.models.graph import TensorSpec
from iosched.models.node_attributes import integer, integers, numbers, padding, subgraphs, text
from iosched.models.wiring import is_standard, nodes_within, writes

MAX_PROPAGATED = 2**20
"""The most vector elements that onnx may propagate, at 70 bytes each; shapes have a few."""

_OPERATOR = re.compile(r"op_type:\s*(\w+)")


_Inferred = tuple[onnx.GraphProto, dict[str, TensorSpec]]
"""A graph with inferred types, and the tensors that it declares."""


def infer(graph: EditableGraph) -> None:
    """Infer the types and shapes of the graph's tensors.

    Sizes known only at run time stay unnamed: with inferred names, onnxruntime 1.32 turns a Reshape of no rows to (0,
    -1) into one to (rows, 4), which fails.

    If shapes stay unknown, values of vectors are propagated too, since shapes may be computed from them; not in models
    with long vectors, as onnx stores every element, and a kilobyte can double one forty times.

    Raises:
        InvalidModelError: types or shapes contradict each other.
    """
    _, (inferred, graph.tensors) = _as_run(graph)
    graph.outputs = {value.name: value for value in inferred.output}
    graph.declared = {value.name: value for value in inferred.value_info}


def check_shapes(graph: EditableGraph) -> None:
    """Infer strictly, which finds errors that `infer` ignores.

    Raises:
        InvalidModelError: types or shapes contradict each other.
    """
    made, _ = _as_run(graph)
    _completed(made.to_proto(), strict=True)


def infer_again(graph: EditableGraph) -> None:
    """Infer from the inputs alone, strictly if shapes stay unknown. Raises as `infer`."""
    forget_inferred(graph, {}, keep_shapes=True)
    bare = graph.copy()
    infer(graph)
    if _needs_strict_check(graph):
        check_shapes(bare)


def _as_run(graph: EditableGraph) -> tuple[EditableGraph, _Inferred]:
    return infer_as_run(graph, lambda made: _completed(made.to_proto()), lambda found: found[1])


def _completed(proto: onnx.ModelProto, *, strict: bool = False) -> _Inferred:
    inferred = _inferred(proto, strict=strict, values=False)
    specs = tensor_specs(inferred)
    names = (name for node in inferred.node for name in writes(node))
    if all(name in specs and specs[name].shape is not None for name in names):
        return inferred, specs
    if _propagated_elements(inferred, specs) > MAX_PROPAGATED:
        return inferred, specs
    inferred = _inferred(proto, strict=strict, values=True)
    return inferred, tensor_specs(inferred)


def _propagated_elements(graph: onnx.GraphProto, specs: Mapping[str, TensorSpec]) -> int:
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
        raise InvalidModelError(f"shapes are inconsistent: {' '.join(lines[:2])[:300]}") from error
    _clear_invented_names(inferred, {dim.dim_param for value in proto.graph.input for dim in _dims(value)})
    return inferred


def _clear_invented_names(graph: onnx.GraphProto, known: Set[str]) -> None:
    for value in (*graph.value_info, *graph.output):
        for dim in _dims(value):
            if dim.dim_param and dim.dim_param not in known:
                dim.ClearField("dim_param")
    for node in graph.node:
        for inner in subgraphs(node):
            _clear_invented_names(inner, known)


def _dims(value: onnx.ValueInfoProto) -> Sequence[onnx.TensorShapeProto.Dimension]:
    return value.type.tensor_type.shape.dim if value.type.WhichOneof("value") == "tensor_type" else ()


def _is_of_a_definition(error: Exception, graph: onnx.GraphProto) -> bool:
    """Whether the error is about a node in a function body, as onnx 1.23 raises for every MeanVarianceNormalization."""
    named = _OPERATOR.findall(str(error))
    return bool(named) and named[-1] not in {node.op_type for node in nodes_within(graph)}


def _needs_strict_check(graph: EditableGraph) -> bool:
    """Whether the result of static inputs has an unknown shape: it depends on data, or shapes contradict each other."""
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
    """numpy's name of a tensor's element type; ONNX's text for sequences and the like; "" if unknown."""
    if kind.WhichOneof("value") == "tensor_type":
        return _element_name(kind.tensor_type.elem_type)
    return type_text(kind, _element_name)


def type_text(kind: TypeProto, element: Callable[[int], str]) -> str:
    """ONNX's text for a type, "seq(map(int64,tensor(float)))"; "" if unknown. `element` names element types."""
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
    """Remove declared types of inner tensors and outputs, so that inference starts from the inputs.

    Declarations of other domains' operators, which ONNX cannot infer, stay, with the numbers of `symbols`; without
    `keep_shapes`, only their types.
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


Shape = tuple[int, ...]
Weights = Mapping[str, np.ndarray]
Inferred = TypeVar("Inferred")


def infer_as_run(
    graph: EditableGraph,
    infer: Callable[[EditableGraph], Inferred],
    specs: Callable[[Inferred], Mapping[str, TensorSpec]],
) -> tuple[EditableGraph, Inferred]:
    """Infer a graph in which constants replace nodes whose kernels compute other shapes than inferred.

    Returns the graph with the constants (`graph` itself if there are none) and the result of `infer`, from which
    `specs` takes the tensors. Complexity: one inference more than the longest chain of such nodes.
    """
    made, known = graph, dict[str, TensorSpec]()
    while True:
        inferred = infer(made)
        found = _kernel_results(graph, specs(inferred))
        if found.items() <= known.items():
            return made, inferred
        known.update(found)
        made = _with_constants(graph, known)


def kernel_may_differ(node: onnx.NodeProto) -> bool:
    """Whether the kernel may compute another shape than is inferred, for some input."""
    if node.op_type in ("Resize", "Upsample"):
        return True
    return node.op_type in _RULES and bool(integer(node, "ceil_mode") or text(node, "auto_pad").startswith("SAME"))


def _kernel_results(graph: EditableGraph, specs: Mapping[str, TensorSpec]) -> dict[str, TensorSpec]:
    """The results whose kernels compute other shapes than in `specs`, with the shapes of the kernels."""
    found: dict[str, TensorSpec] = {}
    for node in graph.nodes:
        source = specs.get(node.input[0]) if kernel_may_differ(node) else None
        if source is None or source.shape is None or len(source.shape) < 3:
            continue
        shape = _RULES[node.op_type](node, source.shape, graph.weights)
        results = [specs[name] for name in writes(node) if name in specs]
        wrong = [spec for spec in results if shape is not None and spec.dtype and spec.shape != shape]
        found.update((spec.name, TensorSpec(spec.name, spec.dtype, shape)) for spec in wrong)
    return found


def _with_constants(graph: EditableGraph, known: Mapping[str, TensorSpec]) -> EditableGraph:
    made = graph.copy()
    for values in (made.declared, made.outputs):
        values.update({name: onnx.ValueInfoProto(name=name) for name in known.keys() & values.keys()})
    for node in graph.nodes:
        if results := [known[name] for name in writes(node) if name in known]:
            made.replace(node_name(node), *(_constant(made, spec) for spec in results))
    return made


def _constant(graph: EditableGraph, spec: TensorSpec) -> onnx.NodeProto:
    shape = graph.add_fresh_weight(f"{spec.name}/shape", np.array(spec.shape, np.int64))
    value = onnx.TensorProto(data_type=np_dtype_to_tensor_dtype(np.dtype(spec.dtype)), dims=[1])
    value.raw_data = bytes(np.dtype(spec.dtype).itemsize)
    return make_node("ConstantOfShape", [shape], [spec.name], value=value)


def _pool(node: onnx.NodeProto, source: Shape, _: Weights) -> Shape | None:
    is_last = node.op_type == "NhwcMaxPool" or bool(integer(node, "channels_last"))
    sizes, kernel = source[1:-1] if is_last else source[2:], integers(node, "kernel_shape")
    if len(kernel) != len(sizes):
        return None
    ones = (1,) * len(kernel)
    pads = padding(node, sizes, kernel)
    window = zip(kernel, integers(node, "strides", ones), integers(node, "dilations", ones), strict=True)
    results = tuple(
        _pooled(size, begin, begin + end, *each, rounds_up=bool(integer(node, "ceil_mode")))
        for size, begin, end, each in zip(sizes, pads, pads[len(kernel) :], window, strict=False)
    )
    return (source[0], *results, source[-1]) if is_last else (*source[:2], *results)


def _pooled(size: int, begin: int, pads: int, kernel: int, stride: int, dilation: int, *, rounds_up: bool) -> int:
    room = size + pads - dilation * (kernel - 1) - 1
    if not rounds_up:
        return room // stride + 1
    last = -(-room // stride)
    return last if last * stride >= size + begin else last + 1  # the last window must begin before the end padding


def _transposed(node: onnx.NodeProto, source: Shape, weights: Weights) -> Shape | None:
    filters = weights.get(node.input[1])
    is_same = text(node, "auto_pad") in ("SAME_UPPER", "SAME_LOWER")
    if filters is None or not is_same or integers(node, "output_shape"):
        return None
    strides = integers(node, "strides", (1,) * (len(source) - 2))
    results = filters.shape[1] * integer(node, "group", 1)
    return (source[0], results, *(size * stride for size, stride in zip(source[2:], strides, strict=True)))


def _resized(node: onnx.NodeProto, source: Shape, weights: Weights) -> Shape | None:
    named = node.input[2:3] if len(node.input) > 2 else node.input[1:2]
    given = weights.get(named[0]) if named else None
    factors = numbers(node, "scales") if given is None else tuple(given.reshape(-1))
    axes = [axis % len(source) for axis in integers(node, "axes", range(len(source)))]
    if len(factors) != len(axes) or text(node, "coordinate_transformation_mode") == "tf_crop_and_resize":
        return None
    by_axis = dict(zip(axes, factors, strict=True))
    return tuple(int(np.float32(size) * np.float32(by_axis.get(axis, 1))) for axis, size in enumerate(source))


_RULES: Mapping[str, Callable[[onnx.NodeProto, Shape, Weights], Shape | None]] = {
    **dict.fromkeys(("MaxPool", "AveragePool", "LpPool", "NhwcMaxPool", "QLinearAveragePool"), _pool),
    "ConvTranspose": _transposed,
    **dict.fromkeys(("Resize", "Upsample"), _resized),
}
