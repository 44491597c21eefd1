"""Proves that a model treats the images of a batch independently, and makes it for another batch size.

The proof follows the batch dimension (the first one, of "images") from the inputs through every node: each node must
keep it first, and may combine only values of one image. Operators without a rule are rejected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import onnx

from iosched.models.errors import InvalidModelError, UsageError
from iosched.models.export import source_of
from iosched.models.load import load_model
from iosched.models.model import Model
from iosched.models.node_attributes import integer, integers, text
from iosched.models.shapes.inference import tensor_specs
from iosched.models.source import read_proto
from iosched.models.wiring import captures, is_standard, standard_opset, writes

Shape = tuple[int, ...]


def with_batch_size(model: Model, batch_size: int) -> Model:
    """The model at another batch size; operators keep their names and types.

    Raises:
        UsageError: the model mixes the images of a batch, or changes in another way with the batch size.
    """
    if batch_size == model.batch_size:
        return model
    found = _loaded(model, batch_size)
    inputs = batched_inputs(model, found)
    check_batch_independence(model, inputs)
    _check_operators(model, found)
    _check_shapes(model, found)
    return found


def batched_inputs(one: Model, other: Model) -> tuple[str, ...]:
    """The inputs with a batch dimension: those whose shapes differ between two batch sizes.

    Raises:
        UsageError: there is none.
    """
    names = tuple(name for name, shape in one.bindings.items() if other.bindings.get(name) != shape)
    if not names:
        raise UsageError("no input has a batch dimension")
    return names


def _loaded(model: Model, batch_size: int) -> Model:
    try:
        return load_model(
            source_of(model), name=model.name, batch_size=batch_size, input_shapes=_free_shapes(model, batch_size)
        )
    except (InvalidModelError, UsageError) as error:
        raise UsageError(
            f"the model cannot run at batch size {batch_size} instead of {model.batch_size}: {error}"
        ) from error


def _free_shapes(model: Model, batch_size: int) -> Mapping[str, Shape]:
    found = {}
    for value in read_proto(source_of(model)).graph.input:
        dims = value.type.tensor_type.shape.dim
        if all(dim.HasField("dim_value") for dim in dims[1:]) and len(dims):
            continue
        if shape := model.bindings.get(value.name):
            fixed = dims[0].dim_value if len(dims) and dims[0].HasField("dim_value") else batch_size
            found[value.name] = (fixed, *shape[1:])
    return found


def _check_operators(model: Model, other: Model) -> None:
    ours, theirs = ([(each.name, each.type) for each in one.graph.operators] for one in (model, other))
    for (name, kind), found in zip(ours, theirs, strict=False):
        if (name, kind) != found:
            raise UsageError(f"{kind} {name!r} is a different operator at another batch size")
    if len(ours) != len(theirs):
        raise UsageError("the number of operators changes with the batch size")


def _check_shapes(model: Model, other: Model) -> None:
    for name, spec in model.graph.tensor.items():
        found = other.graph.tensor.get(name)
        if found is None or not _is_alike(spec.shape, found.shape, model.batch_size, other.batch_size):
            raise UsageError(f"the shape of {name!r} does not scale with the batch size")


def _is_alike(shape: Shape | None, other: Shape | None, batch_size: int, others: int) -> bool:
    if not shape or not other or shape == other:
        return shape == other
    return (shape[0], other[0]) == (batch_size, others) and shape[1:] == other[1:]


UNARY = frozenset((
    "Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "BitwiseNot", "Cast", "Ceil", "Celu", "Cos",
    "Cosh", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish", "Identity", "IsInf", "IsNaN",
    "LeakyRelu", "Log", "Mish", "Neg", "Not", "Reciprocal", "Relu", "Round", "Selu", "Shrink", "Sigmoid",
    "Sign", "Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Swish", "Tan", "Tanh", "ThresholdedRelu",
))  # fmt: skip
BROADCAST = frozenset((
    "Add", "And", "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Clip", "Div", "Equal", "Greater",
    "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Mean", "Min", "Mod", "Mul", "Or", "PRelu", "Pow", "Sub",
    "Sum", "Where", "Xor",
))  # fmt: skip
SOFTMAXES = frozenset(("Hardmax", "LogSoftmax", "Softmax"))
REDUCTIONS = frozenset(
    f"Reduce{kind}" for kind in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
)
_WINDOWS = frozenset((
    "AveragePool", "BatchNormalization", "Conv", "ConvInteger", "ConvTranspose", "DepthToSpace",
    "GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool", "GroupNormalization", "InstanceNormalization", "LRN",
    "LpPool", "MaxPool", "QLinearConv", "SpaceToDepth",
))  # fmt: skip
"""Operators whose definition has the batch as first dimension; their other operands are parameters."""

_TO_THE_END = 2**31 - 1
"""The end that exporters write for a slice up to the last index."""


@dataclass(frozen=True, eq=False)
class _Graph:
    shapes: Mapping[str, tuple[int, ...] | None]
    weights: Mapping[str, np.ndarray]
    opset: int
    batched: set[str]

    def rank(self, name: str) -> int | None:
        shape = self.weights[name].shape if name in self.weights else self.shapes.get(name)
        return None if shape is None else len(shape)

    def first(self, name: str) -> int | None:
        shape = self.weights[name].shape if name in self.weights else self.shapes.get(name)
        return shape[0] if shape else None

    def constant(self, node: onnx.NodeProto, place: int) -> tuple[int, ...] | None:
        """The values of a constant operand; () if it is omitted, None if it is computed."""
        name = node.input[place] if place < len(node.input) else ""
        if not name:
            return ()
        return tuple(self.weights[name].reshape(-1).tolist()) if name in self.weights else None


Rule = Callable[[_Graph, onnx.NodeProto], bool]
"""Whether a node with a batched operand keeps the batch first and its images independent."""


def check_batch_independence(model: Model, inputs: Iterable[str]) -> None:
    """Check that a bound model treats the images of a batch independently.

    `inputs` are the names of the inputs with a batch dimension.

    Raises:
        UsageError: naming the first operator that may mix images, or an output without a batch dimension.
    """
    proto = model.proto
    shapes = {name: spec.shape for name, spec in tensor_specs(proto.graph).items()}
    graph = _Graph(shapes, model.weights, standard_opset(proto), set(inputs))
    for node in proto.graph.node:
        reading = [name for name in node.input if name in graph.batched]
        captured = not graph.batched.isdisjoint(captures(node))
        if not reading and not captured:
            continue
        rule = None if captured or not is_standard(node) else _RULES.get(node.op_type)
        if rule is None or not rule(graph, node):
            raise UsageError(f"{node.op_type} {node.name!r} may mix the images of a batch")
        graph.batched.update(writes(node))
    for output in proto.graph.output:
        if output.name not in graph.batched:
            raise UsageError(f"output {output.name!r} has no batch dimension")


def _only_first_batched(graph: _Graph, node: onnx.NodeProto) -> bool:
    return node.input[0] in graph.batched and graph.batched.isdisjoint(node.input[1:])


def _windowed(graph: _Graph, node: onnx.NodeProto) -> bool:
    """Only one result: a second one of MaxPool counts positions over all images, and BatchNormalization would train."""
    return _only_first_batched(graph, node) and len(writes(node)) == 1 and not integer(node, "training_mode")


def _broadcast(graph: _Graph, node: onnx.NodeProto) -> bool:
    """Batched operands have the rank of the result; others have no batch dimension, or size 1 there."""
    rank = graph.rank(node.output[0])
    operands = [name for name in node.input if name]
    if rank is None or any(graph.rank(name) is None for name in operands):
        return False
    images = [graph.rank(name) == rank for name in operands if name in graph.batched]
    others = [graph.rank(name) != rank or graph.first(name) == 1 for name in operands if name not in graph.batched]
    return all(images) and all(others)


def _not_along_first(graph: _Graph, node: onnx.NodeProto, axis: int) -> bool:
    rank = graph.rank(node.input[0])
    return rank is not None and axis % max(rank, 1) != 0


def _axis(default: int) -> Rule:
    """One batched operand, and an attribute "axis" that is not the batch."""
    return lambda graph, node: (
        _only_first_batched(graph, node) and _not_along_first(graph, node, integer(node, "axis", default))
    )


def _softmax(graph: _Graph, node: onnx.NodeProto) -> bool:
    return _axis(-1 if graph.opset >= 13 else 1)(graph, node)


def _concat(graph: _Graph, node: onnx.NodeProto) -> bool:
    return all(name in graph.batched for name in node.input) and _not_along_first(graph, node, integer(node, "axis"))


def _gather(graph: _Graph, node: onnx.NodeProto) -> bool:
    """Takes from each image by common indices, or from a common table by the indices of each image."""
    if graph.batched.isdisjoint(node.input[:1]):
        return integer(node, "axis") == 0
    return _only_first_batched(graph, node) and _not_along_first(graph, node, integer(node, "axis"))


def _reduce(graph: _Graph, node: onnx.NodeProto) -> bool:
    axes = integers(node, "axes") or graph.constant(node, 1)
    return (
        _only_first_batched(graph, node)
        and bool(axes)
        and all(_not_along_first(graph, node, axis) for axis in axes or ())
    )


def _squeeze(graph: _Graph, node: onnx.NodeProto) -> bool:
    """Axes are required: without them, the batch dimension would be removed at batch size 1."""
    return _reduce(graph, node)


def _unsqueeze(graph: _Graph, node: onnx.NodeProto) -> bool:
    axes, rank = integers(node, "axes") or graph.constant(node, 1), graph.rank(node.output[0])
    return (
        _only_first_batched(graph, node) and bool(axes) and rank is not None and all(axis % rank for axis in axes or ())
    )


def _transpose(graph: _Graph, node: onnx.NodeProto) -> bool:
    return integers(node, "perm")[:1] == (0,)


def _flatten(graph: _Graph, node: onnx.NodeProto) -> bool:
    return integer(node, "axis", 1) == 1


def _reshape(graph: _Graph, node: onnx.NodeProto) -> bool:
    """With the same first dimension, each image keeps its elements."""
    before, after = graph.first(node.input[0]), graph.first(node.output[0])
    return _only_first_batched(graph, node) and before is not None and before == after


def _matmul(graph: _Graph, node: onnx.NodeProto) -> bool:
    left, right = node.input[:2]
    ranks = graph.rank(left), graph.rank(right), graph.rank(node.output[0])
    if None in ranks or left not in graph.batched:
        return False
    if right in graph.batched:
        return ranks[0] == ranks[1] == ranks[2] and (ranks[0] or 0) >= 3
    return ranks[0] == ranks[2] and ((ranks[1] or 0) <= 2 or ranks[1] != ranks[2] or graph.first(right) == 1)


def _gemm(graph: _Graph, node: onnx.NodeProto) -> bool:
    """Rows of one matrix; the bias has one row, or one for each image."""
    by_rows = node.input[0] in graph.batched and node.input[1] not in graph.batched and not integer(node, "transA")
    bias = node.input[2] if len(node.input) > 2 else ""
    if not by_rows or not bias:
        return by_rows
    if bias in graph.batched:
        return graph.rank(bias) == 2
    return graph.rank(bias) in (0, 1) or graph.first(bias) == 1


def _pad(graph: _Graph, node: onnx.NodeProto) -> bool:
    pads, rank = integers(node, "pads") or graph.constant(node, 1), graph.rank(node.input[0])
    axes = graph.constant(node, 3)
    if not pads or axes is None or rank is None or not _only_first_batched(graph, node):
        return False
    padded = [axis % rank for axis in axes] or list(range(rank))
    return all(axis or not (pads[place] or pads[place + len(padded)]) for place, axis in enumerate(padded))


def _slice(graph: _Graph, node: onnx.NodeProto) -> bool:
    """Along other axes; of the batch, everything."""
    starts, ends, axes = (
        integers(node, key) or graph.constant(node, place) for place, key in enumerate(("starts", "ends", "axes"), 1)
    )
    steps = graph.constant(node, 4)
    if not starts or not ends or not axes or steps is None or not _only_first_batched(graph, node):
        return False
    parts = zip(axes, starts, ends, steps or (1,) * len(axes), strict=True)
    return all(
        _not_along_first(graph, node, axis) or ((start, step) == (0, 1) and end >= _TO_THE_END)
        for axis, start, end, step in parts
    )


def _resize(graph: _Graph, node: onnx.NodeProto) -> bool:
    if text(node, "coordinate_transformation_mode") == "tf_crop_and_resize":
        return False
    return _only_first_batched(graph, node) and graph.first(node.input[0]) == graph.first(node.output[0])


def _dropout(graph: _Graph, node: onnx.NodeProto) -> bool:
    trains = graph.constant(node, 2)
    return _only_first_batched(graph, node) and trains is not None and not any(trains)


def _scaled(graph: _Graph, node: onnx.NodeProto) -> bool:
    """Scales and zero points for the whole tensor, or for an axis other than the batch."""
    ranks = {graph.rank(name) for name in node.input[1:] if name}
    along = ranks == {0} or (ranks == {1} and _not_along_first(graph, node, integer(node, "axis", 1)))
    return _only_first_batched(graph, node) and along


def _normalized(graph: _Graph, node: onnx.NodeProto) -> bool:
    return _axis(-1)(graph, node) and len(writes(node)) == 1


_RULES: Mapping[str, Rule] = {
    **dict.fromkeys(UNARY, _only_first_batched),
    **dict.fromkeys(BROADCAST, _broadcast),
    **dict.fromkeys(_WINDOWS, _windowed),
    **dict.fromkeys(SOFTMAXES, _softmax),
    **dict.fromkeys(("ArgMax", "ArgMin", "Split"), _axis(0)),
    **dict.fromkeys(("LpNormalization", "TopK"), _axis(-1)),
    **dict.fromkeys(REDUCTIONS, _reduce),
    **dict.fromkeys(("Resize", "Upsample"), _resize),
    **dict.fromkeys(("QuantizeLinear", "DequantizeLinear"), _scaled),
    "Concat": _concat,
    "Dropout": _dropout,
    "Flatten": _flatten,
    "Gather": _gather,
    "Gemm": _gemm,
    "LayerNormalization": _normalized,
    "MatMul": _matmul,
    "Pad": _pad,
    "Reshape": _reshape,
    "Slice": _slice,
    "Squeeze": _squeeze,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}
