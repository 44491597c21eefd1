"""Converts models to common opsets: upward, and only if that is safe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx
from onnx import helper

from iosched.models.digest import opsets_of, since
from iosched.models.editable_graph import EditableGraph
from iosched.models.errors import InvalidModelError
from iosched.models.initializers import is_external, read_tensor
from iosched.models.load import assembled_model, edited_model
from iosched.models.model import Model
from iosched.models.wiring import is_standard, nodes_within

_STANDARD = "ai.onnx"


def common_opsets(models: Sequence[Model]) -> dict[str, int]:
    """The newest version of each domain that any of the models imports."""
    found: dict[str, int] = {}
    for model in models:
        for domain, version in opsets_of(model.proto).items():
            found[domain] = max(found.get(domain, 0), version)
    return found


def with_opsets(model: Model, opsets: Mapping[str, int]) -> Model:
    """The model converted to `opsets`, none of which is older than its own.

    If all operators keep their definitions, only the version changes. Otherwise onnx converts the graph, without
    weights.

    Raises:
        InvalidModelError: onnx cannot convert the model; names the model and the operator.
    """
    own = opsets_of(model.proto)
    if all(version >= opsets[domain] for domain, version in own.items()):
        return model
    differing = _changed_operators(model.proto, opsets)
    for domain, operator in differing.items():
        if domain != _STANDARD:
            raise _refusal(model, own[domain], opsets[domain], f"{operator} of {domain} differs between the two")
    if differing:
        return _converted(model, own[_STANDARD], opsets[_STANDARD])
    graph = EditableGraph.of(model.proto, model.weights)
    del graph.frame.opset_import[:]
    graph.frame.opset_import.extend(imports({domain: opsets[domain] for domain in own}))
    return edited_model(model.name, graph)


def imports(opsets: Mapping[str, int]) -> list[onnx.OperatorSetIdProto]:
    """Opsets as a model imports them."""
    pairs = (("" if domain == _STANDARD else domain, version) for domain, version in opsets.items())
    return [helper.make_opsetid(domain, version) for domain, version in pairs]


def _changed_operators(proto: onnx.ModelProto, opsets: Mapping[str, int]) -> dict[str, str]:
    """The first operator of each domain whose definition differs in `opsets`."""
    own, found = opsets_of(proto), dict[str, str]()
    for node in nodes_within(proto.graph):
        domain = _STANDARD if is_standard(node) else node.domain
        if domain in own and since(node, own) != since(node, opsets):
            found.setdefault(domain, node.op_type)
    return found


def _converted(model: Model, own: int, version: int) -> Model:
    """The model converted by onnx; large weights are graph inputs meanwhile, to avoid copies."""
    graph = EditableGraph.of(model.proto, model.weights)
    large = [tensor.name for tensor in model.proto.graph.initializer if is_external(tensor)]
    inputs = {name: graph.weights.pop(name) for name in large}
    for name, array in inputs.items():
        kind = helper.np_dtype_to_tensor_dtype(array.dtype)
        graph.inputs[name] = helper.make_tensor_value_info(name, kind, array.shape)
    try:
        proto = onnx.version_converter.convert_version(graph.to_proto(), version)
    except (RuntimeError, ValueError, onnx.checker.ValidationError) as error:
        reason = (str(error).strip().splitlines() or ["unknown reason"])[-1].strip()
        raise _refusal(model, own, version, f"onnx cannot convert it ({reason[:200]})") from error
    small = {tensor.name: read_tensor(tensor) for tensor in proto.graph.initializer}
    return assembled_model(model.name, proto, {**small, **inputs})


def _refusal(model: Model, own: int, version: int, why: str) -> InvalidModelError:
    return InvalidModelError(
        f"model {model.name!r} has opset {own} and another model has opset {version}: {why}.\n"
        f"Export it with opset {version}."
    )
