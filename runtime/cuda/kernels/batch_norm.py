"""Batch normalization that is not folded into a convolution."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from iosched.models.node_attributes import integer, number
from iosched.runtime.cuda.builder import Builder
from iosched.runtime.cuda.kernel import CudaCall
from iosched.runtime.cuda.source.activation import IDENTITY, Activation
from iosched.runtime.cuda.source.elements import FLOATS, widened
from iosched.runtime.cuda.source.loops import Operand, operand, shape_of
from iosched.runtime.cuda.source.pointwise import pointwise_call
from iosched.runtime.plan import View


@dataclass(frozen=True)
class ScaleShift:
    """y = activation(x * scale + shift) by channel; reads x, and scale and shift: float32 (C,)."""

    activation: Activation = IDENTITY

    def interpret(self, reads: Sequence[np.ndarray], writes: Sequence[np.ndarray]) -> None:
        """See the class."""
        x = widened(reads[0])
        scale, shift = (array.reshape(-1, *(1,) * (x.ndim - 2)) for array in reads[1:])
        writes[0][...] = self.activation(x * scale + shift)

    def call(self, reads: Sequence[View], writes: Sequence[View]) -> CudaCall:
        """See `SourceKernel.call`."""
        shape = shape_of(writes[0])
        strides = tuple(int(axis == 1) for axis in range(len(shape)))
        vectors = [Operand(view.dtype, strides, 0, view.offset) for view in reads[1:]]
        body = f"const float z = fmaf(x0, x1, x2); const float y = {self.activation.expression('z')};"
        operands = [operand(reads[0]), *vectors]
        return pointwise_call(shape, operands, operand(writes[0]), body, entry="scale_shift")


def lower(builder: Builder, node: onnx.NodeProto) -> bool:
    """Inference BatchNormalization with constant parameters."""
    spec = builder.tensors.get(node.input[0])
    constants = [builder.constant(name) for name in node.input[1:5]]
    training = integer(node, "training_mode") == 1 or any(node.output[1:])
    if spec is None or spec.dtype not in FLOATS or len(spec.shape or ()) < 2 or training:
        return False
    if any(array is None for array in constants) or integer(node, "spatial", 1) != 1:
        return False
    gamma, beta, mean, variance = (np.asarray(array, np.float64) for array in constants)
    scale = gamma / np.sqrt(variance + number(node, "epsilon", 1e-5))
    name = node.output[0]
    vectors = (
        builder.float32_weight(f"{name}/scale", scale),
        builder.float32_weight(f"{name}/shift", beta - mean * scale),
    )
    builder.emit(ScaleShift(), (node.input[0], *vectors), node.output[:1])
    return True
