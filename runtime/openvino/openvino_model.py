"""A whole model on OpenVINO, over several cores, with OpenVINO's settings for low latency or throughput."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import onnx

from iosched.models.errors import DeviceError, ExecutionError, UsageError
from iosched.models.export import write_model
from iosched.models.graph import TensorSpec
from iosched.models.model import Model
from iosched.models.node_attributes import text
from iosched.models.wiring import is_standard
from iosched.runtime.handle import Handle
from iosched.runtime.inputs import Arrays, as_specified, numpy_dtype
from iosched.runtime.openvino.library import PartialShape, Shape, call, library
from iosched.runtime.reference import free_dimensions
from iosched.scheduler.precision import DEFAULT_PRECISION

ELEMENT_TYPE: Mapping[str, int] = {
    "bool": 1,
    "bfloat16": 2,
    "float16": 3,
    "float32": 4,
    "float64": 5,
    "int8": 7,
    "int16": 8,
    "int32": 9,
    "int64": 10,
    "uint8": 16,
    "uint16": 17,
    "uint32": 18,
    "uint64": 19,
}
"""Element types of OpenVINO's C interface, by the names of `TensorSpec`."""

HINTS = {"fp32": "f32", "bf16": "bf16", "fp16": "f16"}
"""OpenVINO's names of the precisions."""

_NARROWED = ("float64", "uint32", "uint64")
"""Types that OpenVINO narrows on a CPU. It also narrows int64, but shapes and indices are small."""

_DTYPE_NAME = {code: name for name, code in ELEMENT_TYPE.items()}

_FORKED = "this model was opened before the process forked: open it again in the child"


class OpenvinoModel:
    """One model that is ready to run. Several threads may call it; their runs follow one another.

    A calling thread should not be pinned: OpenVINO would use only its processor.
    """

    def __init__(
        self, model: Model, threads: int, precision: str = DEFAULT_PRECISION, request: Handle | None = None
    ) -> None:
        """Open `model`, bound to its shapes.

        Args:
            model: OpenVINO reads its file, if any, with external data.
            threads: number of cores.
            precision: in which floats are multiplied, a key of `HINTS`, if the CPU has instructions for it.
            request: a request of `open_requests`; default: its own.

        Raises:
            DeviceError: OpenVINO is not installed, or cannot run this model.
        """
        self._inputs, self._outputs = model.graph.inputs, model.graph.outputs
        self._lock = threading.Lock()
        self._bound_inputs: list[tuple[np.ndarray, Handle]] = []
        self._request = _requests(model, threads, precision, 1)[0] if request is None else request
        names = (spec.name for spec in self._inputs)
        self._read = frozenset(
            name for name in names if _has(self._request, "ov_infer_request_get_tensor", name, "tensor")
        )

    def run(self, inputs: Arrays) -> dict[str, np.ndarray]:
        """Run once and return the outputs by name.

        Raises:
            ExecutionError: OpenVINO fails.
            UsageError: an input is missing, or has another type or shape.
        """
        with self._request.guarded_by(self._lock, _FORKED):
            self._set_inputs(inputs)
            call("ov_infer_request_infer", self._request.pointer)
            return {name: self._output(name) for name in self._outputs}

    def time(self, inputs: Arrays, repeats: int) -> tuple[float, ...]:
        """Run `repeats` times on the caller's arrays and return the microseconds of each run; raises as `run` does."""
        latencies_us = []
        with self._request.guarded_by(self._lock, _FORKED):
            run = self._bound(inputs)
            for _ in range(repeats):
                started = time.perf_counter_ns()
                run()
                latencies_us.append((time.perf_counter_ns() - started) / 1e3)
        return tuple(latencies_us)

    def bound(self, inputs: Arrays) -> Callable[[], None]:
        """A function that runs once on the caller's arrays, for one thread at a time; raises as `run` does."""
        with self._request.guarded_by(self._lock, _FORKED):
            return self._bound(inputs)

    def close(self) -> None:
        """Free the model. May be called again."""
        if self._request.is_inherited:
            return
        with self._lock:
            self._request.close()
            self._bound_inputs = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _bound(self, inputs: Arrays) -> Callable[[], None]:
        self._set_inputs(inputs)
        infer, request = library().ov_infer_request_infer, self._request.pointer

        def run() -> None:
            if infer(request):
                call("ov_infer_request_infer", request)

        return run

    def _set_inputs(self, inputs: Arrays) -> None:
        if not self._request.close.alive:
            raise ValueError("the model is closed")
        fitting = {spec.name: _fitting(spec, inputs) for spec in self._inputs}
        arrays = [array for name, array in fitting.items() if name in self._read]
        if len(arrays) == len(self._bound_inputs) and all(
            a is b for a, (b, _) in zip(arrays, self._bound_inputs, strict=True)
        ):
            return
        bound = [(array, _tensor_over(array)) for array in arrays]
        for name, (_, tensor) in zip((name for name in fitting if name in self._read), bound, strict=True):
            call("ov_infer_request_set_tensor", self._request.pointer, name.encode(), tensor.pointer)
        self._bound_inputs = bound

    def _output(self, name: str) -> np.ndarray:
        tensor = _made("tensor", "ov_infer_request_get_tensor", self._request.pointer, name.encode())
        kind, nbytes, data, shape = ctypes.c_int(), ctypes.c_size_t(), ctypes.c_void_p(), Shape()
        call("ov_tensor_get_element_type", tensor.pointer, ctypes.byref(kind))
        call("ov_tensor_get_byte_size", tensor.pointer, ctypes.byref(nbytes))
        call("ov_tensor_data", tensor.pointer, ctypes.byref(data))
        call("ov_tensor_get_shape", tensor.pointer, ctypes.byref(shape))
        sizes = tuple(shape.dims[: shape.rank])
        library().ov_shape_free(ctypes.byref(shape))
        if kind.value not in _DTYPE_NAME:
            raise ExecutionError(f"output {name!r} has an element type that OpenVINO's C interface does not support")
        result = np.empty(sizes, numpy_dtype(_DTYPE_NAME[kind.value]))
        if result.nbytes != nbytes.value:
            raise ExecutionError(f"output {name!r} has {nbytes.value} bytes, not {result.nbytes}")
        if result.nbytes:
            ctypes.memmove(result.ctypes.data, data, result.nbytes)
        tensor.close()
        return result


