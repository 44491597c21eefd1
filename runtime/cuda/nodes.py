"""The activation that an ONNX node is."""

from __future__ import annotations

import onnx

from iosched.models.node_attributes import number, text
from iosched.models.wiring import is_standard
from iosched.runtime.cuda.builder import Builder
from iosched.runtime.cuda.source.activation import Activation, is_supported

_ALPHA = {"LeakyRelu": 0.01, "Elu": 1.0, "Celu": 1.0, "Selu": 1.6732632, "HardSigmoid": 0.2, "Swish": 1.0,
          "ThresholdedRelu": 1.0}  # fmt: skip
_BETA = {"Selu": 1.0507010, "HardSigmoid": 0.5}


def activation_of(builder: Builder, node: onnx.NodeProto) -> Activation | None:
    """The activation that `node` is; None where it is none, or its parameters are computed."""
    kind = node.op_type
    if not is_standard(node) or not is_supported(kind):
        return None
    if kind == "Clip":
        return _clip(builder, node)
    alpha = number(node, "alpha", _ALPHA.get(kind, 0.0))
    beta = number(node, "gamma" if kind == "Selu" else "beta", _BETA.get(kind, 0.0))
    if kind == "Gelu":
        beta = float(text(node, "approximate") == "tanh")
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
