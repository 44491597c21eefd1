"""Takes one of the models out of a composed one."""

from __future__ import annotations

import onnx

from iosched.models.composition.members import Member
from iosched.models.editable_graph import EditableGraph
from iosched.models.load import assembled_model
from iosched.models.model import Model


def member_alone(whole: Model, member: Member) -> Model:
    """The model that computes the outputs of one member; its inputs and outputs are called as in the whole.

    Of a batched model, what several members are one in is computed for all of them.

    Raises:
        InvalidModelError: the graph is not one that can be run.

    Complexity: O(nodes), and that of `assembled_model`.
    """
    graph = EditableGraph.of(whole.proto, whole.weights)
    graph.frame = onnx.ModelProto(ir_version=whole.proto.ir_version, opset_import=whole.proto.opset_import)
    graph.frame.graph.name = member.name
    graph.outputs = {name: value for name, value in graph.outputs.items() if name in member.outputs.values()}
    graph.drop_unread()
    own = member.inputs.values()
    graph.inputs = {name: value for name, value in graph.inputs.items() if name in own or graph.uses(name)}
    return assembled_model(member.name, graph.to_proto(), graph.weights)
