"""Functions of two elements, and the choice between two, with broadcasting."""

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
class _Form:
    """A function of `x0` and `x1`."""

    meaning: Callable[[np.ndarray, np.ndarray], np.ndarray]
    expression: str
    types: tuple[str, ...] = (*FLOATS, *_INTEGERS)  # of both operands


_FORMS = {
    "Add": _Form(np.add, "x0 + x1"),
    "Sub": _Form(np.subtract, "x0 - x1"),
    "Mul": _Form(np.multiply, "x0 * x1"),
    "Div": _Form(np.divide, "x0 / x1", FLOATS),
    "Pow": _Form(np.power, "powf(x0, x1)", FLOATS),
    "Max": _Form(np.maximum, "x0 < x1 ? x1 : x0"),
    "Min": _Form(np.minimum, "x1 < x0 ? x1 : x0"),
    "PRelu": _Form(lambda x, slope: np.where(x < 0, x * slope, x), "x0 < 0.0f ? x0 * x1 : x0", FLOATS),
    "Equal": _Form(np.equal, "x0 == x1"),
    "Less": _Form(np.less, "x0 < x1"),
    "LessOrEqual": _Form(np.less_equal, "x0 <= x1"),
    "Greater": _Form(np.greater, "x0 > x1"),
    "GreaterOrEqual": _Form(np.greater_equal, "x0 >= x1"),
    "And": _Form(np.logical_and, "x0 && x1", ("bool",)),
    "Or": _Form(np.logical_or, "x0 || x1", ("bool",)),
    "Xor": _Form(np.logical_xor, "x0 != x1", ("bool",)),
}


@dataclass(frozen=True)
class Binary:
    """y = x0 (kind) x1, broadcast as numpy does; floats are computed in float32, integers in their own type.

    Attributes:
        kind: ONNX type; PRelu takes the slope as x1.
    """

    kind: str

    def interpret(self, reads: Sequence[np.ndarray], writes: Sequence[np.ndarray]) -> None:
        """See the class."""
        with np.errstate(all="ignore"):
            writes[0][...] = _FORMS[self.kind].meaning(widened(reads[0]), widened(reads[1]))

    def call(self, reads: Sequence[View], writes: Sequence[View]) -> CudaCall:
        """See `SourceKernel.call`."""
        shape = shape_of(writes[0])
        operands = [operand(view, shape) for view in reads]
        body = f"const auto y = {_FORMS[self.kind].expression};"
        return pointwise_call(shape, operands, operand(writes[0]), body, entry="binary")


@dataclass(frozen=True)
class Where:
    """y = x1 where x0 is true, x2 elsewhere, broadcast as numpy does; x1 and x2 are of y's type, or floats as y is."""

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
    """A node of two inputs; Max, Min and Sum of more become a chain."""
    if standard_opset(builder.model.proto) < _NUMPY_BROADCAST_SINCE:
        return False
    stored = [_stored(builder, name) for name in node.input]
    types = {builder.tensors[name].dtype for name in stored}
    kind = "Add" if node.op_type == "Sum" else node.op_type
    known = len(types) == 1 or types.issubset(FLOATS)
    if len(stored) < 2 or not known or not types.issubset(_FORMS[kind].types):
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
    """The tensor, or the constant that keeps a weight of the model; small ones in float32 whatever the precision."""
    constant = None if name in builder.tensors else builder.constant(name)
    if constant is None:
        return name
    if constant.dtype == np.float32 and constant.size <= _FEW:
        return builder.float32_weight(name, constant)
    return builder.stored_weight(name)
