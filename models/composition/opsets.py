"""Brings models to common versions of the operator sets that they import: upward, and only where that is safe."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import onnx
from onnx import helper

from iosched.models.digest import opsets_of, since
from iosched.models.errors import InvalidModelError
from iosched.models.initializers import read_tensor
from iosched.models.load import assembled_model
from iosched.models.model import Model
from iosched.models.wiring import STANDARD_DOMAINS, nodes_within

_STANDARD = "ai.onnx"


def common_opsets(models: Sequence[Model]) -> dict[str, int]:
    """For each domain that any of the models imports, the newest version that one of them does."""
    found: dict[str, int] = {}
    for model in models:
        for domain, version in opsets_of(model.proto).items():
            found[domain] = max(found.get(domain, 0), version)
    return found


def raised(model: Model, opsets: Mapping[str, int]) -> Model:
    """The model with the versions of `opsets`, none of which is older than its own; itself where it has them.

    Where all its operators mean the same in both versions, the version is all that changes. Else onnx converts the
    graph; its weights stay where they are.

    Raises:
        InvalidModelError: onnx cannot convert the model; the message names the model and the operator.
    """
    own = opsets_of(model.proto)
    changed = {domain for domain in own if own[domain] < opsets[domain]}
    if not changed:
        return model
    meant = {domain: _first_that_differs(model.proto, domain, opsets) for domain in changed}
    for domain, operator in meant.items():
        if operator is not None and domain != _STANDARD:
            raise _refusal(model, own[domain], opsets[domain], f"{operator} of {domain} differs between the two")
    if meant.get(_STANDARD) is not None:
        return _converted(model, own[_STANDARD], opsets[_STANDARD])
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    _import(proto, {domain: opsets[domain] for domain in own})
    return assembled_model(model.name, proto, dict(model.weights))


def _first_that_differs(proto: onnx.ModelProto, domain: str, opsets: Mapping[str, int]) -> str | None:
    own = opsets_of(proto)
    for node in nodes_within(proto.graph):
        if (_STANDARD if node.domain in STANDARD_DOMAINS else node.domain) != domain:
            continue
        if since(node, own) != since(node, opsets):
            return str(node.op_type)
    return None


def _converted(model: Model, own: int, version: int) -> Model:
    """The model as onnx converts it: its large weights are graph inputs meanwhile, so that they are not copied."""
    lent = {name: array for name, array in model.weights.items() if name in set(_outside(model.proto))}
    given = onnx.ModelProto()
    given.CopyFrom(model.proto)
    inside = [tensor for tensor in model.proto.graph.initializer if tensor.name not in lent]
    del given.graph.initializer[:]
    given.graph.initializer.extend(inside)
    given.graph.input.extend(
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in lent.items()
    )
    try:
        proto = onnx.version_converter.convert_version(given, version)
    except (RuntimeError, ValueError, onnx.checker.ValidationError) as error:
        reason = (str(error).strip().splitlines() or ["no reason given"])[-1].strip()
        raise _refusal(model, own, version, f"onnx cannot convert it ({reason[:200]})") from error
    fed = [value for value in proto.graph.input if value.name not in lent]
    del proto.graph.input[:]
    proto.graph.input.extend(fed)
    weights: dict[str, np.ndarray] = {tensor.name: read_tensor(tensor) for tensor in proto.graph.initializer}
    return assembled_model(model.name, proto, {**weights, **lent})


def _outside(proto: onnx.ModelProto) -> Iterator[str]:
    for tensor in proto.graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            yield tensor.name


def _import(proto: onnx.ModelProto, opsets: Mapping[str, int]) -> None:
    del proto.opset_import[:]
    for domain, version in opsets.items():
        proto.opset_import.add(domain="" if domain == _STANDARD else domain, version=version)


def _refusal(model: Model, own: int, version: int, why: str) -> InvalidModelError:
    return InvalidModelError(
        f"model {model.name!r} is of opset {own}, and another one of opset {version}: {why}.\n"
        f"Export it with opset {version}."
    )
