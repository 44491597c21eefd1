"""Counts the floating-point operations (FLOPs) of one ONNX node; a multiply and an add count as two."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

import onnx

from iosched.models.node_attributes import integer, integers

Shape = tuple[int, ...]
Shapes = Sequence[Shape | None]

# Nodes of these types only move or rename data, and count as no work.
_MOVES = frozenset({
    "Cast", "CastLike", "Concat", "ConstantOfShape", "DepthToSpace", "DequantizeLinear", "Expand", "Flatten",
    "Gather", "GatherElements", "GatherND", "Identity", "OneHot", "Pad", "QuantizeLinear", "Reshape",
    "ScatterElements", "ScatterND", "Shape", "Size", "Slice", "SpaceToDepth", "Split", "Squeeze", "Tile",
    "Transpose", "Unsqueeze", "If", "Loop", "Scan", "SequenceAt", "SequenceConstruct", "SequenceInsert",
    "ConcatFromSequence", "SplitToSequence",
})  # fmt: skip
# Operations for each element of the result, for the types that clearly need more than one.
_PER_ELEMENT = {"BatchNormalization": 2, "Softmax": 4, "LogSoftmax": 4, "LRN": 8, "LayerNormalization": 8, "Gelu": 8}


def node_flops(node: onnx.NodeProto, inputs: Shapes, outputs: Shapes) -> int:
    """FLOPs of `node` for the shapes of its inputs and outputs; 0 where they are not known.

    Products count 2 x multiply-accumulates, pooling one per window element, reductions one per input element, and the
    rest one per output element.
    """
    count = _BY_TYPE.get(node.op_type)
    if count is not None:
        return count(node, inputs, outputs)
    if node.op_type in _MOVES:
        return 0
    if node.op_type.startswith(("Reduce", "ArgM", "Global", "CumSum")):
        return _size(inputs[:1])
    if node.op_type == "Sum":
        return _size(outputs[:1]) * max(len(inputs) - 1, 0)
    return _size(outputs[:1]) * _PER_ELEMENT.get(node.op_type, 1)


def _size(shapes: Shapes) -> int:
    return sum(prod(shape) for shape in shapes if shape is not None)


def _conv(node: onnx.NodeProto, inputs: Shapes, outputs: Shapes) -> int:
    # In quantized forms, scale and zero point stand between the data and the kernel.
    kernel = next((shape for shape in inputs[1:] if shape is not None and len(shape) >= 3), None)
    if kernel is None or not outputs or outputs[0] is None:
        return 0
    return 2 * prod(outputs[0]) * prod(kernel[1:])


def _conv_transpose(node: onnx.NodeProto, inputs: Shapes, outputs: Shapes) -> int:
    if len(inputs) < 2 or inputs[0] is None or inputs[1] is None:
        return 0
    return 2 * prod(inputs[0]) * prod(inputs[1][1:])


def _gemm(node: onnx.NodeProto, inputs: Shapes, outputs: Shapes) -> int:
    if not inputs or inputs[0] is None or len(inputs[0]) != 2 or not outputs or outputs[0] is None:
        return 0
    inner = inputs[0][0] if integer(node, "transA") else inputs[0][1]
    return 2 * prod(outputs[0]) * inner


def _matmul(node: onnx.NodeProto, inputs: Shapes, outputs: Shapes) -> int:
    if not inputs or not inputs[0] or not outputs or outputs[0] is None:
        return 0
    return 2 * prod(outputs[0]) * inputs[0][-1]


def _pool(node: onnx.NodeProto, inputs: Shapes, outputs: Shapes) -> int:
    return _size(outputs[:1]) * prod(integers(node, "kernel_shape"))


_BY_TYPE: Mapping[str, Callable[[onnx.NodeProto, Shapes, Shapes], int]] = {
    "AveragePool": _pool,
    "Conv": _conv,
    "ConvInteger": _conv,
    "ConvTranspose": _conv_transpose,
    "FusedConv": _conv,
    "FusedMatMul": _matmul,
    "Gemm": _gemm,
    "LpPool": _pool,
    "MatMul": _matmul,
    "MatMulInteger": _matmul,
    "MaxPool": _pool,
    "QLinearConv": _conv,
    "QLinearMatMul": _matmul,
}
