"""Rewrites old and redundant forms of a graph into one form with the same results."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from graphlib import CycleError, TopologicalSorter

import numpy as np
import onnx
import onnx.inliner
from onnx import TensorProto

from iosched.models.editable_graph import EditableGraph, node_name
from iosched.models.errors import InvalidModelError, first_line
from iosched.models.files import MAX_PROTO_NBYTES
from iosched.models.initializers import read_tensor
from iosched.models.node_attributes import copied, integer, values
from iosched.models.wiring import is_standard, nodes_within

MAX_INLINED_NODES = 200_000
"""The most nodes after inlining functions; each takes a fraction of a millisecond to read."""


def inline_functions(proto: onnx.ModelProto) -> None:
    """Inline the model's functions.

    Raises:
        InvalidModelError: a function is recursive or has no opset, or the expansion is too large: nested calls in a
            kilobyte can expand to billions of nodes.
    """
    if not proto.functions:
        return
    count, nbytes = _inlined_size(proto, lambda node: 1), _inlined_size(proto, onnx.NodeProto.ByteSize)
    if count > MAX_INLINED_NODES or nbytes > MAX_PROTO_NBYTES:
        raise InvalidModelError(
            f"its functions expand to {count:,} nodes and {nbytes / 1e9:,.1f} GB; the limits are "
            f"{MAX_INLINED_NODES:,} nodes and {MAX_PROTO_NBYTES / 1e9:,.1f} GB."
        )
    try:
        inlined = onnx.inliner.inline_local_functions(proto)
    except (onnx.checker.ValidationError, RuntimeError, ValueError) as error:
        raise InvalidModelError(f"a model function cannot be inlined: {first_line(error)}") from error
    proto.CopyFrom(inlined)


def _inlined_size(proto: onnx.ModelProto, size: Callable[[onnx.NodeProto], int]) -> int:
    """The total size of the graph's nodes after inlining; 0 if functions are recursive. O(nodes)."""
    bodies = {(each.domain, each.name, each.overload): list(nodes_within(each)) for each in proto.functions}
    sizes: dict[tuple[str, str, str], int] = {}

    def total(nodes: Iterable[onnx.NodeProto]) -> int:
        return sum(sizes[_called(node)] if _called(node) in sizes else size(node) for node in nodes)

    calls = {key: bodies.keys() & set(map(_called, body)) for key, body in bodies.items()}
    try:
        for key in TopologicalSorter(calls).static_order():
            sizes[key] = total(bodies[key])
    except CycleError:
        return 0
    return total(nodes_within(proto.graph))


def _called(node: onnx.NodeProto) -> tuple[str, str, str]:
    return (node.domain, node.op_type, node.overload)


def constants_to_weights(graph: EditableGraph) -> None:
    """Turn Constant nodes outside subgraphs into initializers."""
    for node in graph.nodes:
        value = _constant_value(node)
        if value is not None:
            graph.remove(node_name(node))
            graph.add_weight(node.output[0], value)


def compute_weight_outputs(graph: EditableGraph) -> None:
    """Let an Identity node compute each graph output that is an initializer."""
    for output in [name for name in graph.outputs if name in graph.weights]:
        stored = graph.add_fresh_weight(f"{output}/weight", graph.weights.pop(output))
        graph.prepend(onnx.helper.make_node("Identity", [stored], [output]))


def drop_copies(graph: EditableGraph) -> None:
    """Remove Identity and inactive Dropout nodes by renaming tensors, if possible."""
    for node in [node for node in graph.nodes if _is_copy(graph, node)]:
        before, after = node.input[0], node.output[0]
        if after not in graph.outputs and not graph.is_captured(after):
            graph.remove(node_name(node))
            graph.replace_all_uses(after, before)
        elif not (graph.is_captured(before) or graph.is_captured(after)) and _is_inside(graph, before):
            graph.remove(node_name(node))
            graph.rename(before, after)


def _is_inside(graph: EditableGraph, tensor: str) -> bool:
    return graph.producer(tensor) is not None and tensor not in graph.outputs


def squeeze_range_operands(graph: EditableGraph) -> None:
    """Make the operands of Range scalars; onnxruntime also accepts one element with an axis.

    Its shape inference rejects those once they are constant, for example after inlining an If.
    """
    for node in graph.nodes:
        if node.op_type != "Range" or not is_standard(node):
            continue
        inputs = [*node.input]
        for place, name in enumerate(inputs):
            if name in graph.tensors and graph.tensors[name].shape:
                inputs[place] = graph.fresh(f"{node.output[0]}/{place}")
                graph.insert_before(node_name(node), onnx.helper.make_node("Squeeze", [name], [inputs[place]]))
        graph.set_inputs(node_name(node), inputs)


def flatten_concats(graph: EditableGraph) -> None:
    """Flatten nested Concat nodes: Concat(a, Concat(b, c)) along one axis is Concat(a, b, c); O(nodes + edges).

    The inner one must have no other reader. A Concat of one input is a deliberate copy, and stays.
    """
    for node in graph.nodes:
        if not _is_concat(node):
            continue
        inner = {name: other for name in node.input if (other := _inner(graph, name, _axis(graph, node))) is not None}
        if inner:
            terms = [term for name in node.input for term in (inner[name].input if name in inner else (name,))]
            graph.set_inputs(node_name(node), terms)
            graph.remove(*inner)


def _inner(graph: EditableGraph, name: str, axis: int) -> onnx.NodeProto | None:
    """The Concat along `axis` that computes a tensor with one use."""
    node = graph.producer(name)
    if node is None or not _is_concat(node) or len(node.input) < 2 or graph.uses(name) > 1:
        return None
    return node if _axis(graph, node) == axis else None


def _is_concat(node: onnx.NodeProto) -> bool:
    return node.op_type == "Concat" and is_standard(node)


def _axis(graph: EditableGraph, node: onnx.NodeProto) -> int:
    axis = integer(node, "axis", 1)
    return axis + len(graph.shape(node.output[0])) if axis < 0 else axis


def name_nodes(graph: EditableGraph) -> None:
    """Name every node by its first output."""
    for node in graph.nodes:
        node.name = node_name(node)


def _is_copy(graph: EditableGraph, node: onnx.NodeProto) -> bool:
    if not is_standard(node) or not node.input or not node.input[0]:
        return False
    if node.op_type == "Identity":
        return True
    if node.op_type != "Dropout" or not node.output[0] or any(graph.uses(mask) for mask in node.output[1:]):
        return False
    if graph.opset < 7:
        return integer(node, "is_test") != 0
    training = node.input[2] if len(node.input) > 2 else ""
    return not training or (training in graph.weights and not bool(np.any(graph.weights[training])))


def _constant_value(node: onnx.NodeProto) -> np.ndarray | None:
    if node.op_type != "Constant" or not is_standard(node) or len(node.output) != 1:
        return None
    given = values(node)
    if len(given) != 1:
        return None
    ((name, value),) = given.items()
    if isinstance(value, TensorProto):
        named = copied(value)
        named.name = node.output[0]
        return read_tensor(named)
    return _listed_value(name, value)


def _listed_value(name: str, value: object) -> np.ndarray | None:
    if name in ("value_float", "value_floats"):
        return np.array(value, np.float32)
    if name in ("value_int", "value_ints"):
        return np.array(value, np.int64)
    if name == "value_string" and isinstance(value, bytes):
        return np.array(value.decode("utf-8", "replace"), object)
    if name == "value_strings" and isinstance(value, list):
        return np.array([text.decode("utf-8", "replace") for text in value], object)
    return None
