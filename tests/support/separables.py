"""A small model of depthwise and pointwise convolutions, as NASNet and RandWire have them."""

from __future__ import annotations

import numpy as np
from lowering import loaded, proto_of, weight
from onnx import NodeProto, helper

from iosched.models.model import Model


def separables() -> Model:
    """Two alike, whose sum goes into a third of another size with batch normalization behind it."""
    weights: dict[str, np.ndarray] = {}
    nodes: list[NodeProto] = []

    def add(x: str, y: str, size: int) -> None:
        weights[f"{y}d"], weights[f"{y}db"] = weight(8, 1, size, size), weight(8, 1)[:, 0]
        weights[f"{y}p"], weights[f"{y}pb"] = weight(8, 8, 1, 1), weight(8, 1, seed=1)[:, 0]
        nodes.append(helper.make_node("Relu", [x], [f"{y}r"]))
        nodes.append(helper.make_node("Conv", [f"{y}r", f"{y}d", f"{y}db"], [f"{y}m"], pads=[size // 2] * 4, group=8))
        nodes.append(helper.make_node("Conv", [f"{y}m", f"{y}p", f"{y}pb"], [y]))

    add("x", "a", 3)
    add("x", "b", 3)
    nodes.append(helper.make_node("Add", ["a", "b"], ["s"]))
    add("s", "c", 5)
    values = [1 + np.abs(weight(8, 1, seed=seed)[:, 0]) for seed in range(4)]
    weights |= dict(zip(("gamma", "beta", "mean", "variance"), values, strict=True))
    nodes.append(helper.make_node("BatchNormalization", ["c", "gamma", "beta", "mean", "variance"], ["y"]))
    return loaded(proto_of(nodes, {"x": (2, 8, 7, 7)}, ["y"], weights))


def separable_operators(model: Model) -> list[str]:
    return [each.name for each in model.graph.operators if each.type == "ReluSepConv"]
