"""What ONNX's newest opsets added to operators that OpenVINO computes as older opsets have them, without a word."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import onnx

from iosched.models.model import Model
from iosched.models.node_attributes import text
from iosched.models.wiring import is_standard

_Types = Mapping[str, str]
"""Element types of tensors by name."""


def newer_use(model: Model) -> str | None:
    """In words, the first node that OpenVINO would compute in another way than the model's opset defines it, if any."""
    types = {name: spec.dtype for name, spec in model.graph.tensor.items()}
    types.update({name: array.dtype.name for name, array in model.weights.items()})
    for node in model.proto.graph.node:
        uses = _NEWER.get(node.op_type) if is_standard(node) else None
        if uses is not None and uses(node, types):
            return f"{node.op_type} {node.name!r} as newer opsets define it"
    return None


def _reads_columns_first(node: onnx.NodeProto, _: _Types) -> bool:
    return text(node, "mode", "DCR") != "DCR"


def _shifts_signed(node: onnx.NodeProto, types: _Types) -> bool:
    return types.get(node.input[0], "").startswith("int")


_NEWER: Mapping[str, Callable[[onnx.NodeProto, _Types], bool]] = {
    "BitShift": _shifts_signed,  # opset 28: a shift of negative numbers to the right rounds down
    "SpaceToDepth": _reads_columns_first,  # opset 28: the attribute `mode`
}
"""What OpenVINO 2026.4 computes otherwise than onnxruntime 1.32; what it refuses by itself is not here."""
