"""Builds the computation graph of a working ONNX graph: attributes and FLOPs of its operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

import onnx

from iosched.models.editable_graph import EditableGraph
from iosched.models.fusion import find_fusions
from iosched.models.fusion.queries import Fusion, is_dequantize, is_op, kernel
from iosched.models.graph import AttributeValue, ComputationGraph, Operator, TensorSpec
from iosched.models.node_attributes import integer, integers, padding, plain_values
from iosched.models.shapes.inference import weight_spec
from iosched.models.wiring import is_standard, reads, writes

_MAX_SHOWN_CONSTANT = 16


def computation_graph(name: str, graph: EditableGraph) -> ComputationGraph:
    """The computation graph of `graph`, which has inferred types and topological order. O(nodes + edges)."""
    operators = tuple(_operator(graph, fusion) for fusion in find_fusions(graph))
    inputs = tuple(graph.tensors[name] for name in graph.inputs)
    computed = (name for node in graph.nodes for name in writes(node))
    tensors = tuple(graph.tensors.get(name) or TensorSpec(name, "", None) for name in computed)
    return ComputationGraph(name, inputs, tuple(graph.outputs), operators, tensors)


def _operator(graph: EditableGraph, fusion: Fusion) -> Operator:
    nodes = [graph.node(name) for name in fusion.nodes]
    inner = {name for node in nodes for name in writes(node)}
    read = dict.fromkeys(name for node in nodes for name in reads(node) if name not in inner)
    inputs = tuple(name for name in read if name not in graph.weights)
    weights = tuple(weight_spec(name, graph.weights[name]) for name in read if name in graph.weights)
    first, *rest = writes(nodes[-1])
    outputs = (first, *(name for name in rest if graph.uses(name)))
    moved = (*(graph.tensors.get(_stored(graph, name)) for name in (*inputs, *outputs)), *weights)
    anchor = graph.node(fusion.anchor)
    return Operator(
        name=first,
        type=fusion.type if is_standard(anchor) else f"{anchor.domain}::{fusion.type}",
        nodes=tuple(node.name for node in nodes),
        inputs=inputs,
        outputs=outputs,
        attributes=_attributes(graph, fusion),
        weights=weights,
        flops=sum(_flops(graph, node) for node in nodes),
        nbytes=sum(spec.nbytes for spec in moved if spec is not None),
        node_types=tuple(node.op_type for node in nodes),
        merges=fusion.merges,
    )


def _stored(graph: EditableGraph, name: str) -> str:
    """The tensor in memory between operators: the integers of a tensor that is only dequantized."""
    node = graph.producer(name)
    is_passing = node is not None and name not in graph.outputs and is_dequantize(node)
    return str(node.input[0]) if node is not None and is_passing else name


def _flops(graph: EditableGraph, node: onnx.NodeProto) -> int:
    return node_flops(node, [*map(graph.known_shape, node.input)], [*map(graph.known_shape, node.output)])


# --- attributes ---------------------------------------------------------------------------------------------------


def _attributes(graph: EditableGraph, fusion: Fusion) -> tuple[tuple[str, AttributeValue], ...]:
    anchor = graph.node(fusion.anchor)
    if is_op(anchor, "Conv") and len(kernel(graph, anchor)) >= 3:
        found = _conv_attributes(graph, fusion)
    else:
        found = {**plain_values(anchor), **_small_constants(graph, anchor), **_matrix_sizes(graph, anchor)}
    if fusion.activation is not None:
        found.update(_activation(graph, fusion))
    if fusion.residual is not None:
        found["residual"] = 1
    if fusion.sums:
        found["terms"] = _terms(graph, fusion)
    if fusion.quantizes is not None:
        found["quantized"] = _type_of(graph, graph.node(fusion.quantizes).output[0])
    return tuple(sorted(found.items()))


def _conv_attributes(graph: EditableGraph, fusion: Fusion) -> dict[str, AttributeValue]:
    anchor = graph.node(fusion.anchor)
    channels, *extents = kernel(graph, anchor)[1:]
    group, ones = integer(anchor, "group", 1), (1,) * len(extents)
    # A separable convolution has the attributes of its depthwise convolution, and the pointwise one's output channels.
    last = next(node for name in reversed(fusion.nodes) if is_op(node := graph.node(name), "Conv"))
    spec = graph.tensors.get(anchor.input[0])
    sizes = () if spec is None or spec.shape is None else spec.shape[2:]
    return {
        "activation": "",
        "dilations": integers(anchor, "dilations", ones),
        "group": group,
        "in_channels": channels * group,
        "kernel_shape": tuple(extents),
        "out_channels": kernel(graph, last)[0],
        "pads": padding(anchor, sizes, extents),
        "strides": integers(anchor, "strides", ones),
    }


def _matrix_sizes(graph: EditableGraph, node: onnx.NodeProto) -> dict[str, AttributeValue]:
    matrix = kernel(graph, node) if is_op(node, "Gemm", "MatMul") else ()
    if len(matrix) != 2 or node.input[0] in graph.weights:
        return {}
    rows, columns = reversed(matrix) if integer(node, "transB") else matrix
    return {"in_features": rows, "out_features": columns}


def _type_of(graph: EditableGraph, name: str) -> str:
    spec = graph.tensors.get(name)
    return "" if spec is None else spec.dtype


def _activation(graph: EditableGraph, fusion: Fusion) -> dict[str, AttributeValue]:
    """The activation's type and, as "activation.KEY", its attributes and constants."""
    node = graph.node(fusion.activation if fusion.activation is not None else fusion.anchor)
    if node.op_type == "Mul":  # the second node of x * sigmoid(x), see `next_gate`
        return {"activation": "Swish"}
    parameters: dict[str, AttributeValue] = {**plain_values(node), **_small_constants(graph, node, any_type=True)}
    return {"activation": node.op_type, **{f"activation.{key}": value for key, value in parameters.items()}}


