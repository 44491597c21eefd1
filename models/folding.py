"""Constant folding: replaces nodes whose results are known before the run by weights.

Only cheap standard operators with small results are folded. QuantizeLinear and DequantizeLinear stay, because
runtimes choose kernels by them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from math import prod

import numpy as np
import onnx

from iosched.models.editable_graph import EditableGraph, node_name
from iosched.models.graph import TensorSpec
from iosched.models.node_attributes import integer, integers, tensor
from iosched.models.shapes.inference import infer
from iosched.models.wiring import captures, is_standard, writes

MAX_FOLDED_NBYTES = 64 * 2**20
_MAX_FILLED_NBYTES = 2**31
_MAX_ROUNDS = 16

_EVALUATED = frozenset({
    "Abs", "Add", "And", "Cast", "CastLike", "Ceil", "Clip", "Concat", "Div", "Equal", "Exp", "Expand", "Flatten",
    "Floor", "Gather", "GatherElements", "GatherND", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Log",
    "Max", "Min", "Mod", "Mul", "Neg", "Not", "Or", "Pad", "Pow", "Range", "Reciprocal", "ReduceMax", "ReduceMean",
    "ReduceMin", "ReduceProd", "ReduceSum", "Reshape", "ScatterElements", "ScatterND", "Sign", "Slice", "Split",
    "Sqrt", "Squeeze", "Sub", "Tile", "Transpose", "Trilu", "Unsqueeze", "Where", "Xor",
})  # fmt: skip
# Exceptions of onnx's evaluator for nodes that violate their schema.
_FAILURES = (ArithmeticError, AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError, AssertionError)


def fold_constants(graph: EditableGraph) -> None:
    """Fold until nothing changes, and infer the types of tensors.

    Each round is a pass and a shape inference; a chain of Shape nodes over computed values takes several rounds.

    Raises:
        InvalidModelError: shapes or types contradict each other.
    """
    infer(graph)
    for _ in range(_MAX_ROUNDS):
        if not _fold_once(graph):
            return
        infer(graph)


def _fold_once(graph: EditableGraph) -> bool:
    """Whether any node was folded."""
    count = len(graph.nodes)
    for node in graph.nodes:
        results = None if graph.outputs.keys() & writes(node) else _fold(graph, node)
        if results is None:
            continue
        graph.remove(node_name(node))
        for name, value in zip(node.output, results, strict=True):
            if name:
                graph.add_weight(name, value)
    return len(graph.nodes) < count


def _fold(graph: EditableGraph, node: onnx.NodeProto) -> list[np.ndarray] | None:
    weights, specs = graph.weights, graph.tensors
    if not is_standard(node) or captures(node):
        return None
    if node.op_type in ("Shape", "Size"):
        return _fold_shape(node, weights, specs)
    if any(name and name not in weights for name in node.input):
        return None
    fold_directly = _DIRECT.get(node.op_type)
    if fold_directly is not None and (result := _attempt(lambda: fold_directly(node, weights))) is not None:
        return result
    if node.op_type not in _EVALUATED or not _is_bounded(node, specs):
        return None
    return _attempt(lambda: _evaluate(node, weights, specs, graph.opset))


def _attempt(compute: Callable[[], list[np.ndarray] | None]) -> list[np.ndarray] | None:
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return compute()
    except _FAILURES:
        return None


def _fold_shape(
    node: onnx.NodeProto, weights: Mapping[str, np.ndarray], specs: Mapping[str, TensorSpec]
) -> list[np.ndarray] | None:
    name = node.input[0]
    spec = specs.get(name)
    shape = weights[name].shape if name in weights else spec.shape if spec else None
    if shape is None:
        return None
    if node.op_type == "Size":
        return [np.array(prod(shape), np.int64)]
    start, end = integer(node, "start"), integer(node, "end", len(shape))
    return [np.array(shape[slice(start, end)], np.int64)]


def _is_bounded(node: onnx.NodeProto, specs: Mapping[str, TensorSpec]) -> bool:
    found = [specs.get(name) for name in writes(node)]
    return all(spec is not None and spec.is_static and spec.nbytes <= MAX_FOLDED_NBYTES for spec in found)


def _evaluate(
    node: onnx.NodeProto, weights: Mapping[str, np.ndarray], specs: Mapping[str, TensorSpec], opset: int
) -> list[np.ndarray] | None:
    from onnx.reference import ReferenceEvaluator  # slow to import, and often not needed

    feeds = {name: weights[name] for name in node.input if name}
    if any(value.nbytes > MAX_FOLDED_NBYTES for value in feeds.values()):
        return None
    inputs = [onnx.helper.make_value_info(name, onnx.TypeProto()) for name in feeds]
    outputs = [onnx.helper.make_value_info(name, onnx.TypeProto()) for name in writes(node)]
    model = onnx.helper.make_model(
        onnx.helper.make_graph([node], "constant", inputs, outputs),
        opset_imports=[onnx.helper.make_opsetid("", opset)],
    )
    results = dict(zip(writes(node), ReferenceEvaluator(model).run(None, feeds), strict=True))
    return [np.empty(0) if not name else _checked(results[name], specs[name]) for name in node.output]


def _checked(value: object, spec: TensorSpec) -> np.ndarray:
    array = np.asarray(value)
    if array.dtype.name != spec.dtype or array.shape != spec.shape:
        raise ValueError(f"{spec.name} was inferred to be of another type or shape")
    return np.array(array)


def _fill(node: onnx.NodeProto, weights: Mapping[str, np.ndarray]) -> list[np.ndarray] | None:
    shape = tuple(int(dim) for dim in weights[node.input[0]])
    value = tensor(node, "value")
    item = np.zeros(1, np.float32) if value is None else onnx.numpy_helper.to_array(value)
    if any(dim < 0 for dim in shape) or prod(shape) * item.itemsize > _MAX_FILLED_NBYTES or item.size != 1:
        return None
    # A view that repeats one element needs no memory.
    return [np.broadcast_to(item.reshape(()), shape)]


def _reshape(node: onnx.NodeProto, weights: Mapping[str, np.ndarray]) -> list[np.ndarray] | None:
    if len(node.input) != 2 or integer(node, "allowzero"):
        return None
    data = weights[node.input[0]]
    target = [data.shape[axis] if dim == 0 else int(dim) for axis, dim in enumerate(weights[node.input[1]])]
    return None if _is_filled(data) else [data.reshape(target)]


def _unsqueeze(node: onnx.NodeProto, weights: Mapping[str, np.ndarray]) -> list[np.ndarray] | None:
    axes = tuple(weights[node.input[1]].tolist()) if len(node.input) > 1 else integers(node, "axes")
    return [np.expand_dims(weights[node.input[0]], axes)]


def _transpose(node: onnx.NodeProto, weights: Mapping[str, np.ndarray]) -> list[np.ndarray] | None:
    data = weights[node.input[0]]
    view = np.transpose(data, integers(node, "perm") or None)
    if _is_filled(data):
        return [view]
    return [np.ascontiguousarray(view)] if data.nbytes <= MAX_FOLDED_NBYTES else None


def _identity(node: onnx.NodeProto, weights: Mapping[str, np.ndarray]) -> list[np.ndarray] | None:
    return [weights[node.input[0]]]


_DIRECT: Mapping[str, Callable[[onnx.NodeProto, Mapping[str, np.ndarray]], list[np.ndarray] | None]] = {
    "ConstantOfShape": _fill,
    "Identity": _identity,
    "Reshape": _reshape,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}


def _is_filled(array: np.ndarray) -> bool:
    return array.size > 1 and not any(array.strides)
