"""Reads ONNX nodes: attributes as plain values, and activations in their normal form."""

from __future__ import annotations

import onnx
from onnx.helper import get_attribute_value

from iosched.runtime.cuda.builder import Builder
from iosched.runtime.cuda.source.activation import Activation, is_supported

_ALPHA = {"LeakyRelu": 0.01, "Elu": 1.0, "Celu": 1.0, "Selu": 1.6732632, "HardSigmoid": 0.2, "Swish": 1.0,
          "ThresholdedRelu": 1.0}  # fmt: skip
_BETA = {"Selu": 1.0507010, "HardSigmoid": 0.5}


def attribute(node: onnx.NodeProto, name: str, default: object = None) -> object:
    """The value of an attribute, or `default`."""
    return next((get_attribute_value(item) for item in node.attribute if item.name == name), default)


def number(node: onnx.NodeProto, name: str, default: float) -> float:
    """The value of an attribute that is a number."""
    found = attribute(node, name, default)
    return float(found) if isinstance(found, int | float) else default


def activation_of(builder: Builder, node: onnx.NodeProto) -> Activation | None:
    """The activation that `node` is; None where it is none, or its parameters are computed."""
    kind = node.op_type
    if node.domain not in ("", "ai.onnx") or not is_supported(kind):
        return None
    if kind == "Clip":
        return _clip(builder, node)
    alpha = number(node, "alpha", _ALPHA.get(kind, 0.0))
    beta = number(node, "gamma" if kind == "Selu" else "beta", _BETA.get(kind, 0.0))
    if kind == "Gelu":
        beta = 1.0 if attribute(node, "approximate", b"none") == b"tanh" else 0.0
    return Activation(kind, alpha, beta)


def _clip(builder: Builder, node: onnx.NodeProto) -> Activation | None:
    """Bounds are attributes before opset 11 and inputs since."""
    bounds = [number(node, "min", float("-inf")), number(node, "max", float("inf"))]
    for position, name in enumerate(node.input[1:3]):
        if not name:
            continue
        constant = builder.constant(name)
        if constant is None or constant.size != 1:
            return None
        bounds[position] = float(constant.reshape(-1)[0])
    return Activation("Clip", bounds[0], bounds[1])
