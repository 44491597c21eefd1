"""Makes the attributes of an operator from its nodes: plain values, of convolutions in one normal form."""

from __future__ import annotations

import onnx

from iosched.models.editable_graph import EditableGraph
from iosched.models.fusion.queries import Unit, is_op, kernel
from iosched.models.graph import AttributeValue
from iosched.models.node_attributes import integer, integers, padding, plain_values

_MAX_SHOWN_CONSTANT = 16


def unit_attributes(graph: EditableGraph, unit: Unit) -> tuple[tuple[str, AttributeValue], ...]:
    """The operator attributes of a unit, sorted by key; see `Operator.attributes`."""
    anchor = graph.node(unit.anchor)
    if is_op(anchor, "Conv") and len(kernel(graph, anchor)) >= 3:
        found = _conv_attributes(graph, unit)
    else:
        found = {**plain_values(anchor), **_small_constants(graph, anchor), **_features(graph, anchor)}
    if unit.activation is not None:
        found.update(_activation(graph, unit))
    if unit.residual is not None:
        found["residual"] = 1
    if unit.sums:
        found["terms"] = _terms(graph, unit)
    if unit.quantizes is not None:
        found["quantized"] = _type_of(graph, graph.node(unit.quantizes).output[0])
    return tuple(sorted(found.items()))


def _conv_attributes(graph: EditableGraph, unit: Unit) -> dict[str, AttributeValue]:
    anchor = graph.node(unit.anchor)
    channels, *extents = kernel(graph, anchor)[1:]
    group, ones = integer(anchor, "group", 1), (1,) * len(extents)
    # A separable convolution has the attributes of its depthwise convolution, but the output channels of its pointwise.
    last = next(node for name in reversed(unit.nodes) if is_op(node := graph.node(name), "Conv"))
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


def _features(graph: EditableGraph, node: onnx.NodeProto) -> dict[str, AttributeValue]:
    """Rows and columns of the matrix of weights that a product multiplies by."""
    matrix = kernel(graph, node) if is_op(node, "Gemm", "MatMul") else ()
    if len(matrix) != 2 or node.input[0] in graph.weights:
        return {}
    rows, columns = reversed(matrix) if integer(node, "transB") else matrix
    return {"in_features": rows, "out_features": columns}


def _type_of(graph: EditableGraph, name: str) -> str:
    spec = graph.tensors.get(name)
    return "" if spec is None else spec.dtype


def _activation(graph: EditableGraph, unit: Unit) -> dict[str, AttributeValue]:
    """The activation's type and, as "activation.KEY", its own attributes and constants."""
    node = graph.node(unit.activation if unit.activation is not None else unit.anchor)
    if node.op_type == "Mul":  # the second node of x * sigmoid(x), see `next_gate`
        return {"activation": "Swish"}
    parameters: dict[str, AttributeValue] = {**plain_values(node), **_small_constants(graph, node, any_type=True)}
    return {"activation": node.op_type, **{f"activation.{key}": value for key, value in parameters.items()}}


def _small_constants(
    graph: EditableGraph, node: onnx.NodeProto, *, any_type: bool = False
) -> dict[str, AttributeValue]:
    """Constant inputs that say what the node does (axes, bounds, a shape) rather than what it computes with."""
    found: dict[str, AttributeValue] = {}
    for position, name in enumerate(node.input):
        array = graph.weights.get(name)
        if array is None or array.size > _MAX_SHOWN_CONSTANT or array.dtype.kind not in ("fiub" if any_type else "i"):
            continue
        found[f"input_{position}"] = tuple(array.reshape(-1).tolist())
    return found


def _terms(graph: EditableGraph, unit: Unit) -> tuple[int, ...]:
    """For each operand of the node that reads the folded sums, how many values are summed to make it."""
    counts: dict[str, int] = {}
    for name in unit.sums:  # in topological order: what a sum adds is counted before it
        node = graph.node(name)
        counts[node.output[0]] = sum(counts.get(each, 1) for each in node.input)
    head = next(name for name in unit.nodes if name not in unit.sums)
    return tuple(counts.get(name, 1) for name in graph.node(head).input)
