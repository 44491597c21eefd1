"""Lowers operators of several nodes: sums, convolutions alone and merged, separable convolutions."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import onnx

from iosched.models.graph import Operator
from iosched.runtime.cuda.builder import Builder, Cut
from iosched.runtime.cuda.kernels.add import AddN
from iosched.runtime.cuda.kernels.conv import (
    Convolution,
    fused_convolution,
    lower_conv,
    merged_convolution,
    output_shape,
    plain_convolution,
)
from iosched.runtime.cuda.kernels.depthwise import Depthwise, depthwise_weight
from iosched.runtime.cuda.kernels.elementwise import activation_of
from iosched.runtime.cuda.kernels.separable import lower_separable
from iosched.runtime.cuda.source.activation import IDENTITY, RELU, Activation
from iosched.runtime.cuda.source.elements import item_nbytes

SUMS = ("Add", "Sum")
SEPARABLE = "ReluSepConv"

_TILE = 64  # output channels for which `Separable` computes its depthwise part once; may be more
_MOST_NBYTES = 4 << 20


@dataclass(frozen=True)
class KernelChoice:
    """Choice of the kernels for a separable convolution or a Concat.

    Attributes:
        variant: of one kernel for both convolutions, or for the copies of a Concat; None for two kernels, or slices.
        other_sum: whether the sum before them is computed in the way that `reads_little` does not choose.
    """

    variant: int | None = None
    other_sum: bool = False


DEFAULT_CHOICE = KernelChoice()


def lower_sum(builder: Builder, operator: Operator, nodes: Sequence[onnx.NodeProto], choice: KernelChoice) -> bool:
    """A sum of sums, and an activation."""
    activation: Activation | None = IDENTITY
    sums = list(nodes)
    if nodes[-1].op_type not in SUMS:
        activation = activation_of(builder, nodes[-1])
        sums = list(nodes[:-1])
    terms = terms_of(sums[-1].output[0], sums)
    alike = all(term in builder.tensors and builder.shape(term) == builder.shape(operator.name) for term in terms)
    if activation is None or not alike:
        return False
    builder.emit(AddN(activation), terms, (operator.name,))
    return True


def terms_of(name: str, sums: Sequence[onnx.NodeProto]) -> list[str]:
    """The summands of `name` in order, through the additions `sums`."""
    operands = {node.output[0]: node.input for node in sums}
    found: list[str] = []
    pending = [name]
    while pending:
        term = pending.pop()
        if term in operands:
            pending.extend(reversed(operands[term]))
        else:
            found.append(term)
    return found


def lower_convolution(
    builder: Builder, operator: Operator, nodes: Sequence[onnx.NodeProto], choice: KernelChoice
) -> bool:
    """One convolution with bias, residual and activation."""
    found = fused_convolution(builder, nodes, operator)
    return found is not None and lower_conv(builder, found, operator.name, operator.name)


def merge_convolutions(
    builder: Builder, operators: Sequence[Operator], nodes: Mapping[str, onnx.NodeProto], rectified: Collection[str]
) -> bool:
    """One convolution for all of `operators`; each one's output is a slice of its result.

    Args:
        rectified: tensors stored after their ReLU; see `hoist`.
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
    return replace(part, leading_relu=part.leading_relu and part.x not in rectified)


def lower_relu_separable(
    builder: Builder, operator: Operator, nodes: Sequence[onnx.NodeProto], choice: KernelChoice
) -> bool:
    """A sum, then the depthwise and the pointwise convolution: in up to three kernels, by `choice`."""
    first = next(index for index, node in enumerate(nodes) if node.op_type == "Relu")
    terms = terms_of(nodes[first].input[0], nodes[:first])
    depthwise = plain_convolution(builder, nodes[first + 1], operator)
    if depthwise is None or len(depthwise.strides) > 2 or min(depthwise.pads) < 0:
        return False
    pointwise = _pointwise(builder, nodes[first + 2 :], len(depthwise.strides))
    if pointwise is None:
        return False
    tiles = 1 if choice.variant is None else -(-len(pointwise.weight) // _TILE)
    relu = len(terms) == 1 or reads_little(builder, terms, depthwise.kernel_shape[0] * tiles) != choice.other_sum
    if not relu:
        source = builder.temporary(f"{operator.name}/sum", builder.shape(terms[0]))
        builder.emit(AddN(RELU), terms, (source,))
        terms = [source]
    both = replace(depthwise, x=terms[0], leading_relu=relu), pointwise
    variant = choice.variant
    if variant is not None and lower_separable(builder, *both, operator.name, terms[1:], variant=variant):
        return True
    shape = output_shape(builder.shape(terms[0]), depthwise)
    inner = builder.temporary(f"{operator.name}/depthwise", shape)
    weight = builder.weight(f"{operator.name}/depthwise/weight", depthwise_weight(depthwise.weight))
    bias = builder.float32_weight(f"{operator.name}/depthwise/bias", depthwise.bias)
    builder.emit(Depthwise(depthwise.window, relu, IDENTITY, len(terms)), (*terms, weight, bias), (inner,))
    return lower_conv(builder, pointwise.reading(inner), operator.name, operator.name)


def reads_little(builder: Builder, terms: Sequence[str], times: int) -> bool:
    """Whether windows that read each pixel of a sum `times` times may read its terms instead.

    Then at most 4 MiB more are read and written than with a kernel for the sum. The limit is reasoned, not measured:
    an L2 cache delivers about that in the time of a launch.
    """
    count = len(terms)
    shape, dtype = builder.shape(terms[0]), builder.tensors[terms[0]].dtype
    return ((count - 1) * times - (count + 1)) * prod(shape) * item_nbytes(dtype) <= _MOST_NBYTES


def _pointwise(builder: Builder, nodes: Sequence[onnx.NodeProto], axes: int) -> Convolution | None:
    plain = Operator(
        name="",
        type="Conv",
        nodes=(),
        inputs=(),
        outputs=("",),
        attributes=(("dilations", (1,) * axes), ("pads", (0, 0) * axes), ("strides", (1,) * axes)),
    )
    return fused_convolution(builder, nodes, plain)
