"""Elementwise functions, and the ONNX nodes that are such functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from iosched.models.node_attributes import number, text
from iosched.models.wiring import is_standard
from iosched.runtime.cuda.builder import Builder
from iosched.runtime.cuda.kernel import CudaCall
from iosched.runtime.cuda.kernels.copy import Copy
from iosched.runtime.cuda.source.activation import Activation, is_supported
from iosched.runtime.cuda.source.elements import C_TYPES, FLOATS, widened
from iosched.runtime.cuda.source.loops import operand, shape_of
from iosched.runtime.cuda.source.pointwise import pointwise_call
from iosched.runtime.plan import View

_ALPHA = {"LeakyRelu": 0.01, "Elu": 1.0, "Celu": 1.0, "Selu": 1.6732632, "HardSigmoid": 0.2, "Swish": 1.0,
          "ThresholdedRelu": 1.0}  # fmt: skip
_BETA = {"Selu": 1.0507010, "HardSigmoid": 0.5}


@dataclass(frozen=True)
class Unary:
    """y = function(x), float32 or float16, computed in float32; vectorized to 16 bytes where possible."""

    function: Activation

    def interpret(self, reads: Sequence[np.ndarray], writes: Sequence[np.ndarray]) -> None:
        """See the class."""
        writes[0][...] = self.function(widened(reads[0]))

    def call(self, reads: Sequence[View], writes: Sequence[View]) -> CudaCall:
        """See `SourceKernel.call`."""
        body = f"const float y = {self.function.expression('x0')};"
        return pointwise_call(shape_of(writes[0]), [operand(reads[0])], operand(writes[0]), body, entry="unary")


def lower(builder: Builder, node: onnx.NodeProto) -> bool:
    """Functions of `Activation` on floats, with constant parameters."""
    function = activation_of(builder, node)
    spec = builder.tensors.get(node.input[0])
    if function is None or spec is None or spec.dtype not in FLOATS:
        return False
    builder.emit(Unary(function), node.input[:1], node.output)
    return True


def lower_cast(builder: Builder, node: onnx.NodeProto) -> bool:
    """Cast between numbers; floats become integers by truncation."""
    x, y = builder.tensors.get(node.input[0]), builder.tensors[node.output[0]]
    if x is None or x.dtype not in C_TYPES or y.dtype not in C_TYPES:
        return False
    builder.emit(Copy(), node.input, node.output)
    return True


def activation_of(builder: Builder, node: onnx.NodeProto) -> Activation | None:
    """The activation that `node` computes; None for other nodes and computed parameters."""
    kind = node.op_type
    if not is_standard(node) or not is_supported(kind):
        return None
    if kind == "Clip":
        return _clip(builder, node)
    alpha = number(node, "alpha", _ALPHA.get(kind, 0.0))
    beta = number(node, "gamma" if kind == "Selu" else "beta", _BETA.get(kind, 0.0))
    if kind == "Gelu":
        beta = float(text(node, "approximate") == "tanh")
    return Activation(kind, alpha, beta)


def _clip(builder: Builder, node: onnx.NodeProto) -> Activation | None:
    bounds = [number(node, "min", float("-inf")), number(node, "max", float("inf"))]
    for position, name in enumerate(node.input[1:3]):
        if not name:
            continue
        constant = builder.constant(name)
        if constant is None or constant.size != 1:
            return None
        bounds[position] = float(constant.reshape(-1)[0])
    return Activation("Clip", bounds[0], bounds[1])
