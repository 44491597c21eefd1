"""Opens onnxruntime sessions: translates their errors, shares weights, and passes tensors of all types."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx

from iosched.models.errors import DeviceError, InvalidModelError, ResourceError
from iosched.models.model import Model
from iosched.models.shapes.binding import input_dims
from iosched.models.source import read_proto
from iosched.runtime.missing_dependencies import failure, missing_resource, way_to_install

DERIVED = "a graph that iosched derived from this model"
"""Name in errors of a source that is not the user's own model."""

_MAX_REASON = 300
_SOURCE = re.compile(r"^/\S+:\d+ .*?\) (const )?")  # "/path/file.h:46 void function(arguments) "


def load_onnxruntime() -> ModuleType:
    """The module `onnxruntime`, without telemetry unless the user sets `ORT_DISABLE_TELEMETRY=0`.

    Raises:
        DeviceError: it is not installed.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # read when the library starts
    try:
        import onnxruntime
    except ImportError as error:
        raise DeviceError(f"onnxruntime is not installed; {way_to_install('cpu')}") from error
    return onnxruntime  # type: ignore[no-any-return]


def open_session(
    source: bytes | Path,
    options: Any,
    *,
    providers: Sequence[Any] = ("CPUExecutionProvider",),
    bound: Model | None = None,
    called: str = "this model",
) -> Any:
    """Open an onnxruntime session, on the CPU by default.

    Args:
        providers: names, or pairs of a name and its options; those that fail to load are omitted, see `get_providers`.
        bound: the model whose dimensions were bound to make the source, if any; errors name its shapes.
        called: name of the source in errors.

    Raises:
        InvalidModelError: onnxruntime refuses the model.
        ResourceError: the machine lacks memory or threads.
        DeviceError: onnxruntime is not installed.
    """
    onnxruntime = load_onnxruntime()
    try:
        model = source if isinstance(source, bytes) else str(source)
        # onnxruntime's fallback prints on stdout and retries on the CPU.
        return onnxruntime.InferenceSession(model, options, providers=list(providers), enable_fallback=0)
    except onnxruntime_errors() as error:
        if (missing := missing_resource(str(error))) is not None:
            raise ResourceError(missing) from error
        message = f"onnxruntime cannot run {called}: {first_useful_line(error)}"
        raise InvalidModelError(f"{message}{_shapes_text(bound)}") from error


def _shapes_text(model: Model | None) -> str:
    if model is None or model.original is None:
        return ""
    dims = input_dims(read_proto(model.original).graph.input)
    opened = [name for name, own in dims.items() if own is None or any(isinstance(dim, str) for dim in own)]
    if not opened:
        return ""
    listed = ", ".join(f"{name}={'x'.join(map(str, model.bindings[name]))}" for name in opened[:4])
    return (
        f"\nIts dynamic dimensions are bound to {listed}{', ...' if len(opened) > 4 else ''}: try other sizes.\n"
        "iosched cannot run a model that needs its dimensions to stay dynamic."
    )


@contextmanager
def running() -> Iterator[None]:
    """Translate the errors of an onnxruntime run.

    Raises:
        ExecutionError: onnxruntime fails; a `ResourceError` if the machine lacks a resource.
    """
    try:
        yield
    except onnxruntime_errors() as error:
        message = f"onnxruntime failed while running the model: {first_useful_line(error)}"
        raise failure(str(error), message) from error


def external_weights(
    proto: onnx.ModelProto, weights: Mapping[str, np.ndarray]
) -> tuple[list[str], list[Any], list[np.ndarray]]:
    """Names, onnxruntime values and arrays of the weights whose data is outside the model, without copies.

    The arrays must live as long as the session that gets the values.
    """
    make = load_onnxruntime().OrtValue.ortvalue_from_numpy_with_onnx_type
    external = [i for i in proto.graph.initializer if i.data_location == onnx.TensorProto.EXTERNAL]
    arrays = [np.asarray(weights[tensor.name], order="C") for tensor in external]
    values = [make(array, tensor.data_type) for array, tensor in zip(arrays, external, strict=True)]
    return [tensor.name for tensor in external], values, arrays


def first_useful_line(error: BaseException) -> str:
    """onnxruntime's message without its error codes, source files and C++ signatures."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    text = lines[0]
    if text.startswith("[ONNXRuntimeError]"):
        text = text.split(" : ", 3)[-1]
    text = _SOURCE.sub("", text)
    return text if len(text) <= _MAX_REASON else text[: _MAX_REASON - 3] + "..."


def onnxruntime_errors() -> tuple[type[Exception], ...]:
    """All error types of onnxruntime's binding, which share no base but Exception."""
    load_onnxruntime()
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    own = (kind for kind in vars(state).values() if isinstance(kind, type) and issubclass(kind, Exception))
    return (*own, RuntimeError, ValueError)


_OF_NUMPY = frozenset((
    "float32", "float64", "float16", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "bool",
    "complex64", "complex128", "string",
))  # fmt: skip
_PER_BYTE = {"int4": 2, "uint4": 2, "float4_e2m1fn": 2, "int2": 4, "uint2": 4}


def are_of_numpy(dtypes: Iterable[str]) -> bool:
    """Whether onnxruntime's binding converts values of these types to and from Python.

    Args:
        dtypes: as in `TensorSpec`; sequences and the like count as convertible.
    """
    return all(dtype in _OF_NUMPY or "(" in dtype for dtype in dtypes)


def run_on_any_types(session: Any, outputs: Sequence[str], inputs: Mapping[str, Any]) -> list[Any]:
    """Run an `InferenceSession` once on tensors of any type, and return its results in order.

    bfloat16, 8-bit floats and 4-bit integers are arrays of `ml_dtypes`, which onnxruntime's binding does not convert.

    Args:
        outputs: names of the wanted results.
        inputs: arrays, or values of onnxruntime, by name.
    """
    kind = load_onnxruntime().OrtValue
    values = {name: value if isinstance(value, kind) else _value(value) for name, value in inputs.items()}
    return [_array(found) for found in session.run_with_ort_values(list(outputs), values)]


def _value(source: np.ndarray) -> Any:
    array, values = np.asarray(source, order="C"), load_onnxruntime().OrtValue
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
    kind, shape = value.element_type(), tuple(value.shape())
    dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(kind))
    if dtype.hasobject:
        return np.asarray(value.numpy())
    per_byte = _PER_BYTE.get(dtype.name, 1)  # in numpy each takes a byte
    nbytes = -(-prod(shape) // per_byte) if per_byte > 1 else prod(shape) * dtype.itemsize
    content = ctypes.string_at(value.data_ptr(), nbytes) if nbytes else b""
    if per_byte == 1:
        return np.frombuffer(bytearray(content), dtype).reshape(shape)
    return onnx.numpy_helper.to_array(onnx.TensorProto(data_type=kind, dims=shape, raw_data=content))
