"""Tensors of element types that numpy has not (bfloat16, 8-bit floats, 4-bit integers), into onnxruntime and back.

onnxruntime runs them, but its binding turns none of them into an array or an array into one of them. Here they are
arrays of `ml_dtypes`, which comes with onnx.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
import onnx

from iosched.runtime.session import load_onnxruntime

_OF_NUMPY = frozenset((
    "float32", "float64", "float16", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "bool",
    "complex64", "complex128", "string",
))  # fmt: skip
_PER_BYTE = {"int4": 2, "uint4": 2, "float4_e2m1fn": 2, "int2": 4, "uint2": 4}


def are_of_numpy(dtypes: Iterable[str]) -> bool:
    """Whether onnxruntime's binding turns values of these types into Python's and back.

    Args:
        dtypes: as in `TensorSpec`; sequences and the like count as types that it converts.
    """
    return all(dtype in _OF_NUMPY or "(" in dtype for dtype in dtypes)


def run_on_any_types(session: Any, outputs: Sequence[str], inputs: Mapping[str, Any]) -> list[Any]:
    """One run of an onnxruntime session whose inputs and outputs are tensors, of whatever type; results in order.

    Args:
        session: an `InferenceSession`.
        outputs: names of the results that are wanted.
        inputs: arrays, or values of onnxruntime, by name.
    """
    kind = load_onnxruntime().OrtValue
    values = {name: given if isinstance(given, kind) else _value(given) for name, given in inputs.items()}
    return [_array(found) for found in session.run_with_ort_values(list(outputs), values)]


def _value(given: np.ndarray) -> Any:
    array, values = np.asarray(given, order="C"), load_onnxruntime().OrtValue
    if array.dtype.hasobject:
        return values.ortvalue_from_numpy(array)
    kind = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
    if array.dtype.name not in _PER_BYTE:
        return values.ortvalue_from_numpy_with_onnx_type(array, kind)
    packed = onnx.numpy_helper.from_array(array).raw_data
    value = values.ortvalue_from_shape_and_type(array.shape, kind)
    if packed:
        ctypes.memmove(value.data_ptr(), packed, len(packed))
    return value


def _array(value: Any) -> np.ndarray:
    """A copy of a tensor."""
    kind, shape = value.element_type(), tuple(value.shape())
    dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(kind))
    if dtype.hasobject:
        return np.asarray(value.numpy())
    per_byte = _PER_BYTE.get(dtype.name, 1)  # numpy gives each of them a byte
    nbytes = -(-prod(shape) // per_byte) if per_byte > 1 else prod(shape) * dtype.itemsize
    content = ctypes.string_at(value.data_ptr(), nbytes) if nbytes else b""
    if per_byte == 1:
        return np.frombuffer(bytearray(content), dtype).reshape(shape)
    return onnx.numpy_helper.to_array(onnx.TensorProto(data_type=kind, dims=shape, raw_data=content))
