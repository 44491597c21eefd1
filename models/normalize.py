"""Brings old and redundant ways of writing a graph into one form; the graph computes the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from graphlib import CycleError, TopologicalSorter

import numpy as np
import onnx
import onnx.inliner
from onnx import TensorProto

from iosched.models.errors import InvalidModelError
from iosched.models.initializers import describe_weight, read_tensor
from iosched.models.limits import MAX_PROTO_NBYTES
from iosched.models.node_attributes import integer, values
from iosched.models.wiring import (
    captures,
    is_standard,
    nodes_within,
    reads,
    replace_nodes,
    topological_order,
    use_counts,
    writes,
)

MAX_WRITTEN_OUT = 200_000
"""Nodes of a model whose functions are inlined; each takes a fraction of a millisecond to read."""


def drop_weight_inputs(graph: onnx.GraphProto, weights: dict[str, np.ndarray]) -> None:
    """Remove the initializers from the graph's inputs, where models of IR version 3 list them."""
    fed = [value for value in graph.input if value.name not in weights]
    del graph.input[:]
    graph.input.extend(fed)


def inline_functions(proto: onnx.ModelProto) -> None:
    """Replace calls of the model's own functions by their bodies.

    Raises:
        InvalidModelError: a function cannot be inlined (it calls itself, or misses an opset), or the calls stand for
            more nodes than a model may have: functions that call functions can be billions in a file of a kilobyte.
    """
    if not proto.functions:
        return
    count, nbytes = _written_out(proto, lambda node: 1), _written_out(proto, onnx.NodeProto.ByteSize)
    if count > MAX_WRITTEN_OUT or nbytes > MAX_PROTO_NBYTES:
        raise InvalidModelError(
            f"its functions stand for {count:,} nodes and {nbytes / 1e9:,.1f} GB where they are called; at most "
            f"{MAX_WRITTEN_OUT:,} and {MAX_PROTO_NBYTES / 1e9:,.1f} GB are read."
        )
    try:
        inlined = onnx.inliner.inline_local_functions(proto)
    except (onnx.checker.ValidationError, RuntimeError, ValueError) as error:
        raise InvalidModelError(f"a function of the model cannot be inlined: {str(error).splitlines()[0]}") from error
    proto.CopyFrom(inlined)


def _written_out(proto: onnx.ModelProto, size: Callable[[onnx.NodeProto], int]) -> int:
    """The sizes of the graph's nodes once all calls of functions are replaced by their bodies, added up; O(nodes).

    0 where functions call each other in a circle, which onnx names when it inlines them.
    """
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


def constants_to_weights(graph: onnx.GraphProto, weights: dict[str, np.ndarray]) -> None:
    """Turn the Constant nodes of the graph, but not of the graphs inside its nodes, into initializers."""
    kept = []
    for node in graph.node:
        value = _constant_value(node)
        if value is None:
            kept.append(node)
            continue
        add_weight(graph, weights, node.output[0], value)
    if len(kept) < len(graph.node):
        replace_nodes(graph, kept)


def add_weight(graph: onnx.GraphProto, weights: dict[str, np.ndarray], name: str, value: np.ndarray) -> None:
    """Add an initializer to the graph and to `weights`.

    Raises:
        InvalidModelError: there is an initializer of that name already.
    """
    if name in weights:
        raise InvalidModelError(f"tensor {name!r} is defined twice; names of tensors must be unique.")
    value.flags.writeable = False
    weights[name] = value
    graph.initializer.append(describe_weight(name, value))


def keep_weights(graph: onnx.GraphProto, weights: dict[str, np.ndarray]) -> None:
    """Remove the initializers that nothing reads any more from the graph and from `weights`."""
    used = use_counts(graph)
    for name in [name for name in weights if name not in used]:
        del weights[name]
    kept = [tensor for tensor in graph.initializer if tensor.name in weights]
    del graph.initializer[:]
    graph.initializer.extend(kept)


def sort_nodes(graph: onnx.GraphProto) -> None:
    """Bring the nodes into topological order."""
    nodes = list(graph.node)
    order = topological_order(nodes)
    if order != list(range(len(nodes))):
        replace_nodes(graph, [nodes[index] for index in order])


