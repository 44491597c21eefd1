"""Kernels, one file each: numpy reference, launch, and lowering of nodes (`NODES`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import onnx

from iosched.runtime.cuda.builder import Builder
from iosched.runtime.cuda.kernels import (
    add,
    batch_norm,
    binary,
    conv,
    copy,
    elementwise,
    lrn,
    normalize,
    pool,
    product,
    reduce,
    resize,
    slicing,
    softmax,
)
from iosched.runtime.cuda.source.activation import ACTIVATIONS

Lower = Callable[[Builder, onnx.NodeProto], bool]

_BINARY = ("Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "PRelu", "Equal", "Less", "LessOrEqual", "Greater",
           "GreaterOrEqual", "And", "Or", "Xor")  # fmt: skip
_REDUCE = ("Mean", "Sum", "Max", "Min", "Prod", "SumSquare", "L1", "L2")

NODES: Mapping[str, Lower] = {
    **dict.fromkeys(ACTIVATIONS, elementwise.lower),
    **dict.fromkeys(_BINARY, binary.lower),
    **{f"Reduce{kind}": reduce.lower for kind in _REDUCE},
    "AveragePool": pool.lower,
    "BatchNormalization": batch_norm.lower,
    "Cast": elementwise.lower_cast,
    "Conv": conv.lower,
    "Gather": slicing.lower_gather,
    "Gemm": product.lower,
    "GlobalAveragePool": reduce.lower_global,
    "GlobalMaxPool": reduce.lower_global,
    "InstanceNormalization": normalize.lower_instance,
    "LRN": lrn.lower,
    "LayerNormalization": normalize.lower_layer,
    "LogSoftmax": softmax.lower,
    "MatMul": product.lower,
    "MaxPool": pool.lower,
    "Pad": slicing.lower_pad,
    "Resize": resize.lower,
    "Slice": slicing.lower,
    "Softmax": softmax.lower,
    "Sum": lambda builder, node: add.lower(builder, node) or binary.lower(builder, node),
    "Transpose": copy.lower,
    "Upsample": resize.lower,
    "Where": binary.lower_where,
}
"""Lowering of nodes by ONNX type: emits calls and returns True, or emits nothing and returns False."""