def _check_numbers(model: Model) -> None:
    """Refuse models that OpenVINO would silently compute differently.

    Raises:
        DeviceError: an input has no fixed size or is not numeric, a type is narrowed, or an operator has a newer
            opset than OpenVINO implements.
    """
    graph = model.graph
    unknown = [spec for spec in graph.inputs if spec.dtype not in ELEMENT_TYPE or not spec.is_static]
    if unknown:
        raise DeviceError(f"OpenVINO does not support input {unknown[0].name!r} ({unknown[0].dtype})")
    wide = [spec for spec in (*graph.inputs, *graph.tensors) if spec.dtype in _NARROWED]
    if wide:
        raise DeviceError(f"OpenVINO computes {wide[0].name!r} ({wide[0].dtype}) with fewer bits")
    if (newer := newer_use(model)) is not None:
        raise DeviceError(f"OpenVINO does not implement {newer}")


def _fitting(spec: TensorSpec, inputs: Arrays) -> np.ndarray:
    """The array of an input, whose 64-bit integers fit into OpenVINO's 32 bits.

    Raises:
        UsageError: it does not fit, or a value is too large.
    """
    array = as_specified(spec, inputs)
    if spec.dtype == "int64" and array.size and not -(2**31) <= array.min() <= array.max() < 2**31:
        raise UsageError(f"input {spec.name!r} has integers of more than 32 bits, which OpenVINO truncates")
    return array


def open_requests(model: Model, threads: int, count: int) -> tuple[OpenvinoModel, ...]:
    """Open the model for `count` concurrent runs, with OpenVINO's settings for throughput."""
    requests = _requests(model, threads, DEFAULT_PRECISION, count, "THROUGHPUT")
    return tuple(OpenvinoModel(model, threads, request=request) for request in requests)


def _requests(model: Model, threads: int, precision: str, count: int, hint: str = "LATENCY") -> tuple[Handle, ...]:
    library()
    _check_numbers(model)
    try:
        return _compiled(model, threads, precision, count, hint)
    except ExecutionError as error:
        raise DeviceError(f"OpenVINO cannot run this model: {error}") from error


def _compiled(model: Model, threads: int, precision: str, count: int, hint: str) -> tuple[Handle, ...]:
    core = _made("core", "ov_core_create")
    network = _read(core, model)
    _bind(network, model.bindings)
    texts = [ctypes.c_char_p(text.encode()) for pair in _settings(threads, precision, hint).items() for text in pair]
    pointer = ctypes.c_void_p()
    call(
        "ov_core_compile_model",
        *(core.pointer, network.pointer, b"CPU", len(texts), ctypes.byref(pointer), *texts),
    )
    compiled = Handle(pointer.value or 0, library().ov_compiled_model_free)
    create = "ov_compiled_model_create_infer_request"
    requests = tuple(_made("infer_request", create, compiled.pointer) for _ in range(count))
    for each in (compiled, network, core):
        each.close()
    return requests


