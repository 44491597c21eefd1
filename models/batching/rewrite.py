"""Rewrites a composed model so that each group of operators becomes one.

Samples measure the gain: single operators, batched or not, and the joining and splitting of tensors, as models.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import reduce
from graphlib import CycleError, TopologicalSorter
from operator import or_
from types import MappingProxyType

import numpy as np
import onnx
from onnx import helper

from iosched.models.batching.layer import Joined, Shape, Writer, scaled
from iosched.models.batching.operator_batch import OperatorBatch
from iosched.models.composition.members import members_of, node_owners, owners, write_owners
from iosched.models.editable_graph import EditableGraph, bare_frame, node_name
from iosched.models.graph import ComputationGraph, Operator, TensorSpec
from iosched.models.load import edited_model
from iosched.models.model import INLINE_NBYTES, Model
from iosched.models.source import MIN_IR_VERSION


def batched(model: Model, groups: Sequence[Sequence[str]]) -> Model:
    """The model in which each of `groups`, two or more operators alike by `likeness_of`, is one operator.

    A batch reads another batch's result directly if members and order are the same, or a tensor that suffices for all.
    Otherwise inputs are concatenated, and results split under their old names. Inputs, outputs and other operators keep
    their names.

    Raises:
        ValueError: operators of a group are not alike, or groups depend on each other.
        KeyError: the model has no such operator.
    """
    composed, own = EditableGraph.of(model.proto, model.weights, model.graph.tensor), model.graph
    order = _sorted_groups(own, groups)
    batches = [OperatorBatch.of(composed, [own.by_name[name] for name in group]) for group in order]
    graph = composed.copy()
    graph.tensors = {}
    writer = Writer(graph)
    owned = owners(model, members_of(model.proto))
    several = node_owners(own, owned)
    for group, batch, axis in zip(order, batches, chosen_axes(batches), strict=True):
        before = len(writer.nodes)
        batch.write(axis, writer)
        bits = reduce(or_, (owned[name] for name in group))
        several.update((node_name(node), bits) for node in writer.nodes[before:])
    graph.remove(*(node.name for batch in batches for row in batch.rows for node in row))
    before = len(writer.nodes)
    for names, joined in writer.results.items():
        if any(map(graph.uses, names)):
            writer.split(joined, names)
    for node in writer.nodes[before:]:
        sources = (own.producer[name] for name in node.output)
        several[node_name(node)] = reduce(or_, (owned[name] for name in sources))
    write_owners(graph.frame, several)
    return edited_model(model.name, graph)


def _sorted_groups(graph: ComputationGraph, groups: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    own = {name: tuple(group) for group in groups for name in group}
    if len(own) < sum(map(len, groups)) or any(len(group) < 2 for group in groups):
        raise ValueError("a group needs at least two operators, and an operator can be in only one group")
    sorter: TopologicalSorter[tuple[str, ...]] = TopologicalSorter()
    for name, before in graph.predecessors.items():
        here = own.get(name, (name,))
        sorter.add(here, *(own.get(other, (other,)) for other in before))
    try:
        return [group for group in sorter.static_order() if len(group) > 1]
    except CycleError as error:
        names = [group[0] for group in error.args[1]]
        raise ValueError(f"groups depend on each other: those of {', '.join(map(repr, names))}") from error


def chosen_axes(batches: Sequence[OperatorBatch]) -> list[int]:
    """The axis along which the inputs of each batch, in topological order, are joined.

    A batch with a choice follows its predecessors, else its first successor.

    Raises:
        ValueError: a batch has no axis.
    """
    source = {names: batch for batch in batches for names in batch.outputs()}
    readers: dict[OperatorBatch, list[OperatorBatch]] = {batch: [] for batch in batches}
    found: dict[OperatorBatch, int] = {}
    for batch in batches:
        ways = batch.axes()
        if not ways:
            raise ValueError(f"operators like {batch.outputs()[0][0]!r} cannot be batched")
        fed = [source[names] for names in batch.ports() if names in source]
        for feeder in fed:
            readers[feeder].append(batch)
        followed = [feeder.axes()[found[feeder]] for feeder in fed if feeder in found]
        choice = [axis for axis in followed if axis in ways] if len(ways) > 1 else [*ways]
        if choice:
            found[batch] = choice[0]
    for batch in reversed(batches):
        if batch not in found:
            after, ways = [found[reader] for reader in readers[batch]], batch.axes()
            wanted = (axis for taken in after for axis, result in ways.items() if result == taken)
            found[batch] = next(wanted, next(iter(ways)))
    return [found[batch] for batch in batches]


def weightless(model: Model) -> Model:
    """The model with zeros for large weights, for devices that only need shapes."""
    large = {
        name: np.broadcast_to(np.zeros((), array.dtype), array.shape)
        for name, array in model.weights.items()
        if array.nbytes > INLINE_NBYTES and array.dtype.kind == "f"
    }
    return replace(model, weights=MappingProxyType({**model.weights, **large}))


def sample(composed: EditableGraph, group: Sequence[Operator]) -> Model:
    """A model of one operator, or of the operators of `group` batched.

    Inputs are already joined as the operator takes them, so the model contains no Concat or Split.

    Raises:
        ValueError: the operators are not alike, or cannot be batched.
    """
    batch = OperatorBatch.of(composed, group)
    (axis,) = chosen_axes([batch])
    graph = EditableGraph(bare_frame("sample", composed.frame.ir_version, composed.frame.opset_import))
    graph.weights = dict(composed.weights)
    writer = Writer(graph)
    if batch.spreads:
        name = batch.rows[0][0].input[0]
        graph.inputs[name] = _typed(name, composed.tensors[name], composed.shape(name))
    for names in batch.ports():
        shape = composed.shape(names[0])
        fed = Joined(writer.fresh(names[0], len(names)), batch.axis_at(names, axis), shape)
        writer.results[names] = fed
        whole = scaled(shape, fed.axis, len(names))
        graph.inputs[fed.name] = _typed(fed.name, composed.tensors[names[0]], whole)
    batch.write(axis, writer)
    outputs = [writer.results[names].name for names in batch.outputs() if names in writer.results]
    return _returning(outputs, graph, group[0].name)


def joining(tensor: TensorSpec, count: int, opset: int) -> Model:
    """A model that concatenates `count` tensors along their first axis; scalars are not joined."""
    names = tuple(f"{tensor.name}/{place}" for place in range(count))
    graph = _empty(opset)
    graph.inputs = {name: _typed(name, tensor, tensor.shape or ()) for name in names}
    joined = Writer(graph).join(names, 0, tensor.shape or ())
    return _returning([joined.name], graph)


def parting(tensor: TensorSpec, count: int, opset: int) -> Model:
    """A model that splits a tensor into `count` along the first axis."""
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
    is_text = tensor.dtype == "string"  # no numpy type
    kind = onnx.TensorProto.STRING if is_text else helper.np_dtype_to_tensor_dtype(np.dtype(tensor.dtype))
    return helper.make_tensor_value_info(name, kind, shape)
