"""Models that expose parts of another one: inner tensors as outputs, or operators alone."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from iosched.models.editable_graph import EditableGraph, bare_frame
from iosched.models.load import edited_model
from iosched.models.model import Model
from iosched.models.node_attributes import copied
from iosched.models.wiring import reads, writes


def probed(model: Model, tensors: Collection[str]) -> Model:
    """The model with these tensors as additional outputs; unknown names are ignored.

    Its operators are those of `model`, so their schedules fit both.
    """
    shown = {value.name: value for value in model.proto.graph.value_info}
    more = [name for name in tensors if name in shown and name in model.graph.producer]
    more = [name for name in more if name not in model.graph.outputs]
    proto = copied(model.proto)
    proto.graph.output.extend(shown[name] for name in more)
    graph = replace(model.graph, outputs=(*model.graph.outputs, *more))
    return replace(model, proto=proto, graph=graph, original=None)


def extracted_operators(model: Model, operators: Collection[str], outputs: Collection[str]) -> Model:
    """The model of some operators: its inputs are the tensors that they read from others, its outputs are `outputs`.

    Raises:
        InvalidModelError: the graph cannot be run, for example because a shape is unknown.
    """
    graph = EditableGraph.of(model.proto, model.weights)
    graph.frame = bare_frame(model.name, model.proto.ir_version, model.proto.opset_import)
    wanted = [model.graph.by_name[name] for name in operators]
    nodes = [graph.node(name) for operator in wanted for name in operator.nodes]
    inside = {name for node in nodes for name in writes(node)}
    read = {name for node in nodes for name in reads(node)}
    graph.cut_out(sorted(read - inside - model.weights.keys()), outputs)
    return edited_model(model.name, graph)