def _settings(threads: int, precision: str, hint: str) -> Mapping[str, str]:
    return {
        "PERFORMANCE_HINT": hint,
        "INFERENCE_NUM_THREADS": str(threads),
        "INFERENCE_PRECISION_HINT": HINTS[precision],
        # Pinning would put the threads of every process on the same first cores.
        "ENABLE_CPU_PINNING": "NO",
    }


def _read(core: Handle, model: Model) -> Handle:
    """The original model, or its bound graph if a fixed size was changed."""
    source = model.original
    if source is None or free_dimensions(model) is None:
        try:
            source = write_model(model.proto, model.weights, None) or b""
        except UsageError as error:
            raise DeviceError(
                f"OpenVINO cannot run this model with shapes other than those of its file: {error}"
            ) from error
    if isinstance(source, Path):
        return _made("model", "ov_core_read_model", core.pointer, os.fsencode(source), None)
    return _made("model", "ov_core_read_model_from_memory_buffer", core.pointer, source, len(source), None)


def _bind(network: Handle, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Set the shapes of the network's inputs, except those that it dropped as unused."""
    shapes = {
        name: shape
        for name, shape in shapes.items()
        if _has(network, "ov_model_const_input_by_name", name, "output_const_port")
    }
    if not shapes:
        return
    with _partial_shapes(tuple(shapes.values())) as bound:
        names = (ctypes.c_char_p * len(shapes))(*(name.encode() for name in shapes))
        call("ov_model_reshape", network.pointer, names, bound, len(shapes))


@contextmanager
def _partial_shapes(shapes: Sequence[tuple[int, ...]]) -> Iterator[ctypes.Array[PartialShape]]:
    bound = (PartialShape * len(shapes))()
    try:
        for shape, each in zip(shapes, bound, strict=True):
            call("ov_partial_shape_create_static", len(shape), _sizes(shape), ctypes.byref(each))
        yield bound
    finally:
        for each in bound:
            library().ov_partial_shape_free(ctypes.byref(each))


def _sizes(shape: Sequence[int]) -> ctypes.Array[ctypes.c_int64]:
    return (ctypes.c_int64 * max(len(shape), 1))(*shape)


def _tensor_over(array: np.ndarray) -> Handle:
    shape = Shape(array.ndim, _sizes(array.shape))
    return _made("tensor", "ov_tensor_create_from_host_ptr", ELEMENT_TYPE[array.dtype.name], shape, array.ctypes.data)


def _made(kind: str, function: str, *arguments: object) -> Handle:
    pointer = ctypes.c_void_p()
    call(function, *arguments, ctypes.byref(pointer))
    return Handle(pointer.value or 0, getattr(library(), f"ov_{kind}_free"))


def _has(owner: Handle, function: str, name: str, kind: str) -> bool:
    pointer = ctypes.c_void_p()
    if getattr(library(), function)(owner.pointer, name.encode(), ctypes.byref(pointer)):
        return False
    Handle(pointer.value or 0, getattr(library(), f"ov_{kind}_free")).close()
    return True


_Types = Mapping[str, str]
"""Element types of tensors by name."""


def newer_use(model: Model) -> str | None:
    """The first node that OpenVINO would compute differently from its opset's definition, for users; None if none."""
    types = {name: spec.dtype for name, spec in model.graph.tensor.items()}
    types.update({name: array.dtype.name for name, array in model.weights.items()})
    for node in model.proto.graph.node:
        uses = _NEWER.get(node.op_type) if is_standard(node) else None
        if uses is not None and uses(node, types):
            return f"{node.op_type} {node.name!r} as defined by newer opsets"
    return None


def _reads_columns_first(node: onnx.NodeProto, _: _Types) -> bool:
    return text(node, "mode", "DCR") != "DCR"


def _shifts_signed(node: onnx.NodeProto, types: _Types) -> bool:
    return types.get(node.input[0], "").startswith("int")


_NEWER: Mapping[str, Callable[[onnx.NodeProto, _Types], bool]] = {
    "BitShift": _shifts_signed,  # opset 28: right shifts of negative numbers round down
    "SpaceToDepth": _reads_columns_first,  # opset 28: the attribute `mode`
}
"""Operators that OpenVINO 2026.4 computes differently from onnxruntime 1.32, except those that it refuses."""