def _small_constants(
    graph: EditableGraph, node: onnx.NodeProto, *, any_type: bool = False
) -> dict[str, AttributeValue]:
    """Constant inputs that define what the node does (axes, bounds, a shape)."""
    found: dict[str, AttributeValue] = {}
    for position, name in enumerate(node.input):
        array = graph.weights.get(name)
        if array is None or array.size > _MAX_SHOWN_CONSTANT or array.dtype.kind not in ("fiub" if any_type else "i"):
            continue
        found[f"input_{position}"] = tuple(array.reshape(-1).tolist())
    return found


def _terms(graph: EditableGraph, fusion: Fusion) -> tuple[int, ...]:
    """The number of summed values of each operand of the node that reads the folded sums."""
    counts: dict[str, int] = {}
    for name in fusion.sums:  # in topological order
        node = graph.node(name)
        counts[node.output[0]] = sum(counts.get(each, 1) for each in node.input)
    head = next(name for name in fusion.nodes if name not in fusion.sums)
    return tuple(counts.get(name, 1) for name in graph.node(head).input)


Shape = tuple[int, ...]
Shapes = Sequence[Shape | None]

# These types only move data, and count as no work.
_MOVES = frozenset({
    "Cast", "CastLike", "Concat", "ConstantOfShape", "DepthToSpace", "DequantizeLinear", "Expand", "Flatten",
    "Gather", "GatherElements", "GatherND", "Identity", "OneHot", "Pad", "QuantizeLinear", "Reshape",
    "ScatterElements", "ScatterND", "Shape", "Size", "Slice", "SpaceToDepth", "Split", "Squeeze", "Tile",
    "Transpose", "Unsqueeze", "If", "Loop", "Scan", "SequenceAt", "SequenceConstruct", "SequenceInsert",
    "ConcatFromSequence", "SplitToSequence",
})  # fmt: skip
# Operations for each element of the result, if more than one.
_PER_ELEMENT = {"BatchNormalization": 2, "Softmax": 4, "LogSoftmax": 4, "LRN": 8, "LayerNormalization": 8, "Gelu": 8}


def node_flops(node: onnx.NodeProto, inputs: Shapes, outputs: Shapes) -> int:
    """FLOPs of `node`; multiply and add counted as two; 0 for unknown shapes.

    Products count 2 x multiply-accumulates, pooling one a window element, reductions one an input element, and the rest
    one an output element.
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
    # Quantized forms have scale and zero point before the kernel.
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
