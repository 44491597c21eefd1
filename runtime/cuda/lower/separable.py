"""Lowers a ReLU with a depthwise and a pointwise convolution behind it, operators of type ReluSepConv."""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from iosched.models.graph import Operator
from iosched.runtime.cuda.builder import Builder
from iosched.runtime.cuda.kernels.add import AddN
from iosched.runtime.cuda.kernels.conv import lower_conv
from iosched.runtime.cuda.kernels.convolution import Convolution, fused_convolution, output_shape, plain_convolution
from iosched.runtime.cuda.kernels.depthwise import Depthwise, depthwise_weight
from iosched.runtime.cuda.kernels.separable import lower_separable
from iosched.runtime.cuda.lower.sums import terms_of
from iosched.runtime.cuda.source.activation import IDENTITY, RELU

TYPE = "ReluSepConv"


def lower(builder: Builder, operator: Operator, nodes: Sequence[onnx.NodeProto], variant: int | None) -> bool:
    """The sum of the terms, then a kernel for each convolution or, of a `variant`, one kernel for both."""
    first = next(index for index, node in enumerate(nodes) if node.op_type == "Relu")
    terms = terms_of(nodes[first].input[0], nodes[:first])
    depthwise = plain_convolution(builder, nodes[first + 1], operator)
    if depthwise is None or len(depthwise.strides) > 2 or min(depthwise.pads) < 0:
        return False
    pointwise = _pointwise(builder, nodes[first + 2 :], len(depthwise.strides))
    if pointwise is None:
        return False
    source = terms[0]
    if len(terms) > 1:
        source = builder.temporary(f"{operator.name}/sum", builder.shape(terms[0]))
        builder.emit(AddN(RELU), terms, (source,))
    together = depthwise.reading(source), pointwise
    if variant is not None and lower_separable(
        builder, *together, operator.name, relu=len(terms) == 1, variant=variant
    ):
        return True
    shape = output_shape(builder.shape(source), depthwise)
    inner = builder.temporary(f"{operator.name}/depthwise", shape)
    weight = builder.weight(f"{operator.name}/depthwise/weight", depthwise_weight(depthwise.weight))
    bias = builder.float32_weight(f"{operator.name}/depthwise/bias", depthwise.bias)
    kernel = Depthwise(
        depthwise.kernel_shape, depthwise.strides, depthwise.pads, depthwise.dilations, len(terms) == 1, IDENTITY
    )
    builder.emit(kernel, (source, weight, bias), (inner,))
    return lower_conv(builder, pointwise.reading(inner), operator.name, operator.name)


def _pointwise(builder: Builder, nodes: Sequence[onnx.NodeProto], axes: int) -> Convolution | None:
    """A pointwise convolution, whose attributes the operator does not carry: they are all ones and zeros."""
    plain = Operator(
        name="",
        type="Conv",
        nodes=(),
        inputs=(),
        outputs=("",),
        attributes=(("dilations", (1,) * axes), ("pads", (0, 0) * axes), ("strides", (1,) * axes)),
    )
    return fused_convolution(builder, nodes, plain)
