"""Lowers convolutions with what is fused into them (operators of type Conv and ReluConv), alone and merged."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import onnx

from iosched.models.graph import Operator
from iosched.runtime.cuda.builder import Builder
from iosched.runtime.cuda.kernels.add import AddN
from iosched.runtime.cuda.kernels.conv import lower_conv
from iosched.runtime.cuda.kernels.convolution import Convolution, fused_convolution, merged_convolution, output_shape
from iosched.runtime.cuda.lower.moves import Cut
from iosched.runtime.cuda.source.activation import RELU


def lower(builder: Builder, operator: Operator, nodes: Sequence[onnx.NodeProto], variant: int | None) -> bool:
    """One convolution with bias, residual and activation."""
    found = fused_convolution(builder, nodes, operator)
    return found is not None and lower_conv(builder, found, operator.name, operator.name)


def lower_merged(
    builder: Builder, operators: Sequence[Operator], nodes: Mapping[str, onnx.NodeProto], rectified: Collection[str]
) -> bool:
    """One convolution for all of `operators`, and a view of its result for each of them.

    Args:
        rectified: tensors that hold what a ReLU makes of them; see `hoist`.
    """
    parts = [fused_convolution(builder, [nodes[name] for name in each.nodes], each) for each in operators]
    found = [_without_relu(part, rectified) for part in parts if part is not None]
    if len(found) < len(parts) or len({(part.x, part.activation, part.leading_relu) for part in found}) > 1:
        return False
    if any(part.residual is not None or part.groups != 1 for part in found):
        return False
    merged = merged_convolution(found)
    names = [each.name for each in operators]
    late = [name for name in names if name in rectified and merged.activation.is_identity]
    if len(late) == len(names):
        merged, late = replace(merged, activation=RELU), []
    name = "merged:" + "+".join(names)
    shape = output_shape(builder.shape(merged.x), merged)
    target = builder.temporary(name, shape)
    if not all(map(builder.is_float, names)) or not lower_conv(builder, merged, target, name):
        return False
    written = {each: builder.temporary(f"{each}/linear", builder.shape(each)) for each in late}
    builder.emit(Cut(1), (target,), [written.get(each, each) for each in names])
    for each, linear in written.items():
        builder.emit(AddN(RELU), (linear,), (each,))
    return True


def _without_relu(part: Convolution, rectified: Collection[str]) -> Convolution:
    """The convolution, without a ReLU of what has gone through one already."""
    return replace(part, leading_relu=part.leading_relu and part.x not in rectified)
