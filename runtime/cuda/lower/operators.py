"""Lowers operators of the computation graph to kernel calls.

Fused operators have their own lowering here; everything else goes node by node through the kernels' own
(`kernels.NODES`), and what no kernel does runs in onnxruntime, as one call for all nodes of the operator.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import onnx

from iosched.models.graph import Operator
from iosched.models.node_attributes import integer
from iosched.models.wiring import is_standard, reads
from iosched.runtime.cuda.builder import Builder, KernelCall
from iosched.runtime.cuda.kernels import NODES
from iosched.runtime.cuda.kernels.add import AddN
from iosched.runtime.cuda.kernels.conv import lower_conv
from iosched.runtime.cuda.kernels.convolution import (
    Convolution,
    fused_convolution,
    merged_convolution,
    output_shape,
    plain_convolution,
)
from iosched.runtime.cuda.kernels.depthwise import Depthwise, depthwise_weight
from iosched.runtime.cuda.kernels.elementwise import activation_of
from iosched.runtime.cuda.kernels.matmul import lower_product, lower_stacked
from iosched.runtime.cuda.kernels.separable import lower_separable
from iosched.runtime.cuda.lower.moves import Join, Part, Reshape
from iosched.runtime.cuda.onnxruntime.operators import session_kernel
from iosched.runtime.cuda.source.activation import IDENTITY, RELU, Activation

_RESHAPES = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Dropout"})
_SUMS = ("Add", "Sum")
_PRODUCTS = ("Gemm", "MatMul")


def lower_operator(
    builder: Builder, operator: Operator, nodes: Mapping[str, onnx.NodeProto], variant: int | None = None
) -> list[KernelCall]:
    """The calls of one operator, in order.

    Args:
        nodes: the model's nodes by first output.
        variant: that of the one kernel that does a depthwise and a pointwise convolution, where that shall do it; None
            for a kernel each.
    """
    own = [nodes[name] for name in operator.nodes]
    builder.calls.clear()
    if not _fused(builder, operator, own, variant) and not _node_by_node(builder, operator, own):
        builder.calls.clear()
        builder.emit(*session_kernel(builder, operator, own))
    found = list(builder.calls)
    builder.calls.clear()
    return found


def lower_merged(
    builder: Builder,
    operators: Sequence[Operator],
    nodes: Mapping[str, onnx.NodeProto],
    rectified: Collection[str] = frozenset(),
) -> list[KernelCall] | None:
    """The calls of operators that run as one; None where the runtime cannot merge them.

    Args:
        rectified: tensors that hold what a ReLU makes of them; see `hoist`.
    """
    builder.calls.clear()
    lowered = (
        _merged_products(builder, operators, nodes)
        if operators[0].type in _PRODUCTS
        else _merged_convolutions(builder, operators, nodes, rectified)
    )
    calls = list(builder.calls) if lowered else None
    builder.calls.clear()
    return calls


def _merged_products(builder: Builder, operators: Sequence[Operator], nodes: Mapping[str, onnx.NodeProto]) -> bool:
    own = [[nodes[name] for name in each.nodes] for each in operators]
    found = lower_stacked(builder, own, "merged:" + "+".join(each.name for each in operators))
    if found is not None:
        target, *parts = found
        builder.emit(Part(len(builder.shape(target)) - 1), (target,), parts)
    return found is not None


def _merged_convolutions(
    builder: Builder, operators: Sequence[Operator], nodes: Mapping[str, onnx.NodeProto], rectified: Collection[str]
) -> bool:
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
    if not all(map(builder.is_float, names)) or not _emit(builder, merged, target, name):
        return False
    written = {each: builder.temporary(f"{each}/linear", builder.shape(each)) for each in late}
    builder.emit(Part(1), (target,), [written.get(each, each) for each in names])
    for each, linear in written.items():
        builder.emit(AddN(RELU), (linear,), (each,))
    return True


def _without_relu(part: Convolution, rectified: Collection[str]) -> Convolution:
    """The convolution, without a ReLU of what has gone through one already."""
    return replace(part, leading_relu=part.leading_relu and part.x not in rectified)


def _fused(builder: Builder, operator: Operator, nodes: Sequence[onnx.NodeProto], variant: int | None) -> bool:
    if not builder.is_float(operator.name):
        return False
    if operator.type in ("Conv", "ReluConv"):
        found = fused_convolution(builder, nodes, operator)
        return found is not None and _emit(builder, found, operator.name, operator.name)
    if operator.type == "ReluSepConv":
        return _separable(builder, operator, nodes, variant)
    if operator.type in _SUMS:
        return _sum(builder, operator, nodes)
    return operator.type in _PRODUCTS and lower_product(builder, nodes)


def _emit(builder: Builder, found: Convolution, y: str, name: str) -> bool:
    return lower_conv(
        builder,
        x=found.x,
        weight=found.weight,
        bias=found.bias,
        y=y,
        strides=found.strides,
        pads=found.pads,
        dilations=found.dilations,
        groups=found.groups,
        leading_relu=found.leading_relu,
        residual=found.residual,
        activation=found.activation,
        name=name,
    )


def _separable(builder: Builder, operator: Operator, nodes: Sequence[onnx.NodeProto], variant: int | None) -> bool:
    """ReLU of a sum of terms, depthwise, pointwise (and its batch normalization)."""
    first = next(index for index, node in enumerate(nodes) if node.op_type == "Relu")
    terms = _leaves(nodes[first].input[0], nodes[:first])
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
    return _emit(builder, pointwise.reading(inner), operator.name, operator.name)


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


def _sum(builder: Builder, operator: Operator, nodes: Sequence[onnx.NodeProto]) -> bool:
    """A sum of sums, and the activation that may follow."""
    activation: Activation | None = IDENTITY
    sums = list(nodes)
    if nodes[-1].op_type not in _SUMS:
        activation = activation_of(builder, nodes[-1])
        sums = list(nodes[:-1])
    terms = _leaves(sums[-1].output[0], sums)
    alike = all(term in builder.tensors and builder.shape(term) == builder.shape(operator.name) for term in terms)
    if activation is None or not alike:
        return False
    builder.emit(AddN(activation), terms, (operator.name,))
    return True


def _leaves(name: str, sums: Sequence[onnx.NodeProto]) -> list[str]:
    """The tensors that are summed to make `name`, by the additions `sums`."""
    found = next((node for node in sums if node.output[0] == name), None)
    if found is None:
        return [name]
    return [leaf for term in found.input for leaf in _leaves(term, sums)]


def _node_by_node(builder: Builder, operator: Operator, nodes: Sequence[onnx.NodeProto]) -> bool:
    return all(_node(builder, operator, node, nodes) for node in nodes)


def _node(builder: Builder, operator: Operator, node: onnx.NodeProto, siblings: Sequence[onnx.NodeProto]) -> bool:
    if not is_standard(node):
        return False
    names = [*reads(node), *(name for name in node.output if name)]
    if any(not builder.is_placed(name) for name in names):
        return False
    if node.op_type in _SUMS and operator.type == "Concat" and builder.is_float(node.output[0]):
        return _sum_of_concat(builder, node, siblings)
    if node.op_type == "Concat":
        return _concat(builder, node)
    if node.op_type == "Split":
        return _split(builder, node)
    if node.op_type in _RESHAPES and len([name for name in node.output if name]) == 1:
        builder.emit(Reshape(), (node.input[0],), (node.output[0],))
        return node.input[0] in builder.tensors
    lower = NODES.get(node.op_type)
    return lower is not None and lower(builder, node)


def _sum_of_concat(builder: Builder, node: onnx.NodeProto, siblings: Sequence[onnx.NodeProto]) -> bool:
    """One call for all additions that make an operand of the Concat; inner ones are part of it."""
    if any(node.output[0] in other.input and other.op_type in _SUMS for other in siblings):
        return True
    builder.emit(AddN(IDENTITY), _leaves(node.output[0], siblings), (node.output[0],))
    return True


def _concat(builder: Builder, node: onnx.NodeProto) -> bool:
    operands = [name if name in builder.tensors else builder.stored_weight(name) for name in node.input]
    rank = len(builder.shape(node.output[0]))
    axis = integer(node, "axis", 1)
    if not rank:
        return False
    builder.emit(Join(axis % rank), operands, (node.output[0],))
    return True


def _split(builder: Builder, node: onnx.NodeProto) -> bool:
    axis = integer(node, "axis")
    if node.input[0] not in builder.tensors or any(not name for name in node.output):
        return False
    builder.emit(Part(axis % len(builder.shape(node.input[0]))), (node.input[0],), node.output)
    return True
