"""Reshape nodes that fix the batch size: changes that size, or derives it from the input."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx

from iosched.models.editable_graph import EditableGraph, node_name
from iosched.models.errors import InvalidModelError
from iosched.models.node_attributes import integer
from iosched.models.shapes.inference import check_shapes, infer
from iosched.models.wiring import is_standard, reads, writes


def rebatch(graph: EditableGraph, old: int, new: int) -> None:
    """Change the batch size from `old` to `new` in each Reshape of computed values whose target begins with `old`.

    Raises:
        InvalidModelError: shapes contradict each other at the new batch size; names the node.
    """
    _change_targets(graph, old, lambda _, target: np.concatenate([np.array([new], target.dtype), target[1:]]))
    try:
        check_shapes(graph)
    except InvalidModelError as error:
        raise InvalidModelError(
            f"the model cannot run at batch size {new}: a node fixes the batch at {old}.\n{error}\n"
            "Export the model with a dynamic batch dimension."
        ) from error


def free_batch(graph: EditableGraph, old: int) -> None:
    """Let each Reshape of computed values that fixes the batch at `old` infer it instead (-1). Raises as `infer`.

    The other sizes become numbers, as only one can be inferred. The graph is bound to batch size `old`.
    """
    infer(graph)

    def open_first(node: onnx.NodeProto, target: np.ndarray) -> np.ndarray | None:
        spec = graph.tensors.get(node.output[0])
        shape = None if spec is None else spec.shape
        return None if shape is None or 0 in shape[1:] else np.array([-1, *shape[1:]], target.dtype)

    _change_targets(graph, old, open_first)


def check_reshapes(graph: EditableGraph) -> None:
    """Check that every Reshape keeps the number of elements; `graph` has inferred shapes.

    Raises:
        InvalidModelError: one does not, for example because it fixes the batch; names the node.
    """
    for node in _computed_reshapes(graph):
        target, data = graph.weights.get(node.input[1]), graph.tensors.get(node.input[0])
        if target is None or data is None or data.shape is None or keeps_size(data.shape, target.tolist(), node):
            continue
        raise InvalidModelError(
            f"Reshape {node.output[0]!r} cannot turn {list(data.shape)} into {target.tolist()}: the sizes differ.\n"
            "The model was exported for other input shapes; bind those, or export it with dynamic dimensions."
        )


def keeps_size(shape: tuple[int, ...], target: list[int], node: onnx.NodeProto) -> bool:
    """Whether a Reshape from `shape` to `target` keeps the number of elements."""
    if not integer(node, "allowzero"):
        if any(entry == 0 and axis >= len(shape) for axis, entry in enumerate(target)):
            return False
        target = [shape[axis] if entry == 0 else entry for axis, entry in enumerate(target)]
    size = int(np.prod(shape, dtype=object))
    rest = int(np.prod([entry for entry in target if entry != -1], dtype=object))
    return size == rest if -1 not in target else (size == 0 or (rest != 0 and size % rest == 0))


def _change_targets(
    graph: EditableGraph, old: int, change: Callable[[onnx.NodeProto, np.ndarray], np.ndarray | None]
) -> None:
    """Apply `change` to each constant Reshape target that begins with `old`; None leaves it."""
    for node in _computed_reshapes(graph):
        data, name = node.input
        target = graph.weights.get(name)
        if target is None or target.ndim != 1 or not target.size or target[0] != old:
            continue
        changed = change(node, target)
        if changed is None:
            continue
        if graph.uses(name) > 1:
            name = graph.fresh(f"{name}/batch{changed[0]}/{node.output[0]}")
            graph.set_inputs(node_name(node), (data, name))
        changed.flags.writeable = False
        graph.weights[name] = changed


def _computed_reshapes(graph: EditableGraph) -> list[onnx.NodeProto]:
    """The Reshape nodes whose data depends on a graph input. Needs topological order."""
    computed = set(graph.inputs)
    found = []
    for node in graph.nodes:
        if computed.isdisjoint(reads(node)):
            continue
        computed.update(writes(node))
        if node.op_type == "Reshape" and is_standard(node) and len(node.input) == 2:
            found.append(node)
    return [node for node in found if node.input[0] in computed]
