"""Makes ONNX nodes of plain values, each checked against its operator's definition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from math import isfinite

import onnx

from iosched.models.checks import definition_fault
from iosched.models.errors import UsageError
from iosched.models.graph import AttributeValue
from iosched.models.node_attributes import renew

_ATTR = onnx.defs.OpSchema.AttrType
_KINDS = {
    _ATTR.INT: onnx.AttributeProto.INT,
    _ATTR.INTS: onnx.AttributeProto.INTS,
    _ATTR.FLOAT: onnx.AttributeProto.FLOAT,
    _ATTR.FLOATS: onnx.AttributeProto.FLOATS,
    _ATTR.STRING: onnx.AttributeProto.STRING,
    _ATTR.STRINGS: onnx.AttributeProto.STRINGS,
}


def node_of(
    kind: str,
    inputs: Sequence[str],
    outputs: Sequence[str],
    attributes: Mapping[str, AttributeValue],
    opsets: Mapping[str, int],
) -> onnx.NodeProto:
    """A node of ONNX's own domain; `check_definition` says whether it has all that it needs.

    Raises:
        UsageError: there is no such operator in the model's opset, or it has no such attribute.
    """
    opset = opsets.get("ai.onnx", 0)
    if not onnx.defs.has(kind, opset, ""):
        known = {schema.name for schema in onnx.defs.get_all_schemas() if not schema.domain}
        raise UsageError(f"ONNX has no operator {kind!r} in opset {opset}{_instead(kind, known)}")
    node = onnx.NodeProto(op_type=kind, name=outputs[0], input=inputs, output=outputs)
    for name, value in attributes.items():
        node.attribute.append(_attribute(kind, name, value, opset))
    return node


def with_attributes(
    node: onnx.NodeProto, changes: Mapping[str, AttributeValue | None], opsets: Mapping[str, int]
) -> onnx.NodeProto:
    """A copy of `node` with other attributes; None takes one away.

    Raises:
        UsageError: the operator has no such attribute.
    """
    changed = onnx.NodeProto()
    changed.CopyFrom(node)
    opset = opsets.get("ai.onnx", 0)
    new = [_attribute(node.op_type, key, value, opset) for key, value in changes.items() if value is not None]
    renew(changed, changes, new)
    return changed


def check_definition(node: onnx.NodeProto, opsets: Mapping[str, int]) -> None:
    """Check that a node has the inputs and attributes that its operator needs.

    Raises:
        UsageError: it has not.
    """
    named = {"" if domain == "ai.onnx" else domain: version for domain, version in opsets.items()}
    if fault := definition_fault(node, named):
        raise UsageError(f"{node.op_type} node {node.output[0]!r} is not as its operator is defined: {fault}")


def _attribute(kind: str, name: str, value: AttributeValue, opset: int) -> onnx.AttributeProto:
    known = onnx.defs.get_schema(kind, opset, "").attributes
    if name not in known:
        raise UsageError(f"{kind} has no attribute {name!r} in opset {opset}{_instead(name, known)}")
    wanted = _KINDS.get(known[name].type)
    if wanted is None:
        raise UsageError(f"attribute {name!r} of {kind} is no number, text, or list of these; it cannot be given")
    items = value if isinstance(value, tuple | list) else (value,)
    if any(isinstance(item, float) and not isfinite(item) for item in items):
        raise UsageError(f"attribute {name!r} of {kind} is no finite number")
    try:
        return onnx.helper.make_attribute(name, value, attr_type=wanted)
    except (TypeError, ValueError) as error:
        raise UsageError(f"attribute {name!r} of {kind} cannot be {value!r:.80}: {error}") from error


def _instead(name: str, known: Mapping[str, object] | set[str]) -> str:
    close = get_close_matches(name, known, n=3)
    return f"; did you mean {', '.join(map(repr, close))}?" if close else ""
