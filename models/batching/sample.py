"""What has to be run to learn what batching saves: single operators, batched or not, joins and parts, as models."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import onnx
from onnx import helper

from iosched.models.batching.layer import Joined, Shape, Writer, scaled
from iosched.models.batching.rewrite import chosen_axes
from iosched.models.batching.unit import Unit
from iosched.models.composition.compose import copies_of
from iosched.models.editable_graph import EditableGraph, bare_frame
from iosched.models.graph import Operator, TensorSpec
from iosched.models.load import edited_model
from iosched.models.model import INLINE_NBYTES, Model
from iosched.models.source import MIN_IR_VERSION


def weightless(model: Model) -> Model:
    """The model with zeros for large weights, for devices that only look at their shapes: samples of it are small."""
    large = {
        name: np.broadcast_to(np.zeros((), array.dtype), array.shape)
        for name, array in model.weights.items()
        if array.nbytes > INLINE_NBYTES and array.dtype.kind == "f"
    }
    return replace(model, weights=MappingProxyType({**model.weights, **large}))


def sample(composed: EditableGraph, group: Sequence[Operator]) -> Model:
    """A model of one operator, for the operators of `group` in a composed graph, or for the one that it has.

    It is fed with what the operator reads, joined along the axis that it takes, and returns its joined result: nothing
    is joined or parted in it. What all operators of the group read is fed once, where that is how they take it.

    Raises:
        ValueError: the operators are not alike, or cannot become one.
    """
    unit = Unit.of(composed, group)
    (axis,) = chosen_axes([unit])
    graph = EditableGraph(bare_frame("sample", composed.frame.ir_version, composed.frame.opset_import))
    graph.weights = dict(composed.weights)
    writer = Writer(graph)
    if unit.spreads:
        name = unit.rows[0][0].input[0]
        graph.inputs[name] = _typed(name, composed.tensors[name], composed.shape(name))
    for names in unit.ports():
        shape = composed.shape(names[0])
        fed = Joined(writer.fresh(names[0], len(names)), unit.axis_at(names, axis), shape)
        writer.results[names] = fed
        whole = scaled(shape, fed.axis, len(names))
        graph.inputs[fed.name] = _typed(fed.name, composed.tensors[names[0]], whole)
    unit.write(axis, writer)
    outputs = [writer.results[names].name for names in unit.results if names in writer.results]
    return _returning(outputs, graph, group[0].name)


def apart(samples: Sequence[Model]) -> Model:
    """A model of operators as they are without batching: each reads and returns tensors of its own.

    Args:
        samples: of the operators, one by one, which are alike; one of them may take several places.
    """
    first = samples[0]
    own: dict[int, dict[str, np.ndarray]] = {id(first): {}}
    for each in samples:
        if id(each) not in own:
            pairs = zip(_read(first), _read(each), strict=True)
            own[id(each)] = {name: each.weights[other] for name, other in pairs if name in first.weights}
    return copies_of(first, [own[id(each)] for each in samples])


def _read(model: Model) -> list[str]:
    return [name for node in model.proto.graph.node for name in node.input]


def joining(tensor: TensorSpec, count: int, opset: int) -> Model:
    """A model that joins `count` tensors like this one along their first axis; scalars are not joined."""
    names = tuple(f"{tensor.name}/{place}" for place in range(count))
    graph = _empty(opset)
    graph.inputs = {name: _typed(name, tensor, tensor.shape or ()) for name in names}
    joined = Writer(graph).join(names, 0, tensor.shape or ())
    return _returning([joined.name], graph)


def parting(tensor: TensorSpec, count: int, opset: int) -> Model:
    """A model that takes a tensor apart into `count` tensors like this one, along their first axis."""
    names = [f"{tensor.name}/{place}" for place in range(count)]
    joined, graph = Joined(tensor.name, 0, tensor.shape or ()), _empty(opset)
    graph.inputs = {joined.name: _typed(joined.name, tensor, scaled(joined.shape, 0, count))}
    Writer(graph).split(joined, names)
    return _returning(names, graph)


def _empty(opset: int) -> EditableGraph:
    return EditableGraph(bare_frame("sample", MIN_IR_VERSION, [helper.make_opsetid("", opset)]))


def _returning(outputs: Iterable[str], graph: EditableGraph, name: str = "sample") -> Model:
    graph.outputs = {output: helper.make_empty_tensor_value_info(output) for output in outputs}
    graph.drop_unread_weights()
    return edited_model(name, graph)


def _typed(name: str, tensor: TensorSpec, shape: Shape) -> onnx.ValueInfoProto:
    is_text = tensor.dtype == "string"  # which numpy has no type for
    kind = onnx.TensorProto.STRING if is_text else helper.np_dtype_to_tensor_dtype(np.dtype(tensor.dtype))
    return helper.make_tensor_value_info(name, kind, shape)
