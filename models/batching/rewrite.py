"""Rewrites a composed model so that groups of its operators are one operator each.

Samples show what that saves: single operators, batched or not, and joins and parts of tensors, as models.
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
    """The model in which each of `groups` is one operator; it computes the same.

    What the operators of a group read is taken as it is where it is what another group computes, of the same members in
    the same order, or one tensor that suffices for all. Else it is joined, and what others read of a group is parted
    under the names that it had. Inputs, outputs and all other operators keep their names.

    Args:
        model: a composed model, or any other.
        groups: names of operators, two and more of each group, alike in what `likeness_of` tells of them.

    Raises:
        ValueError: operators of a group are not alike, or depend on each other once the groups are made.
        KeyError: the model has no such operator.
    """
    composed, own = EditableGraph.of(model.proto, model.weights, model.graph.tensor), model.graph
    order = _order(own, groups)
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


def _order(graph: ComputationGraph, groups: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    """The groups, each after those that it reads from."""
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
    """For each batch the axis along which what it reads is joined.

    A batch that leaves a choice follows those that it reads from, or else the first one that reads from it.

    Args:
        batches: each after those that it reads from.

    Raises:
        ValueError: the operators of a batch cannot become one.
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
            behind, ways = [found[reader] for reader in readers[batch]], batch.axes()
            wanted = (axis for taken in behind for axis, result in ways.items() if result == taken)
            found[batch] = next(wanted, next(iter(ways)))
    return [found[batch] for batch in batches]


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
