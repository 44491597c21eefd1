"""Makes a model of a changed graph."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import onnx

from iosched.models.errors import InvalidModelError
from iosched.models.load import assembled_model
from iosched.models.metadata import METADATA_PREFIX
from iosched.models.model import Model
from iosched.models.mutation.draft import Draft, unused
from iosched.models.mutation.graph import GraphView
from iosched.models.mutation.record import MUTATION_KEY, Record
from iosched.models.mutation.wires import wires_of
from iosched.models.wiring import captures, is_standard, writes


def assembled(base: Model, draft: Draft, record: Record) -> Model:
    """The model of a draft of `base`: shapes inferred again, constants folded, with its record in the metadata.

    What iosched wrote into the base's metadata is not taken over: a schedule of it, or how it was batched.

    Raises:
        InvalidModelError: the graph is not one that can be run.
    """
    graph = _with_free_outputs(draft.graph)
    proto = _frame(base.proto)
    proto.graph.node.extend(map(_without_notes, graph.protos.values()))
    for output, source in graph.outputs.items():
        if source != output:
            proto.graph.node.append(onnx.helper.make_node("Identity", [source], [output]))
    proto.graph.output.extend(_outputs(base.proto, graph))
    proto.graph.value_info.extend(_declared(graph))
    proto.metadata_props.add(key=MUTATION_KEY, value=record.to_json())
    return assembled_model(base.name, proto, dict(graph.weights))


def _frame(base: onnx.ModelProto) -> onnx.ModelProto:
    """The model without nodes, tensors and outputs, and without our metadata."""
    frame = onnx.ModelProto()
    frame.CopyFrom(base)
    for field in ("node", "initializer", "value_info", "output"):
        frame.graph.ClearField(field)
    _drop_notes(frame)
    return frame


def _with_free_outputs(graph: GraphView) -> GraphView:
    """The graph in which tensors inside have no name of an output that is another tensor now."""
    protos = dict(graph.protos)
    for output, source in graph.outputs.items():
        if source == output or not graph.has(output):
            continue
        if holder := next((name for name, proto in graph.protos.items() if output in captures(proto)), ""):
            raise InvalidModelError(
                f"graph output {output!r} cannot be another tensor: a graph inside node {holder!r} reads {output!r}"
            )
        inner = unused(graph, f"{output}/inner")
        protos = {name: _renamed(proto, output, inner) for name, proto in protos.items()}
        graph = replace(graph, protos=protos, outputs=_redirected(graph, output, inner), wires=wires_of(protos))
    return graph


def _redirected(graph: GraphView, old: str, new: str) -> dict[str, str]:
    return {output: new if source == old else source for output, source in graph.outputs.items()}


def _renamed(proto: onnx.NodeProto, old: str, new: str) -> onnx.NodeProto:
    changed = onnx.NodeProto()
    changed.CopyFrom(proto)
    for names in (changed.input, changed.output):
        names[:] = [new if name == old else name for name in names]
    return changed


def _outputs(base: onnx.ModelProto, graph: GraphView) -> Iterable[onnx.ValueInfoProto]:
    for value in base.graph.output:
        known = graph.types.get(graph.outputs[value.name])
        yield onnx.ValueInfoProto(name=value.name, type=value.type if known is None else known)


def _declared(graph: GraphView) -> Iterable[onnx.ValueInfoProto]:
    """What is known of tensors whose types onnx cannot infer."""
    for proto in graph.protos.values():
        for tensor in () if is_standard(proto) else writes(proto):
            if tensor in graph.types and graph.types[tensor].WhichOneof("value"):
                yield onnx.ValueInfoProto(name=tensor, type=graph.types[tensor])


def _without_notes(proto: onnx.NodeProto) -> onnx.NodeProto:
    if not proto.metadata_props:
        return proto
    changed = onnx.NodeProto()
    changed.CopyFrom(proto)
    _drop_notes(changed)
    return changed


def _drop_notes(message: onnx.ModelProto | onnx.NodeProto) -> None:
    kept = [(item.key, item.value) for item in message.metadata_props if not item.key.startswith(METADATA_PREFIX)]
    del message.metadata_props[:]
    for key, value in kept:
        message.metadata_props.add(key=key, value=value)
