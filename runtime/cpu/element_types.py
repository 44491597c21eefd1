"""Types of numbers by their names in a `TensorSpec` and by onnxruntime's codes."""

from __future__ import annotations

from collections.abc import Mapping

# Codes of ONNX's TensorProto.DataType, which onnxruntime uses too; names as in TensorSpec.
ELEMENT_TYPE: Mapping[str, int] = {
    "float32": 1,
    "uint8": 2,
    "int8": 3,
    "uint16": 4,
    "int16": 5,
    "int32": 6,
    "int64": 7,
    "bool": 9,
    "float16": 10,
    "float64": 11,
    "uint32": 12,
    "uint64": 13,
    "complex64": 14,
    "complex128": 15,
    "bfloat16": 16,
    "float8_e4m3fn": 17,
    "float8_e4m3fnuz": 18,
    "float8_e5m2": 19,
    "float8_e5m2fnuz": 20,
}
DTYPE_NAME: Mapping[int, str] = {code: name for name, code in ELEMENT_TYPE.items()}
