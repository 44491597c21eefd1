"""Convolutions as the runtime sees them: everything that can be folded into weight and bias is in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx

from iosched.models.fusion.affine import Affine, affine_of
from iosched.models.graph import Operator
from iosched.models.merging.stacking import is_gate, margins, padded_kernel
from iosched.runtime.cuda.builder import Builder
from iosched.runtime.cuda.kernels.elementwise import activation_of
from iosched.runtime.cuda.source.activation import IDENTITY, Activation


@dataclass(frozen=True, eq=False)
class Convolution:
    """activation(conv(relu?(x), weight) + bias + residual?).

    Attributes:
        x: the tensor read.
        weight: `(out, in / groups, *kernel)`, float64.
        bias: `(out,)`, float64.
        pads: begins of all axes, then ends.
        residual: a tensor of the result's shape that is added before the activation.
    """

    x: str
    weight: np.ndarray
    bias: np.ndarray
    strides: tuple[int, ...]
    pads: tuple[int, ...]
    dilations: tuple[int, ...]
    groups: int = 1
    leading_relu: bool = False
    residual: str | None = None
    activation: Activation = IDENTITY

    @property
    def kernel_shape(self) -> tuple[int, ...]:
        """Extent of the kernel along each axis."""
        return tuple(self.weight.shape[2:])

    def reading(self, x: str) -> Convolution:
        """The same convolution of another tensor."""
        return replace(self, x=x)


def plain_convolution(builder: Builder, node: onnx.NodeProto, operator: Operator) -> Convolution | None:
    """The convolution of `node` with the normalised attributes of `operator`; None where its weight is computed."""
    weight = builder.constant(node.input[1])
    bias = builder.constant(node.input[2]) if len(node.input) > 2 and node.input[2] else None
    if weight is None or (bias is None and len(node.input) > 2 and node.input[2]):
        return None
    return Convolution(
        x=node.input[0],
        weight=weight.astype(np.float64),
        bias=np.zeros(weight.shape[0]) if bias is None else bias.astype(np.float64),
        strides=operator.integers("strides"),
        pads=operator.integers("pads"),
        dilations=operator.integers("dilations"),
        groups=operator.integer("group", 1),
    )


def fused_convolution(builder: Builder, nodes: Sequence[onnx.NodeProto], operator: Operator) -> Convolution | None:
    """The convolution that the nodes of an operator of type Conv or ReluConv make; None where it takes more than one.

    The nodes are: a ReLU?, the convolution, batch normalizations and constant scales and shifts, the sum with a
    residual?, an activation (or the two nodes of x * sigmoid(x))?
    """
    position = next((index for index, node in enumerate(nodes) if node.op_type == "Conv"), None)
    if position is None or position > 1:
        return None
    found = plain_convolution(builder, nodes[position], operator)
    if found is None:
        return None
    if position == 1:
        found = replace(found, x=nodes[0].input[0], leading_relu=True)
    current = nodes[position].output[0]
    rest = list(nodes[position + 1 :])
    while rest:
        if found.activation.is_identity and is_gate(rest, current):
            return replace(found, activation=Activation("Swish", 1.0))
        node = rest.pop(0)
        folded = _with(builder, found, node, current)
        if folded is None:
            return None
        found, current = folded, node.output[0]
    return found


def _with(builder: Builder, known: Convolution, node: onnx.NodeProto, current: str) -> Convolution | None:
    """`known` followed by `node`, which reads its result as `current`."""
    if not known.activation.is_identity:
        return None
    affine = affine_of(node, current, builder.model.weights, known.weight.shape[0], known.weight.ndim)
    if affine is not None:
        return None if known.residual else _scaled(known, affine)
    others = [name for name in node.input if name != current]
    if node.op_type in ("Add", "Sum") and len(others) == 1 and len(node.input) == 2:
        is_sum = known.residual is None and builder.constant(others[0]) is None
        return replace(known, residual=others[0]) if is_sum else None
    activation = activation_of(builder, node)
    return None if activation is None else replace(known, activation=activation)


def _scaled(known: Convolution, affine: Affine) -> Convolution:
    factors = affine.scale.reshape((-1,) + (1,) * (known.weight.ndim - 1))
    return replace(known, weight=known.weight * factors, bias=known.bias * affine.scale + affine.shift)


def merged_convolution(parts: Sequence[Convolution]) -> Convolution:
    """One convolution for several of one input: kernels zero-padded around their centres, stacked along the outputs.

    Exact under the rule of `models.merge_rule`, which the caller has checked.
    """
    size = [max(extents) for extents in zip(*(part.kernel_shape for part in parts), strict=True)]
    padded = [padded_kernel(part.weight, size) for part in parts]
    first = parts[0]
    grown = [by * more for by, more in zip(first.dilations, margins(first.kernel_shape, size), strict=True)]
    pads = tuple(pad + growth for pad, growth in zip(first.pads, [*grown, *grown], strict=True))
    return replace(first, weight=np.concatenate(padded), bias=np.concatenate([part.bias for part in parts]), pads=pads)


def output_shape(shape: Sequence[int], convolution: Convolution) -> tuple[int, ...]:
    """Shape of the result for an input of `shape`."""
    rank = len(shape) - 2
    spatial = tuple(
        (extent + before + after - dilation * (kernel - 1) - 1) // stride + 1
        for extent, before, after, dilation, kernel, stride in zip(
            shape[2:],
            convolution.pads[:rank],
            convolution.pads[rank:],
            convolution.dilations,
            convolution.kernel_shape,
            convolution.strides,
            strict=True,
        )
    )
    return (shape[0], convolution.weight.shape[0], *spatial)