def compute_weight_outputs(graph: onnx.GraphProto, weights: dict[str, np.ndarray]) -> None:
    """Let an Identity node compute each graph output that is an initializer, so that an operator produces it."""
    for value in graph.output:
        if value.name not in weights:
            continue
        stored = f"{value.name}/weight"
        while stored in weights:
            stored += "_"
        add_weight(graph, weights, stored, weights.pop(value.name))
        kept = [tensor for tensor in graph.initializer if tensor.name != value.name]
        del graph.initializer[:]
        graph.initializer.extend(kept)
        graph.node.insert(0, onnx.helper.make_node("Identity", [stored], [value.name]))


def drop_dead_nodes(graph: onnx.GraphProto) -> None:
    """Drop nodes from which no path leads to an output. The nodes must stand in topological order."""
    needed = {value.name for value in graph.output}
    kept = []
    for node in reversed(graph.node):
        if needed.isdisjoint(writes(node)):
            continue
        kept.append(node)
        needed.update(reads(node))
    if len(kept) < len(graph.node):
        replace_nodes(graph, reversed(kept))


def drop_copies(graph: onnx.GraphProto, weights: dict[str, np.ndarray], opset: int) -> None:
    """Remove Identity nodes and Dropout nodes that do nothing, by renaming tensors, where that is possible."""
    fixed = {name for node in graph.node for name in captures(node)}
    outputs = {value.name for value in graph.output}
    counts = use_counts(graph)
    sources = weights.keys() | {value.name for value in graph.input}
    for node in [node for node in graph.node if _is_copy(node, weights, counts, opset)]:
        before, after = node.input[0], node.output[0]
        if after not in outputs and after not in fixed:
            _rename(graph, after, before)
        elif {before, after}.isdisjoint(fixed) and before not in outputs and before not in sources:
            _rename(graph, before, after)
        else:
            continue
        graph.node.remove(node)


def squeeze_range_operands(graph: onnx.GraphProto, ranks: Mapping[str, int]) -> None:
    """Make scalars of the operands of Range, which onnxruntime also runs if they have one element and an axis.

    Its shape inference refuses them as soon as one becomes a constant, as when it inlines an If.
    """
    known = {value.name for value in graph.input} | {name for node in graph.node for name in writes(node)}
    known |= set(use_counts(graph))
    for place, node in reversed([*enumerate(graph.node)]):
        if node.op_type != "Range" or not is_standard(node):
            continue
        for index, name in enumerate(node.input):
            if ranks.get(name):
                scalar = f"{node.output[0]}/{index}"
                while scalar in known:
                    scalar += "_"
                known.add(scalar)
                graph.node.insert(place, onnx.helper.make_node("Squeeze", [name], [scalar]))
                node.input[index] = scalar


def name_nodes(graph: onnx.GraphProto) -> None:
    """Name every node by its first output."""
    for node in graph.node:
        node.name = next(iter(writes(node)))


def _rename(graph: onnx.GraphProto, old: str, new: str) -> None:
    for node in graph.node:
        for names in (node.input, node.output):
            for index, name in enumerate(names):
                if name == old:
                    names[index] = new


def _is_copy(node: onnx.NodeProto, weights: dict[str, np.ndarray], counts: Counter[str], opset: int) -> bool:
    if not is_standard(node) or not node.input or not node.input[0]:
        return False
    if node.op_type == "Identity":
        return True
    if node.op_type != "Dropout" or not node.output[0] or any(counts[mask] for mask in node.output[1:]):
        return False
    if opset < 7:
        return integer(node, "is_test") != 0
    training = node.input[2] if len(node.input) > 2 else ""
    return not training or (training in weights and not bool(np.any(weights[training])))


def _constant_value(node: onnx.NodeProto) -> np.ndarray | None:
    if node.op_type != "Constant" or not is_standard(node) or len(node.output) != 1:
        return None
    given = values(node)
    if len(given) != 1:
        return None
    ((name, value),) = given.items()
    if isinstance(value, TensorProto):
        named = TensorProto()
        named.CopyFrom(value)
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
