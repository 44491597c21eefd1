"""Takes one of the models out of a composed one."""

from __future__ import annotations

from collections.abc import Collection

import onnx

from iosched.models.composition.members import Member
from iosched.models.load import assembled_model
from iosched.models.model import Model
from iosched.models.wiring import reads, writes


def member_alone(whole: Model, member: Member) -> Model:
    """The model that computes the outputs of one member; its inputs and outputs are called as in the whole.

    Of a batched model, what several members are one in is computed for all of them.

    Raises:
        InvalidModelError: the graph is not one that can be run.

    Complexity: O(nodes), and that of `assembled_model`.
    """
    return _computing(whole, member.name, frozenset(member.inputs.values()), frozenset(member.outputs.values()))


def _computing(whole: Model, name: str, inputs: Collection[str], outputs: Collection[str]) -> Model:
    graph, needed = whole.proto.graph, set(outputs)
    nodes: list[onnx.NodeProto] = []
    for node in reversed(graph.node):
        if not needed.isdisjoint(writes(node)):
            nodes.append(node)
            needed.update(reads(node))
    computed = {tensor for node in nodes for tensor in writes(node)}
    proto = onnx.ModelProto(ir_version=whole.proto.ir_version, opset_import=whole.proto.opset_import)
    proto.graph.name = name
    proto.graph.node.extend(reversed(nodes))
    proto.graph.input.extend(value for value in graph.input if value.name in inputs or value.name in needed)
    proto.graph.output.extend(value for value in graph.output if value.name in outputs)
    proto.graph.value_info.extend(value for value in graph.value_info if value.name in computed)
    return assembled_model(name, proto, {tensor: array for tensor, array in whole.weights.items() if tensor in needed})
