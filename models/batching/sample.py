"""What has to be run to learn what batching saves: single operators, batched or not, joins and parts, as models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import onnx
from onnx import helper

from iosched.models.batching.axes import chosen_axes
from iosched.models.batching.draft import Draft, scaled
from iosched.models.batching.layer import Joined, Shape
from iosched.models.batching.unit import Parts, Unit
from iosched.models.batching.writer import Writer
from iosched.models.composition.compose import beside_itself
from iosched.models.graph import TensorSpec
from iosched.models.load import assembled_model
from iosched.models.model import INLINE_NBYTES, Model
from iosched.models.source import MIN_IR_VERSION
from iosched.models.wiring import reads


def weightless(model: Model) -> Model:
    """The model with zeros for large weights, for devices that only look at their shapes: samples of it are small."""
    large = {
        name: np.broadcast_to(np.zeros((), array.dtype), array.shape)
        for name, array in model.weights.items()
        if array.nbytes > INLINE_NBYTES and array.dtype.kind == "f"
    }
    return replace(model, weights=MappingProxyType({**model.weights, **large}))


def sample(parts: Parts, group: Sequence[str]) -> Model:
    """A model of one operator, for the operators of `group`, or for the one that it has.

    It is fed with what the operator reads, joined along the axis that it takes, and returns its joined result: nothing
    is joined or parted in it. What all operators of the group read is fed once, where that is how they take it.

    Raises:
        ValueError: the operators are not alike, or cannot become one.
        KeyError: the model has no such operator.
    """
    model, unit = parts.model, _unit(parts, group)
    (axis,) = chosen_axes([unit])
    draft = Draft({name for row in unit.rows for node in row for name in (*node.input, *node.output)}, parts.opset)
    writer = Writer(draft)
    inputs = []
    for names in unit.ports():
        shape = parts.shape(names[0]) or ()
        fed = Joined(draft.fresh(names[0], len(names)), unit.axis_at(names, axis), shape)
        writer.results[names] = fed
        inputs.append(_value(model, fed.name, names[0], scaled(shape, fed.axis, len(names))))
    if unit.spreads:
        name = unit.rows[0][0].input[0]
        inputs.insert(0, _value(model, name, name, parts.shape(name) or ()))
    writer.write(unit, axis)
    found = [writer.results[names] for names in unit.results if names in writer.results]
    outputs = [helper.make_empty_tensor_value_info(joined.name) for joined in found]
    proto = onnx.ModelProto(ir_version=model.proto.ir_version, opset_import=model.proto.opset_import)
    proto.graph.CopyFrom(helper.make_graph(draft.nodes, "sample", inputs, outputs))
    read = {name for node in draft.nodes for name in reads(node)}
    weights = {name: model.weights[name] for name in read & model.weights.keys()}
    return assembled_model(group[0], proto, {**weights, **draft.constants})


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
    return beside_itself(first, [own[id(each)] for each in samples])


def _read(model: Model) -> list[str]:
    return [name for node in model.proto.graph.node for name in node.input]


def _unit(parts: Parts, group: Sequence[str]) -> Unit:
    return Unit.of(parts, [parts.model.graph.by_name[name] for name in group])


def joining(tensor: TensorSpec, count: int, opset: int) -> Model:
    """A model that joins `count` tensors like this one along their first axis; scalars are not joined."""
    names = tuple(f"{tensor.name}/{place}" for place in range(count))
    draft = Draft(set(), opset)
    joined = draft.join(names, 0, tensor.shape or ())
    inputs = [_typed(name, tensor, tensor.shape or ()) for name in names]
    return _model(draft, inputs, [helper.make_empty_tensor_value_info(joined.name)], opset)


def parting(tensor: TensorSpec, count: int, opset: int) -> Model:
    """A model that takes a tensor apart into `count` tensors like this one, along their first axis."""
    names = [f"{tensor.name}/{place}" for place in range(count)]
    draft = Draft(set(), opset)
    joined = Joined(tensor.name, 0, tensor.shape or ())
    draft.part(joined, names)
    inputs = [_typed(tensor.name, tensor, scaled(joined.shape, 0, count))]
    return _model(draft, inputs, [helper.make_empty_tensor_value_info(name) for name in names], opset)


def _model(
    draft: Draft, inputs: Sequence[onnx.ValueInfoProto], outputs: Sequence[onnx.ValueInfoProto], opset: int
) -> Model:
    proto = onnx.ModelProto(ir_version=MIN_IR_VERSION, opset_import=[helper.make_opsetid("", opset)])
    proto.graph.CopyFrom(helper.make_graph(draft.nodes, "sample", inputs, outputs))
    return assembled_model("sample", proto, dict(draft.constants))


def _typed(name: str, tensor: TensorSpec, shape: Shape) -> onnx.ValueInfoProto:
    is_text = tensor.dtype == "string"  # which numpy has no type for
    kind = onnx.TensorProto.STRING if is_text else helper.np_dtype_to_tensor_dtype(np.dtype(tensor.dtype))
    return helper.make_tensor_value_info(name, kind, shape)


def _value(model: Model, name: str, like: str, shape: Shape) -> onnx.ValueInfoProto:
    """A graph input of the type that tensor `like` has."""
    return _typed(name, model.graph.tensor[like], shape)
