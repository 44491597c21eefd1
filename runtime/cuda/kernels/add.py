"""Sums of several tensors, with an activation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from iosched.runtime.cuda.builder import Builder
from iosched.runtime.cuda.kernel import CudaCall
from iosched.runtime.cuda.source.activation import IDENTITY, Activation
from iosched.runtime.cuda.source.elements import FLOATS, summed
from iosched.runtime.cuda.source.loops import operand, shape_of
from iosched.runtime.cuda.source.pointwise import pointwise_call
from iosched.runtime.plan import View

MAX_TERMS = 16


@dataclass(frozen=True)
class AddN:
    """y = activation(sum of 1 to 16 terms) of one shape; float32 or float16, summed in float32 in order.

    Vectorized to 16 bytes where channels, strides and offsets allow it.
    """

    activation: Activation = IDENTITY

    def interpret(self, reads: Sequence[np.ndarray], writes: Sequence[np.ndarray]) -> None:
        """See the class."""
        writes[0][...] = self.activation(summed(reads))

    def call(self, reads: Sequence[View], writes: Sequence[View]) -> CudaCall:
        """See `SourceKernel.call`."""
        terms = " + ".join(f"x{k}" for k in range(len(reads)))
        body = f"const float sum = {terms}; const float y = {self.activation.expression('sum')};"
        return pointwise_call(
            shape_of(writes[0]), [operand(view) for view in reads], operand(writes[0]), body, entry="add_n"
        )


def lower(builder: Builder, node: onnx.NodeProto) -> bool:
    """Sum of computed tensors of one shape and type; `binary` lowers Add."""
    output = builder.tensors[node.output[0]]
    alike = all(
        name in builder.tensors
        and (builder.tensors[name].shape, builder.tensors[name].dtype) == (output.shape, output.dtype)
        for name in node.input
    )
    if not alike or output.dtype not in FLOATS or len(node.input) > MAX_TERMS:
        return False
    builder.emit(AddN(), node.input, node.output)
    return True
