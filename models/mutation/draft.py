"""A graph under mutation, and the effect of each primitive; shared by mutators and replay, so that both agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from hashlib import sha256
from math import isfinite, prod, sqrt
from typing import Any

import numpy as np
import onnx
from onnx.defs import OpSchema

from iosched.models.checks import schema_violation
from iosched.models.editable_graph import EditableGraph, node_name
from iosched.models.errors import InvalidModelError, UsageError
from iosched.models.graph import AttributeValue
from iosched.models.mutation.graph_view import GraphView, called, infer
from iosched.models.mutation.record import Connect, Create, Delete, Primitive, Replace, Return, Weight
from iosched.models.node_attributes import copied, integer, renew
from iosched.models.wiring import is_standard, reads, writes

_MAX_NEW_NBYTES = 2**30
_GIVEN = ("INT", "INTS", "FLOAT", "FLOATS", "STRING", "STRINGS")
_KINDS = {getattr(OpSchema.AttrType, kind): getattr(onnx.AttributeProto, kind) for kind in _GIVEN}
_NORMALIZATIONS = ("BatchNormalization", "InstanceNormalization", "LayerNormalization", "GroupNormalization")
_SMALL = 0.05
_CHUNK = 2**20
_FLOATS = ("float32", "float16", "bfloat16", "float64")
_FLOAT_TENSORS = {"tensor(float)", "tensor(float16)"}


@dataclass(eq=False)
class Draft:
    """A graph and the origins of its new weights; immutable except inside `applied`.

    Attributes:
        view: the current graph.
        base: the digest of the base model.
        seeded: names of new weights with seeded values.
        sliced: new weights cut from weights of the base, by name.
        new_nbytes: the size of all new weights.
    """

    view: GraphView
    base: str
    seeded: tuple[str, ...] = ()
    sliced: Mapping[str, str] = field(default_factory=dict)
    new_nbytes: int = 0

    @property
    def graph(self) -> EditableGraph:
        """The graph of `view`."""
        return self.view.editable


def applied(draft: Draft, primitive: Primitive) -> Draft:
    """The draft after one change; the previous one stays valid. O(nodes).

    Raises:
        UsageError: the change refers to missing names, or takes existing ones.
        InvalidModelError: a constant is broken or too large.
    """
    made = replace(draft, view=replace(draft.view, editable=draft.graph.copy()))
    _CHANGES[type(primitive)](made, primitive)
    return made


def check_whole(view: GraphView) -> None:
    """Check that all tensors exist, and that shapes fit wherever something changed.

    Raises:
        InvalidModelError: they do not.
    """
    graph = view.editable
    for tensor in sorted(graph.missing):
        reader = graph.consumers(tensor)[0]
        raise InvalidModelError(f"{called(reader)} still reads {tensor!r}, which was deleted")
    for output, source in view.outputs.items():
        if not graph.has(source):
            raise InvalidModelError(f"graph output {output!r} still refers to {source!r}, which was deleted")
    infer(graph, sorted(set(graph.names) - graph.declared.keys() - graph.weights.keys()))


def _delete(draft: Draft, change: Delete) -> None:
    draft.graph.remove(node_name(_node(draft.graph, change.node)))


def _create(draft: Draft, change: Create) -> None:
    for name in change.outputs:
        if draft.graph.has(name):
            raise UsageError(f"a new node cannot have the name {name!r}: a tensor has it")
    if len(set(change.outputs)) < len(change.outputs):
        raise UsageError(f"the outputs of a new node need different names: {change.outputs}")
    node = _new_node(change, change.outputs, draft.graph.opset)
    _set_attributes(node, change.attributes, draft.graph.opset)
    _place_node(draft, node, change.weights)


def _connect(draft: Draft, change: Connect) -> None:
    node = copied(_node(draft.graph, change.node))
    if change.place >= len(node.input):
        raise UsageError(f"{called(node)} has {len(node.input)} inputs; there is no input {change.place}")
    node.input[change.place] = change.source
    _place_node(draft, node, {})


def _return(draft: Draft, change: Return) -> None:
    outputs = draft.view.outputs
    if change.output not in outputs:
        raise UsageError(f"the graph has no output {change.output!r}; it has {', '.join(map(repr, outputs))}")
    if not draft.view.is_computed(change.source):
        raise UsageError(f"{change.source!r} cannot be an output: nothing computes it")
    draft.view = replace(draft.view, outputs={**outputs, change.output: change.source})


def _replace(draft: Draft, change: Replace) -> None:
    old = _node(draft.graph, change.node)
    if not is_standard(old):
        raise UsageError(
            f"{old.domain}::{old.op_type} node {change.node!r} cannot be replaced; delete it and create another"
        )
    opset, kept = draft.graph.opset, change.type == old.op_type
    node = copied(old) if kept else _new_node(change, writes(old)[:1], opset)
    node.input[:] = change.inputs
    given = {name: value for name, value in change.attributes.items() if value is not None}
    _set_attributes(node, given, opset)
    renew(node, change.attributes.keys() - given.keys(), ())
    _place_node(draft, node, change.weights, old if kept else None)


def _new_node(change: Create | Replace, outputs: Sequence[str], opset: int) -> onnx.NodeProto:
    if not onnx.defs.has(change.type, opset, ""):
        known = {schema.name for schema in onnx.defs.get_all_schemas() if not schema.domain}
        raise UsageError(f"ONNX has no operator {change.type!r} in opset {opset}{_instead(change.type, known)}")
    return onnx.NodeProto(op_type=change.type, name=outputs[0], input=change.inputs, output=outputs)


def _set_attributes(node: onnx.NodeProto, changes: Mapping[str, AttributeValue], opset: int) -> None:
    new = [_attribute(node.op_type, name, value, opset) for name, value in changes.items()]
    renew(node, changes, new)


def _attribute(kind: str, name: str, value: AttributeValue, opset: int) -> onnx.AttributeProto:
    known = onnx.defs.get_schema(kind, opset, "").attributes
    if name not in known:
        raise UsageError(f"{kind} has no attribute {name!r} in opset {opset}{_instead(name, known)}")
    wanted = _KINDS.get(known[name].type)
    if wanted is None:
        raise UsageError(f"attribute {name!r} of {kind} cannot be set: it is no number, string or list of these")
    items = value if isinstance(value, tuple | list) else (value,)
    if any(isinstance(item, float) and not isfinite(item) for item in items):
        raise UsageError(f"attribute {name!r} of {kind} must be finite")
    try:
        return onnx.helper.make_attribute(name, value, attr_type=wanted)
    except (TypeError, ValueError) as error:
        raise UsageError(f"attribute {name!r} of {kind} cannot be {value!r:.80}: {error}") from error


def _instead(name: str, known: Mapping[str, object] | set[str]) -> str:
    close = get_close_matches(name, known, n=3)
    return f"; did you mean {', '.join(map(repr, close))}?" if close else ""


def _place_node(
    draft: Draft, node: onnx.NodeProto, weights: Mapping[int, Weight], old: onnx.NodeProto | None = None
) -> None:
    """Put `node` with new weights in the place of the node of its name, or at the end."""
    graph, name = draft.graph, node_name(node)
    for tensor in node.input:
        if tensor and not graph.has(tensor):
            raise UsageError(f"{called(node)} cannot read {tensor!r}: there is no such tensor")
    for place in sorted(weights):
        _add_weight(draft, node, place, weights[place], old)
    opsets = {item.domain: item.version for item in graph.frame.opset_import}
    opsets[""] = graph.opset
    if fault := schema_violation(node, opsets):
        raise UsageError(f"{called(node)} violates its operator's schema: {fault}")
    known = reads(graph.node(name)) if graph.has_node(name) else ()
    graph.replace(name, node) if graph.has_node(name) else graph.append(node)
    fresh = set(reads(node)).difference(known, graph.weights)
    if fresh and not fresh.isdisjoint(graph.computed_from(name)):
        raise UsageError(f"{called(node)} cannot read a tensor that is computed from its own output")
    _invalidate_types(graph, name)


def _invalidate_types(graph: EditableGraph, name: str) -> None:
    own = writes(_node(graph, name))
    before = [graph.declared.pop(tensor, None) for tensor in own]
    # Intermediate shapes need not fit; all are checked at the end.
    with suppress(InvalidModelError):
        infer(graph, own)
        if before == [graph.declared[tensor] for tensor in own]:
            return
    for tensor in graph.computed_from(name).difference(own):
        graph.declared.pop(tensor, None)


def _add_weight(draft: Draft, node: onnx.NodeProto, place: int, wanted: Weight, old: onnx.NodeProto | None) -> None:
    """Set input `place` of `node` to a weight: that of `old` if it fits, a part of it, or a new one."""
    node.input.extend([""] * (place + 1 - len(node.input)))
    if draft.view.is_computed(node.input[place]):
        raise UsageError(f"{called(node)} reads {node.input[place]!r} where it needs a weight")
    source = old.input[place] if old is not None and place < len(old.input) else ""
    before = draft.graph.weights.get(source)
    fits = before is not None and (before.shape, before.dtype.name) == (wanted.shape, wanted.dtype)
    if fits and wanted.data is None:
        node.input[place] = source
        return
    draft.new_nbytes += wanted.nbytes
    if draft.new_nbytes > _MAX_NEW_NBYTES:
        raise InvalidModelError(f"the new weights take {draft.new_nbytes:,} bytes; the limit is {_MAX_NEW_NBYTES:,}")
    formal = _formal_input(draft.graph, node, place)
    role = str(place) if formal is None else formal.name
    name = node.input[place] = unused(draft.graph, f"{node.output[0]}/{role}")
    values = wanted.values() if wanted.data is not None else None
    if values is None and before is not None and old is not None and source not in draft.seeded:
        values = _cut_out(before, wanted.shape, wanted.dtype, old, node)
        if values is not None:
            draft.sliced = {**draft.sliced, name: draft.sliced.get(source, source)}
    if values is None:
        if wanted.dtype not in _FLOATS or (formal is not None and formal.types.isdisjoint(_FLOAT_TENSORS)):
            raise UsageError(f"{called(node)} needs integers as input {place}, which cannot be seeded; pass an array")
        draft.seeded = (*draft.seeded, name)
        values = seeded(name, draft.base, node, place, wanted.shape).astype(wanted.element)
    draft.graph.add_weight(name, values)


def _cut_out(
    whole: np.ndarray, shape: tuple[int, ...], dtype: str, old: onnx.NodeProto, new: onnx.NodeProto
) -> np.ndarray | None:
    """The first channels and the middle of the kernel of the weight `whole` of `old`; None if that is not `shape`."""
    if whole.ndim != len(shape) or whole.dtype.name != dtype or not _grouped_alike(old, new, whole.shape):
        return None
    slices = []
    for axis, (size, had) in enumerate(zip(shape, whole.shape, strict=True)):
        begin = (had - size) // 2 if axis >= 2 else 0
        if size > had or (axis >= 2 and (had - size) % 2):
            return None
        slices.append(slice(begin, begin + size))
    return np.array(whole[tuple(slices)])


def _grouped_alike(old: onnx.NodeProto, new: onnx.NodeProto, shape: tuple[int, ...]) -> bool:
    """Whether channels keep their role: equal groups, or depthwise."""
    before, after = integer(old, "group", 1), integer(new, "group", 1)
    return before == after or (len(shape) > 2 and shape[:2] == (before, 1))


def seeded(name: str, base: str, node: onnx.NodeProto, place: int, shape: tuple[int, ...]) -> np.ndarray:
    """float32 values for the weight `name`, which `node` reads at `place`; `base` is the base model's digest.

    Equal on every machine and version: raw bits of a generator with a stable stream, and exact operations (numpy's
    distributions may change). Uniform, with He's variance (He et al., ICCV 2015, eq. 10) for products.
    """
    centre, spread = (np.float32(value) for value in _value_range(node, place, shape))
    generator = np.random.PCG64(int.from_bytes(sha256(f"{base}/{name}".encode()).digest()))
    values = np.empty(prod(shape), np.float32)
    for begin in range(0, values.size, _CHUNK):
        part = values[begin : begin + _CHUNK]
        words = generator.random_raw(-(-part.size // 2)).astype("<u8", copy=False).view("<u4")[: part.size]
        part[:] = words >> np.uint32(8)  # 24 bits, the precision of float32
        part += np.float32(0.5)
        part *= np.float32(2**-23)
        part -= np.float32(1)
        part *= spread
        part += centre
    return values.reshape(shape)


def _value_range(node: onnx.NodeProto, place: int, shape: tuple[int, ...]) -> tuple[float, float]:
    fan_in = _fan_in(node, place, shape)
    if fan_in:
        return 0.0, sqrt(6 / fan_in)
    is_factor = node.op_type in _NORMALIZATIONS and place in (1, 4)  # or a variance
    if is_factor or node.op_type in ("Mul", "Div"):
        return 1.0, 0.1
    return (0.25 if node.op_type == "PRelu" else 0.0), _SMALL


def _fan_in(node: onnx.NodeProto, place: int, shape: tuple[int, ...]) -> int:
    """The number of summed products; 0 for other weights."""
    if place != 1 or len(shape) < 2:
        return 0
    if node.op_type == "Conv":
        return prod(shape[1:])
    if node.op_type == "ConvTranspose":
        return shape[0] * prod(shape[2:]) // max(integer(node, "group", 1), 1)
    if node.op_type == "Gemm":
        return shape[1] if integer(node, "transB") else shape[0]
    return shape[-2] if node.op_type == "MatMul" else 0


def _formal_input(graph: EditableGraph, node: onnx.NodeProto, place: int) -> OpSchema.FormalParameter | None:
    """The schema of the node's input at `place`; None for variadic inputs."""
    formal = onnx.defs.get_schema(node.op_type, graph.opset, "").inputs
    return formal[place] if place < len(formal) else None


def unused(graph: EditableGraph, name: str, others: Sequence[str] = ()) -> str:
    """`name`, numbered if a tensor or one of `others` has it."""
    candidate, number = name, 1
    while graph.has(candidate) or candidate in graph.outputs or candidate in others:
        number += 1
        candidate = f"{name}_{number}"
    return candidate


def _node(graph: EditableGraph, name: str) -> onnx.NodeProto:
    if not graph.has_node(name):
        raise UsageError(f"the graph has no node {name!r}")
    return graph.node(name)


_CHANGES: Mapping[type, Any] = {Create: _create, Delete: _delete, Connect: _connect, Return: _return, Replace: _replace}
