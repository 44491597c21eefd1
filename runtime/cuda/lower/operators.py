"""Lowers operators to kernel calls.

Operators in `FUSED` are lowered as a whole, others node by node (`kernels.NODES`). Operators without kernels run in
onnxruntime, in one call.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import onnx

from iosched.models.graph import Operator
from iosched.models.node_attributes import integer
from iosched.models.wiring import is_standard, reads
from iosched.runtime.cuda.builder import Builder, Cut, Join, KernelCall, Reshape
from iosched.runtime.cuda.kernels import NODES
from iosched.runtime.cuda.kernels.add import AddN
from iosched.runtime.cuda.kernels.product import lower_product, lower_stacked
from iosched.runtime.cuda.lower.fused import (
    DEFAULT_CHOICE,
    SEPARABLE,
    SUMS,
    KernelChoice,
    lower_convolution,
    lower_relu_separable,
    lower_sum,
    merge_convolutions,
    terms_of,
)
from iosched.runtime.cuda.onnxruntime.sessions import session_kernel
from iosched.runtime.cuda.source.activation import IDENTITY

_RESHAPES = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Dropout"})
_PRODUCTS = ("Gemm", "MatMul")


def lower_operator(
    builder: Builder, operator: Operator, nodes: Mapping[str, onnx.NodeProto], choice: KernelChoice = DEFAULT_CHOICE
) -> list[KernelCall]:
    """Calls of one operator, in order.

    Args:
        nodes: the model's nodes by first output.
        choice: how a separable convolution is computed.
    """
    own = [nodes[name] for name in operator.nodes]
    builder.calls.clear()
    if not _fused(builder, operator, own, choice) and not all(_node(builder, operator, node, own) for node in own):
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
    """Calls of merged operators; None if the runtime cannot merge them.

    Args:
        rectified: tensors stored after their ReLU; see `hoist`.
    """
    builder.calls.clear()
    lowered = (
        _merged_products(builder, operators, nodes)
        if operators[0].type in _PRODUCTS
        else merge_convolutions(builder, operators, nodes, rectified)
    )
    calls = list(builder.calls) if lowered else None
    builder.calls.clear()
    return calls


def _merged_products(builder: Builder, operators: Sequence[Operator], nodes: Mapping[str, onnx.NodeProto]) -> bool:
    own = [[nodes[name] for name in each.nodes] for each in operators]
    found = lower_stacked(builder, own, "merged:" + "+".join(each.name for each in operators))
    if found is not None:
        target, *parts = found
        builder.emit(Cut(len(builder.shape(target)) - 1), (target,), parts)
    return found is not None


def _fused(builder: Builder, operator: Operator, nodes: Sequence[onnx.NodeProto], choice: KernelChoice) -> bool:
    lower = FUSED.get(operator.type)
    return lower is not None and builder.is_float(operator.name) and lower(builder, operator, nodes, choice)


def _product(builder: Builder, operator: Operator, nodes: Sequence[onnx.NodeProto], choice: KernelChoice) -> bool:
    return lower_product(builder, nodes)


def _node(builder: Builder, operator: Operator, node: onnx.NodeProto, siblings: Sequence[onnx.NodeProto]) -> bool:
    if not is_standard(node):
        return False
    names = [*reads(node), *(name for name in node.output if name)]
    if any(not builder.is_placed(name) for name in names):
        return False
    if node.op_type in SUMS and operator.type == "Concat" and builder.is_float(node.output[0]):
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
    if any(node.output[0] in other.input and other.op_type in SUMS for other in siblings):
        return True
    builder.emit(AddN(IDENTITY), terms_of(node.output[0], siblings), (node.output[0],))
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
    builder.emit(Cut(axis % len(builder.shape(node.input[0]))), (node.input[0],), node.output)
    return True


Lower = Callable[[Builder, Operator, Sequence[onnx.NodeProto], KernelChoice], bool]

FUSED: Mapping[str, Lower] = {
    "Conv": lower_convolution,
    "ReluConv": lower_convolution,
    SEPARABLE: lower_relu_separable,
    **dict.fromkeys(SUMS, lower_sum),
    **dict.fromkeys(_PRODUCTS, _product),
}
"""Lowering by operator type: emits calls and returns True, or False. Other operators are lowered node by node."""
