"""Kernels of onnxruntime as objects of the compiled executor: sessions, and operators without one."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from iosched.runtime.cpu.kernels import ELEMENT_TYPE, InvokedNode, Program
from iosched.runtime.cpu.library import call
from iosched.runtime.handle import Handle
from iosched.runtime.plan import View

KINDS: Mapping[int, tuple[int, str, Any]] = {
    onnx.AttributeProto.INT: (1, "i", ctypes.c_int64),
    onnx.AttributeProto.INTS: (2, "ints", ctypes.c_int64),
    onnx.AttributeProto.FLOAT: (3, "f", ctypes.c_float),
    onnx.AttributeProto.FLOATS: (4, "floats", ctypes.c_float),
    onnx.AttributeProto.STRING: (5, "s", ctypes.c_char_p),
    onnx.AttributeProto.STRINGS: (6, "strings", ctypes.c_char_p),
}
"""For each attribute type: onnxruntime's number, ONNX's field, and the C type that onnxruntime reads."""


class _Weight(ctypes.Structure):
    """A constant that a session borrows."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("data", ctypes.c_void_p),
        ("nbytes", ctypes.c_int64),
        ("type", ctypes.c_int64),
        ("rank", ctypes.c_int64),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
    )


class _Attribute(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("data", ctypes.c_void_p),
        ("count", ctypes.c_int64),
        ("type", ctypes.c_int64),
    )


class _Description(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("domain", ctypes.c_char_p),
        ("version", ctypes.c_int64),
        ("constraints", ctypes.POINTER(ctypes.c_char_p)),
        ("types", ctypes.POINTER(ctypes.c_int)),
        ("n_constraints", ctypes.c_int64),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("n_attributes", ctypes.c_int64),
        ("constants", ctypes.POINTER(_Weight)),
        ("n_constants", ctypes.c_int64),
        ("sources", ctypes.POINTER(ctypes.c_int64)),
        ("n_sources", ctypes.c_int64),
        ("views", ctypes.POINTER(ctypes.c_int64)),
        ("n_reads", ctypes.c_int64),
        ("n_writes", ctypes.c_int64),
    )


@dataclass(frozen=True)
class RuntimeHandle:
    """A runtime of the compiled executor: its library and its address."""

    library: ctypes.CDLL
    pointer: int


def session(runtime: RuntimeHandle, program: Program, cpus: Sequence[int]) -> Handle:
    """Create the session of a program, whose weights must outlive it, on these processors, the caller's first."""
    inputs, outputs = _texts(program.inputs), _texts(program.outputs)
    weights = (_Weight * len(program.weights))(*(_weight(name, array) for name, array in program.weights))
    pointer = call(
        runtime.library.iosched_session_create,
        *(runtime.pointer, program.model, len(program.model), weights, len(weights)),
        *(inputs, len(inputs), outputs, len(outputs), _int64s(cpus), len(cpus)),
    )
    return Handle(pointer, runtime.library.iosched_kernel_release)


def _weight(name: str, array: np.ndarray) -> _Weight:
    if not array.flags.c_contiguous or array.dtype.name not in ELEMENT_TYPE:
        raise ValueError(
            f"weight {name!r} must be a C-contiguous numeric array, not {array.dtype} with strides {array.strides}"
        )
    shape = (ctypes.c_int64 * array.ndim)(*array.shape)
    kind = ELEMENT_TYPE[array.dtype.name]
    return _Weight(name.encode(), array.ctypes.data, array.nbytes, kind, array.ndim, shape)


def _texts(names: Sequence[str]) -> ctypes.Array[ctypes.c_char_p]:
    return (ctypes.c_char_p * len(names))(*(name.encode() for name in names))


def prepare(runtime: RuntimeHandle) -> None:
    """Prepare the runtime for operators.

    Raises:
        ExecutionError: this onnxruntime cannot run them.
    """
    call(runtime.library.iosched_runtime_prepare, runtime.pointer)


def operator(runtime: RuntimeHandle, invoked: InvokedNode) -> Handle:
    """Create the operator of a node in a prepared runtime; its constants must outlive it."""
    kept: list[Any] = []
    description = _description(invoked, kept)
    pointer = call(runtime.library.iosched_operator_create, runtime.pointer, ctypes.byref(description))
    return Handle(pointer, runtime.library.iosched_kernel_release)


def inferred(runtime: RuntimeHandle, operators: Sequence[InvokedNode]) -> list[bool]:
    """For each node, whether onnxruntime infers exactly the node's outputs."""
    kept: list[Any] = []
    descriptions = [_description(each, kept) for each in operators]
    pointers = (ctypes.c_void_p * len(operators))(*map(ctypes.addressof, descriptions))
    found = (ctypes.c_int * len(operators))()
    call(runtime.library.iosched_operators_inferred, runtime.pointer, pointers, len(operators), found)
    return list(map(bool, found))


def _description(invoked: InvokedNode, kept: list[Any]) -> _Description:
    """The node for the library; data that it points to is added to `kept`."""
    attributes = [_attribute(each, kept) for each in invoked.attributes]
    constants = [_weight("", array) for array in invoked.constants]
    views = [word for view in (*invoked.reads, *invoked.writes) for word in _words(view)]
    names, types = [name.encode() for name in invoked.constraints], list(invoked.constraints.values())
    return _Description(
        *(invoked.op_type.encode(), invoked.domain.encode(), invoked.version),
        *((ctypes.c_char_p * len(names))(*names), (ctypes.c_int * len(types))(*types), len(names)),
        *((_Attribute * len(attributes))(*attributes), len(attributes)),
        *((_Weight * len(constants))(*constants), len(constants)),
        *(_int64s(invoked.sources), len(invoked.sources)),
        *(_int64s(views), len(invoked.reads), len(invoked.writes)),
    )


def executor(runtime: RuntimeHandle, words: Sequence[int], kernels: Sequence[Handle], cpus: Sequence[int]) -> Handle:
    """Create an executor of the plan that `PlanEncoder.words` describes, on these processors: one for each lane."""
    pointers = (ctypes.c_void_p * len(kernels))(*(each.pointer for each in kernels))
    pointer = call(
        runtime.library.iosched_executor_create,
        *(runtime.pointer, _int64s(words), len(words), pointers, len(kernels), _int64s(cpus), len(cpus)),
    )
    return Handle(pointer, runtime.library.iosched_executor_release)


def _words(view: View) -> Sequence[int]:
    assert view.shape is not None
    return ELEMENT_TYPE[view.dtype], len(view.shape), *view.shape


def _int64s(words: Sequence[int]) -> ctypes.Array[ctypes.c_int64]:
    return (ctypes.c_int64 * len(words))(*words)


def _attribute(attribute: onnx.AttributeProto, kept: list[Any]) -> _Attribute:
    """The attribute for onnxruntime; the data that it points to is added to `kept`."""
    kind, field, c_type = KINDS[attribute.type]
    value = getattr(attribute, field)
    if field in ("i", "f"):
        value = (value,)
    data = value if field == "s" else (c_type * len(value))(*value)
    kept.append(data)
    return _Attribute(attribute.name.encode(), ctypes.cast(data, ctypes.c_void_p), len(value), kind)
