"""Functions of one element."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from iosched.runtime.cuda.builder import Builder
from iosched.runtime.cuda.kernel import CudaCall
from iosched.runtime.cuda.kernels.copy import Copy
from iosched.runtime.cuda.nodes import activation_of
from iosched.runtime.cuda.source.activation import Activation
from iosched.runtime.cuda.source.elements import C_TYPES, FLOATS, widened
from iosched.runtime.cuda.source.loops import operand, shape_of
from iosched.runtime.cuda.source.pointwise import pointwise_call
from iosched.runtime.plan import View


@dataclass(frozen=True)
class Unary:
    """y = function(x), float32 or float16, computed in float32; 16 bytes at a time where strides and offsets allow."""

    function: Activation

    def interpret(self, reads: Sequence[np.ndarray], writes: Sequence[np.ndarray]) -> None:
        """See the class."""
        writes[0][...] = self.function(widened(reads[0]))

    def call(self, reads: Sequence[View], writes: Sequence[View]) -> CudaCall:
        """See `SourceKernel.call`."""
        body = f"const float y = {self.function.expression('x0')};"
        return pointwise_call(shape_of(writes[0]), [operand(reads[0])], operand(writes[0]), body, entry="unary")


def lower(builder: Builder, node: onnx.NodeProto) -> bool:
    """Every function that `Activation` knows, on floats, with constant parameters."""
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
