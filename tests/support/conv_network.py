"""A small network of convolutions of one or three dimensions, with what surrounds them."""

from __future__ import annotations

import numpy as np
import onnx
from lowering import loaded, proto_of, weight
from onnx import helper

from iosched.models.model import Model

LINE, SOLID = (31,), (5, 6, 7)


def conv_network(space: tuple[int, ...], batch: int) -> Model:
    """Convolutions, normalized, depthwise, pointwise, grouped, with a residual that is an operand of a Concat too."""
    nodes: list[onnx.NodeProto] = []
    weights = {name: np.abs(weight(8, seed=seed)) + 0.1 for seed, name in enumerate("gsmv")}

    def conv(x: str, y: str, size: int, channels: int = 8, group: int = 1) -> None:
        weights[f"{y}/w"] = weight(channels, 8 // group, *(size,) * len(space), seed=len(nodes))
        weights[f"{y}/b"] = weight(channels, seed=len(nodes))
        pads = [size // 2] * (2 * len(space))
        nodes.append(helper.make_node("Conv", [x, f"{y}/w", f"{y}/b"], [y], pads=pads, group=group))

    def add(kind: str, *inputs: str, to: str, **attributes: object) -> None:
        nodes.append(helper.make_node(kind, list(inputs), [to], **attributes))

    conv("x", "c", 3)
    add("BatchNormalization", "c", "g", "s", "m", "v", to="normal")
    add("Relu", "normal", to="r")
    conv("r", "d", 3, group=8)
    conv("d", "p", 1)
    add("Relu", "p", to="q")
    conv("q", "e", 3, group=2)
    add("Add", "e", "q", to="sum")
    add("Relu", "sum", to="h")
    conv("h", "narrow", 1, 4)
    conv("h", "wide", 3, 4)
    add("Concat", "narrow", "wide", "q", "h", to="all", axis=1)
    add("GlobalAveragePool", "all", to="y")
    return loaded(proto_of(nodes, {"x": (batch, 8, *space)}, ["y"], weights))
