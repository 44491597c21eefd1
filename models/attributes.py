"""Makes the attributes of an operator from its nodes: plain values, of convolutions in one normal form."""

from __future__ import annotations

import onnx

from iosched.models.fusion.view import GraphView, Unit
from iosched.models.graph import AttributeValue
from iosched.models.node_attributes import integer, integers, padding, plain_values

_MAX_SHOWN_CONSTANT = 16


def unit_attributes(view: GraphView, unit: Unit) -> tuple[tuple[str, AttributeValue], ...]:
    """The operator attributes of a unit, sorted by key; see `Operator.attributes`."""
    anchor = view.nodes[unit.anchor]
    if view.is_op(unit.anchor, ("Conv",)) and len(view.kernel(unit.anchor)) >= 3:
        found = _conv_attributes(view, unit)
    else:
        found = {**plain_values(anchor), **_small_constants(view, anchor), **_features(view, unit.anchor)}
    if unit.activation is not None:
        found.update(_activation(view, unit))
    if unit.residual is not None:
        found["residual"] = 1
    if unit.sums:
        found["terms"] = _terms(view, unit)
    if unit.quantizes is not None:
        found["quantized"] = _type_of(view, view.nodes[unit.quantizes].output[0])
    return tuple(sorted(found.items()))


def _conv_attributes(view: GraphView, unit: Unit) -> dict[str, AttributeValue]:
    anchor = view.nodes[unit.anchor]
    channels, *kernel = view.kernel(unit.anchor)[1:]
    group, ones = integer(anchor, "group", 1), (1,) * len(kernel)
    # A separable convolution has the attributes of its depthwise convolution, but the output channels of its pointwise.
    last = next(i for i in reversed(unit.nodes) if view.is_op(i, ("Conv",)))
    spec = view.specs.get(anchor.input[0])
    sizes = () if spec is None or spec.shape is None else spec.shape[2:]
    return {
        "activation": "",
        "dilations": integers(anchor, "dilations", ones),
        "group": group,
        "in_channels": channels * group,
        "kernel_shape": tuple(kernel),
        "out_channels": view.kernel(last)[0],
        "pads": padding(anchor, sizes, kernel),
        "strides": integers(anchor, "strides", ones),
    }


def _features(view: GraphView, index: int) -> dict[str, AttributeValue]:
    """Rows and columns of the matrix of weights that a product multiplies by."""
    matrix = view.kernel(index) if view.is_op(index, ("Gemm", "MatMul")) else ()
    if len(matrix) != 2 or view.nodes[index].input[0] in view.weights:
        return {}
    rows, columns = reversed(matrix) if integer(view.nodes[index], "transB") else matrix
    return {"in_features": rows, "out_features": columns}


def _type_of(view: GraphView, name: str) -> str:
    spec = view.specs.get(name)
    return "" if spec is None else spec.dtype


def _activation(view: GraphView, unit: Unit) -> dict[str, AttributeValue]:
    """The activation's type and, as "activation.KEY", its own attributes and constants."""
    node = view.nodes[unit.activation if unit.activation is not None else unit.anchor]
    if node.op_type == "Mul":  # the second node of x * sigmoid(x), see GraphView.next_gate
        return {"activation": "Swish"}
    parameters: dict[str, AttributeValue] = {**plain_values(node), **_small_constants(view, node, any_type=True)}
    return {"activation": node.op_type, **{f"activation.{key}": value for key, value in parameters.items()}}


def _small_constants(view: GraphView, node: onnx.NodeProto, *, any_type: bool = False) -> dict[str, AttributeValue]:
    """Constant inputs that say what the node does (axes, bounds, a shape) rather than what it computes with."""
    found: dict[str, AttributeValue] = {}
    for position, name in enumerate(node.input):
        array = view.weights.get(name)
        if array is None or array.size > _MAX_SHOWN_CONSTANT or array.dtype.kind not in ("fiub" if any_type else "i"):
            continue
        found[f"input_{position}"] = tuple(array.reshape(-1).tolist())
    return found


def _terms(view: GraphView, unit: Unit) -> tuple[int, ...]:
    """For each operand of the node that reads the folded sums, how many values are summed to make it."""
    counts: dict[str, int] = {}
    for index in unit.sums:  # in topological order: what a sum adds is counted before it
        node = view.nodes[index]
        counts[node.output[0]] = sum(counts.get(name, 1) for name in node.input)
    head = next(index for index in unit.nodes if index not in unit.sums)
    return tuple(counts.get(name, 1) for name in view.nodes[head].input)
