"""Whether a node fits what it reads, and what it computes then: onnx's inference, and what that leaves unchecked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.helper import np_dtype_to_tensor_dtype

from iosched.models.errors import InvalidModelError
from iosched.models.model import INLINE_NBYTES
from iosched.models.node_attributes import integer, integers
from iosched.models.reshapes import keeps_size
from iosched.models.shapes import shape_of
from iosched.models.wiring import is_standard, writes

Shape = tuple[int, ...]


def outputs_of(
    node: onnx.NodeProto,
    types: Mapping[str, onnx.TypeProto],
    weights: Mapping[str, np.ndarray],
    opsets: Mapping[str, int],
) -> dict[str, onnx.TypeProto]:
    """The types of what a node computes; a type without a value where onnx cannot tell.

    Args:
        node: the node.
        types: of all that it reads.
        weights: the constants among that; small ones say what shapes come out.
        opsets: the version of each domain of operators.

    Raises:
        InvalidModelError: the shapes do not fit together, or nothing would be left of a tensor.
    """
    unknown = {name: onnx.TypeProto() for name in writes(node)}
    if not is_standard(node) or any(name and name not in types for name in node.input):
        return unknown
    try:
        schema = onnx.defs.get_schema(node.op_type, opsets.get("ai.onnx", 0), "")
        found = onnx.shape_inference.infer_node_outputs(
            schema,
            node,
            dict(types),
            {name: _payload(name, weights[name]) for name in node.input if name in weights and _says(weights[name])},
            opset_imports=[onnx.helper.make_opsetid("", opsets.get("ai.onnx", 0))],
        )
    except (onnx.defs.SchemaError, onnx.shape_inference.InferenceError, RuntimeError, ValueError) as error:
        raise InvalidModelError(f"{_called(node)} does not fit what it reads: {_line(error)}") from error
    if node.op_type == "Reshape" and node.input[1] in weights:
        _check_reshape(node, _shape(types, node.input[0]), weights[node.input[1]].tolist())
    _check(node, [_shape(types, name) for name in node.input], [_shape(found, name) for name in writes(node)])
    return unknown | {name: kind for name, kind in found.items() if name in unknown}


def type_of(array: np.ndarray) -> onnx.TypeProto:
    """The type of a constant."""
    kind = onnx.TensorProto.STRING if array.dtype == object else np_dtype_to_tensor_dtype(array.dtype)
    return onnx.helper.make_tensor_type_proto(kind, array.shape)


def _check_reshape(node: onnx.NodeProto, shape: Shape | None, target: list[int]) -> None:
    if shape is not None and not keeps_size(shape, target, node):
        raise InvalidModelError(f"{_called(node)} cannot make {_text(tuple(target))} of what it reads: {_text(shape)}")


def _check(node: onnx.NodeProto, read: Sequence[Shape | None], computed: Sequence[Shape | None]) -> None:
    check = _CHECKS.get(node.op_type)
    known = [shape for shape in read if shape is not None]
    if check is not None and len(known) == len(read) and not check(node, known):
        sizes = " and ".join(map(_text, known))
        raise InvalidModelError(f"{_called(node)} does not fit what it reads: {sizes}")
    fed = all(0 not in shape for shape in known)
    if fed and any(shape is not None and min(shape, default=1) < 1 for shape in computed):
        raise InvalidModelError(f"{_called(node)} leaves nothing of what it reads: {_text(known[0])}")


def _fits_conv(node: onnx.NodeProto, shapes: Sequence[Shape]) -> bool:
    data, kernel, *bias = shapes
    group, declared = integer(node, "group", 1), integers(node, "kernel_shape")
    return (
        len(data) == len(kernel) >= 3
        and group >= 1
        and data[1] == kernel[1] * group
        and kernel[0] % group == 0
        and declared in ((), kernel[2:])
        and all(shape == (kernel[0],) for shape in bias)
    )


def _fits_transposed_conv(node: onnx.NodeProto, shapes: Sequence[Shape]) -> bool:
    data, kernel, *bias = shapes
    group, declared = integer(node, "group", 1), integers(node, "kernel_shape")
    return (
        len(data) == len(kernel) >= 3
        and group >= 1
        and data[1] == kernel[0]
        and kernel[0] % group == 0
        and declared in ((), kernel[2:])
        and all(shape == (kernel[1] * group,) for shape in bias)
    )


def _fits_normalization(node: onnx.NodeProto, shapes: Sequence[Shape]) -> bool:
    data, *parameters = shapes
    return len(data) >= 2 and all(shape == (data[1],) for shape in parameters)


_CHECKS: Mapping[str, Callable[[onnx.NodeProto, Sequence[Shape]], bool]] = {
    "Conv": _fits_conv,
    "ConvTranspose": _fits_transposed_conv,
    "BatchNormalization": _fits_normalization,
    "InstanceNormalization": _fits_normalization,
}


def _says(array: np.ndarray) -> bool:
    return array.nbytes <= INLINE_NBYTES and array.dtype != object


def _payload(name: str, array: np.ndarray) -> onnx.TensorProto:
    return numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)


def _shape(types: Mapping[str, onnx.TypeProto], name: str) -> Shape | None:
    return shape_of(types[name]) if name in types else None


def _called(node: onnx.NodeProto) -> str:
    return f"{node.op_type} node {writes(node)[0]!r}"


def _text(shape: Shape) -> str:
    return "x".join(map(str, shape)) or "scalar"


def _line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
