"""Validates a parsed model before anything else is done with it."""

from __future__ import annotations

from collections.abc import Mapping

import onnx

from iosched.models.editable_graph import EditableGraph
from iosched.models.errors import InvalidModelError, first_line
from iosched.models.node_attributes import subgraphs
from iosched.models.wiring import is_standard, reads, writes

_KNOWN_PREFIXES = ("ai.onnx.", "com.microsoft", "com.ms.")
# onnxruntime accepts these in ONNX's domain, in any opset.
_RUNTIME_EXTRAS = frozenset({"LayerNormalization", "SimplifiedLayerNormalization"})


def check_structure(graph: EditableGraph) -> None:
    """Check names, operators and attributes of a graph in topological order.

    Raises:
        InvalidModelError: an undefined tensor, a duplicate name, an unknown operator or domain, or a node that violates
            its operator's schema.
    """
    _check_names(graph)
    for node in graph.nodes:
        _check_operator(node, graph.opset)
    _check_schemas(graph)


def _check_names(graph: EditableGraph) -> None:
    if not graph.outputs:
        raise InvalidModelError("the graph has no output: there is nothing to compute.")
    known = {*graph.weights, *graph.inputs}
    for node in graph.nodes:
        for name in reads(node):
            if name not in known:
                raise InvalidModelError(_undefined(node, name))
        if twice := next((name for name in writes(node) if name in known), ""):
            raise InvalidModelError(f"tensor {twice!r} is defined twice; tensor names must be unique.")
        known.update(writes(node))
    for name in graph.outputs:
        if name not in known:
            raise InvalidModelError(f"no node computes graph output {name!r}.")


def _undefined(node: onnx.NodeProto, name: str) -> str:
    return (
        f"{node.op_type} node {next(iter(writes(node)), node.name)!r} reads {name!r}, which is neither a graph input, "
        "an initializer nor a node output.\nA weight may have been lost on export; export the model again."
    )


def _check_operator(node: onnx.NodeProto, opset: int) -> None:
    name = next(iter(writes(node)), node.name)
    if not is_standard(node) and not node.domain.startswith(_KNOWN_PREFIXES):
        raise InvalidModelError(
            f"operator {node.domain}::{node.op_type} (node {name!r}) is in a domain unknown to onnxruntime.\n"
            "Export the model with standard operators, or define the operator as a model function."
        )
    if is_standard(node) and node.op_type not in _RUNTIME_EXTRAS and not onnx.defs.has(node.op_type, opset, ""):
        raise InvalidModelError(
            f"operator {node.op_type} (node {name!r}) does not exist in opset {opset}.\n"
            "Export the model again with a matching opset."
        )
    for graph in subgraphs(node):
        for inner in graph.node:
            _check_operator(inner, opset)


def _check_schemas(graph: EditableGraph) -> None:
    skeleton = onnx.ModelProto(ir_version=min(graph.frame.ir_version, onnx.IR_VERSION))
    skeleton.ir_version = max(skeleton.ir_version, 8)
    skeleton.opset_import.extend(graph.frame.opset_import)
    skeleton.graph.name = "skeleton"
    extras = {name for node in graph.nodes if _is_extra(node) for name in writes(node)}
    skeleton.graph.node.extend(node for node in graph.nodes if not _is_extra(node))
    shown = {name for node in skeleton.graph.node for name in writes(node)}
    skeleton.graph.input.extend(map(_scalar, dict.fromkeys([*graph.inputs, *sorted(graph.weights), *sorted(extras)])))
    skeleton.graph.output.extend(_scalar(name) for name in graph.outputs if name in shown)
    if not skeleton.graph.output:
        return
    try:
        onnx.checker.check_model(skeleton)
    except onnx.checker.ValidationError as error:
        raise InvalidModelError(f"not a valid ONNX model: {first_line(error)}") from error


def _is_extra(node: onnx.NodeProto) -> bool:
    return is_standard(node) and node.op_type in _RUNTIME_EXTRAS


def _scalar(name: str) -> onnx.ValueInfoProto:
    return onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [])


def is_well_formed(node: onnx.NodeProto, proto: onnx.ModelProto) -> bool:
    """Whether a node fits its operator's schema in the opsets of `proto`."""
    return not schema_violation(node, {item.domain: item.version for item in proto.opset_import})


def schema_violation(node: onnx.NodeProto, opsets: Mapping[str, int]) -> str:
    """The error by which a node violates its operator's schema in these opsets; "" if there is none."""
    context = onnx.checker.C.CheckerContext()
    context.ir_version = onnx.IR_VERSION
    context.opset_imports = dict(opsets)
    try:
        onnx.checker.check_node(node, context)
    except (onnx.checker.ValidationError, TypeError) as error:
        return first_line(error)
    return ""
