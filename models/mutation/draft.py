"""A graph that is being changed: what each primitive makes of it.

Replaying a record and running mutators go through here alone, which is why both make the same model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import onnx

from iosched.models.errors import InvalidModelError, UsageError
from iosched.models.mutation.cutting import cut_out
from iosched.models.mutation.graph import GraphView, Types
from iosched.models.mutation.nodes import check_definition, node_of, with_attributes
from iosched.models.mutation.record import Connect, Create, Delete, Primitive, Replace, Return, Weight
from iosched.models.mutation.seeding import seeded
from iosched.models.wiring import is_standard, reads, writes

_MAX_NEW_NBYTES = 2**30
_FLOATS = ("float32", "float16", "bfloat16", "float64")


@dataclass(frozen=True, eq=False)
class Draft:
    """A graph, and where its new weights come from.

    Attributes:
        graph: as it is now.
        base: the digest of the model that it was at first.
        seeded: the new weights with values of their own.
        sliced: the new weights that are parts of the base's, by names.
        new_nbytes: the size of all new weights.
    """

    graph: GraphView
    base: str
    seeded: tuple[str, ...] = ()
    sliced: Mapping[str, str] = field(default_factory=dict)
    new_nbytes: int = 0


def applied(draft: Draft, primitive: Primitive) -> Draft:
    """The draft after one change. O(nodes).

    Raises:
        UsageError: the change is none that can be made: it names what is not there, or takes a name that is.
        InvalidModelError: a constant that it brings is broken, or too large.
    """
    match primitive:
        case Create():
            return _create(draft, primitive)
        case Delete():
            return _delete(draft, primitive)
        case Connect():
            return _connect(draft, primitive)
        case Return():
            return _return(draft, primitive)
        case Replace():
            return _replace(draft, primitive)


def check_whole(graph: GraphView) -> None:
    """Check that all that is read is there, and that all shapes fit, where something was changed since the last time.

    Raises:
        InvalidModelError: they do not.
    """
    for tensor in sorted(graph.unfed()):
        reader = graph.protos[graph.readers[tensor][0]]
        raise InvalidModelError(
            f"{reader.op_type} node {writes(reader)[0]!r} still reads {tensor!r}, which was deleted"
        )
    for output, source in graph.outputs.items():
        if not graph.has(source):
            raise InvalidModelError(f"graph output {output!r} still is {source!r}, which was deleted")
    for tensor in sorted(graph.untyped()):
        graph.infer(graph.producers[tensor])


def _create(draft: Draft, change: Create) -> Draft:
    for name in change.outputs:
        _check_unused(draft.graph, name)
    if len(set(change.outputs)) < len(change.outputs):
        raise UsageError(f"a new node cannot have two outputs of one name: {change.outputs}")
    node = node_of(change.type, change.inputs, change.outputs, change.attributes, draft.graph.opsets)
    return _placed(draft, node, change.weights, None)


def _delete(draft: Draft, change: Delete) -> Draft:
    _proto(draft.graph, change.node)
    return replace(draft, graph=draft.graph.without_node(change.node))


def _connect(draft: Draft, change: Connect) -> Draft:
    node = onnx.NodeProto()
    node.CopyFrom(_proto(draft.graph, change.node))
    if change.place >= len(node.input):
        raise UsageError(
            f"{node.op_type} node {change.node!r} has {len(node.input)} inputs; there is none at place {change.place}"
        )
    node.input[change.place] = change.source
    return _placed(draft, node, {}, None)


def _return(draft: Draft, change: Return) -> Draft:
    graph = draft.graph
    if change.output not in graph.outputs:
        raise UsageError(f"the graph has no output {change.output!r}; it has {', '.join(map(repr, graph.outputs))}")
    if not graph.is_computed(change.source):
        raise UsageError(f"{change.source!r} cannot be an output: nothing computes it")
    return replace(draft, graph=replace(graph, outputs={**graph.outputs, change.output: change.source}))


def _replace(draft: Draft, change: Replace) -> Draft:
    old = _proto(draft.graph, change.node)
    if not is_standard(old):
        raise UsageError(f"{old.domain}::{old.op_type} node {change.node!r} cannot be replaced; delete and create")
    if change.type == old.op_type:
        node = with_attributes(old, change.attributes, draft.graph.opsets)
        node.ClearField("input")
        node.input.extend(change.inputs)
        return _placed(draft, node, change.weights, old)
    given = {name: value for name, value in change.attributes.items() if value is not None}
    outputs = writes(old)[:1]
    return _placed(draft, node_of(change.type, change.inputs, outputs, given, draft.graph.opsets), change.weights, None)


def _placed(draft: Draft, node: onnx.NodeProto, weights: Mapping[int, Weight], old: onnx.NodeProto | None) -> Draft:
    """The draft with `node`, which reads these weights, too, in the place of the node of its name, or at the end."""
    for tensor in node.input:
        if tensor and not draft.graph.has(tensor):
            raise UsageError(f"{node.op_type} node {node.output[0]!r} cannot read {tensor!r}: it is not there")
    for place in sorted(weights):
        draft = _weighted(draft, node, place, weights[place], old)
    check_definition(node, draft.graph.opsets)
    name = writes(node)[0]
    graph = draft.graph.with_node(node)
    replaced = draft.graph.protos.get(name)
    fresh = set(reads(node)).difference(reads(replaced) if replaced is not None else ())
    before = {graph.producers[tensor] for tensor in fresh if tensor in graph.producers}
    if before and not before.isdisjoint(graph.behind(name)):
        raise UsageError(f"{node.op_type} node {name!r} cannot read what is computed from itself")
    return replace(draft, graph=_settled(graph, name))


def _settled(graph: GraphView, name: str) -> GraphView:
    """The graph after node `name` was changed, without types that may have changed by that."""
    own = writes(graph.protos[name])
    types = {tensor: kind for tensor, kind in graph.types.items() if tensor not in own}
    trial = replace(graph, types=types)
    try:
        trial.infer(name)
    except InvalidModelError:
        pass  # so far; what does not fit in the end is found then
    else:
        if all(trial.types.get(tensor) == graph.types.get(tensor) for tensor in own):
            return trial
    stale = {tensor for other in graph.behind(name) - {name} for tensor in writes(graph.protos[other])}
    return replace(trial, types=_without(trial.types, stale))


def _without(types: Types, names: set[str]) -> Types:
    return {name: kind for name, kind in types.items() if name not in names}


def _weighted(draft: Draft, node: onnx.NodeProto, place: int, wanted: Weight, old: onnx.NodeProto | None) -> Draft:
    """Let `node` read a weight at `place`: the one of `old` where that fits, a part of it, or a new one."""
    node.input.extend([""] * (place + 1 - len(node.input)))
    if draft.graph.is_computed(node.input[place]):
        raise UsageError(f"{node.op_type} node {node.output[0]!r} reads {node.input[place]!r} where it wants a weight")
    source = old.input[place] if old is not None and place < len(old.input) else ""
    before = draft.graph.weights.get(source)
    if wanted.data is None and before is not None and (before.shape, before.dtype.name) == (wanted.shape, wanted.dtype):
        node.input[place] = source
        return draft
    draft = _charged(draft, wanted.nbytes)
    name = node.input[place] = _weight_name(draft.graph, node, place)
    if wanted.data is not None:
        return _with_weight(draft, name, wanted.values())
    if before is not None and old is not None and source not in draft.seeded:
        part = cut_out(before, wanted.shape, wanted.dtype, old, node)
        if part is not None:
            draft = replace(draft, sliced={**draft.sliced, name: draft.sliced.get(source, source)})
            return _with_weight(draft, name, part)
    values = _seeded(draft, name, node, place, wanted)
    return _with_weight(replace(draft, seeded=(*draft.seeded, name)), name, values)


def _charged(draft: Draft, nbytes: int) -> Draft:
    total = draft.new_nbytes + nbytes
    if total > _MAX_NEW_NBYTES:
        raise InvalidModelError(f"the new weights take {total:,} bytes; {_MAX_NEW_NBYTES:,} are the most")
    return replace(draft, new_nbytes=total)


def _seeded(draft: Draft, name: str, node: onnx.NodeProto, place: int, wanted: Weight) -> np.ndarray:
    if wanted.dtype not in _FLOATS or _reads_whole_numbers(draft.graph, node, place):
        raise UsageError(
            f"{node.op_type} node {node.output[0]!r} reads whole numbers at place {place}; they cannot be seeded.\n"
            "Give their values, as a numpy array."
        )
    return seeded(name, draft.base, node, place, wanted.shape).astype(wanted.element)


def _with_weight(draft: Draft, name: str, values: np.ndarray) -> Draft:
    values.flags.writeable = False
    return replace(draft, graph=replace(draft.graph, weights={**draft.graph.weights, name: values}))


def _weight_name(graph: GraphView, node: onnx.NodeProto, place: int) -> str:
    """A new name: the node's, and what its operator's definition calls the input."""
    formal = _formal_inputs(graph, node)
    called = formal[place].name if place < len(formal) else str(place)
    return unused(graph, f"{node.output[0]}/{called}")


def _reads_whole_numbers(graph: GraphView, node: onnx.NodeProto, place: int) -> bool:
    formal = _formal_inputs(graph, node)
    return place < len(formal) and not any(name in formal[place].types for name in ("tensor(float)", "tensor(float16)"))


def _formal_inputs(graph: GraphView, node: onnx.NodeProto) -> Sequence[onnx.defs.OpSchema.FormalParameter]:
    """What the definition of the node's operator says of its inputs."""
    return onnx.defs.get_schema(node.op_type, graph.opsets.get("ai.onnx", 0), "").inputs


def unused(graph: GraphView, name: str, others: Sequence[str] = ()) -> str:
    """`name`, with a number behind it where a tensor is called so already, or one of `others` is."""
    candidate, number = name, 1
    while graph.has(candidate) or candidate in graph.outputs or candidate in others:
        number += 1
        candidate = f"{name}_{number}"
    return candidate


def _check_unused(graph: GraphView, name: str) -> None:
    if graph.has(name):
        raise UsageError(f"a new node cannot be called {name!r}: there is a tensor of that name")


def _proto(graph: GraphView, name: str) -> onnx.NodeProto:
    proto = graph.protos.get(name)
    if proto is None:
        raise UsageError(f"the graph has no node {name!r}")
    return proto
