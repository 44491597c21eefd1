"""Binary functions and Where, with broadcasting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from iosched.models.wiring import standard_opset
from iosched.runtime.cuda.builder import Builder
from iosched.runtime.cuda.kernel import CudaCall
from iosched.runtime.cuda.source.elements import C_TYPES, FLOATS, compute_type, widened
from iosched.runtime.cuda.source.loops import operand, shape_of
from iosched.runtime.cuda.source.pointwise import pointwise_call
from iosched.runtime.plan import View

_INTEGERS = ("int32", "int64")
_NUMPY_BROADCAST_SINCE = 7
_FEW = 4096


@dataclass(frozen=True)
class _Function:
    reference: Callable[[np.ndarray, np.ndarray], np.ndarray]
    expression: str
    types: tuple[str, ...] = (*FLOATS, *_INTEGERS)  # of both operands


_FUNCTIONS = {
    "Add": _Function(np.add, "x0 + x1"),
    "Sub": _Function(np.subtract, "x0 - x1"),
    "Mul": _Function(np.multiply, "x0 * x1"),
    "Div": _Function(np.divide, "x0 / x1", FLOATS),
    "Pow": _Function(np.power, "powf(x0, x1)", FLOATS),
    "Max": _Function(np.maximum, "x0 < x1 ? x1 : x0"),
    "Min": _Function(np.minimum, "x1 < x0 ? x1 : x0"),
    "PRelu": _Function(lambda x, slope: np.where(x < 0, x * slope, x), "x0 < 0.0f ? x0 * x1 : x0", FLOATS),
    "Equal": _Function(np.equal, "x0 == x1"),
    "Less": _Function(np.less, "x0 < x1"),
    "LessOrEqual": _Function(np.less_equal, "x0 <= x1"),
    "Greater": _Function(np.greater, "x0 > x1"),
    "GreaterOrEqual": _Function(np.greater_equal, "x0 >= x1"),
    "And": _Function(np.logical_and, "x0 && x1", ("bool",)),
    "Or": _Function(np.logical_or, "x0 || x1", ("bool",)),
    "Xor": _Function(np.logical_xor, "x0 != x1", ("bool",)),
}


@dataclass(frozen=True)
class Binary:
    """y = x0 (kind) x1 with numpy's broadcasting; floats in float32, integers in their own type.

    Attributes:
        kind: ONNX type; PRelu takes the slope as x1.
    """

    kind: str

    def interpret(self, reads: Sequence[np.ndarray], writes: Sequence[np.ndarray]) -> None:
        """See the class."""
        with np.errstate(all="ignore"):
            writes[0][...] = _FUNCTIONS[self.kind].reference(widened(reads[0]), widened(reads[1]))

    def call(self, reads: Sequence[View], writes: Sequence[View]) -> CudaCall:
        """See `SourceKernel.call`."""
        shape = shape_of(writes[0])
        operands = [operand(view, shape) for view in reads]
        body = f"const auto y = {_FUNCTIONS[self.kind].expression};"
        return pointwise_call(shape, operands, operand(writes[0]), body, entry="binary")


@dataclass(frozen=True)
class Where:
    """y = x1 where x0 is true, else x2, with numpy's broadcasting; x1 and x2 have y's type, or are floats like y."""

    def interpret(self, reads: Sequence[np.ndarray], writes: Sequence[np.ndarray]) -> None:
        """See the class."""
        writes[0][...] = np.where(*reads)

    def call(self, reads: Sequence[View], writes: Sequence[View]) -> CudaCall:
        """See `SourceKernel.call`."""
        shape = shape_of(writes[0])
        operands = [operand(view, shape) for view in reads]
        body = f"const {compute_type(writes[0].dtype)} y = x0 ? x1 : x2;"
        return pointwise_call(shape, operands, operand(writes[0]), body, entry="where")


def lower(builder: Builder, node: onnx.NodeProto) -> bool:
    """A node with two inputs; Max, Min and Sum of more become a chain."""
    if standard_opset(builder.model.proto) < _NUMPY_BROADCAST_SINCE:
        return False
    stored = [_stored(builder, name) for name in node.input]
    types = {builder.tensors[name].dtype for name in stored}
    kind = "Add" if node.op_type == "Sum" else node.op_type
    known = len(types) == 1 or types.issubset(FLOATS)
    if len(stored) < 2 or not known or not types.issubset(_FUNCTIONS[kind].types):
        return False
    inner = builder.tensors[node.output[0]].dtype
    current = stored[0]
    for position, name in enumerate(stored[1:], 1):
        target = node.output[0]
        if position < len(stored) - 1:
            shape = np.broadcast_shapes(builder.shape(current), builder.shape(name))
            target = builder.temporary(f"{node.output[0]}/{position}", shape, inner)
        builder.emit(Binary(kind), (current, name), (target,))
        current = target
    return True


def lower_where(builder: Builder, node: onnx.NodeProto) -> bool:
    """Where."""
    stored = [_stored(builder, name) for name in node.input]
    dtype = builder.tensors[node.output[0]].dtype
    alike = FLOATS if dtype in FLOATS else (dtype,)
    if any(builder.tensors[name].dtype not in alike for name in stored[1:]) or dtype not in C_TYPES:
        return False
    builder.emit(Where(), stored, node.output)
    return True


def _stored(builder: Builder, name: str) -> str:
    """Small weights stay float32 at any precision."""
    constant = None if name in builder.tensors else builder.constant(name)
    if constant is None:
        return name
    if constant.dtype == np.float32 and constant.size <= _FEW:
        return builder.float32_weight(name, constant)
    return builder.stored_weight(name)
