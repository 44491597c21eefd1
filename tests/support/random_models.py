"""Random models that ONNX Runtime runs: operators of one shape, read in any way that makes no cycle."""

from __future__ import annotations

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import helper
from small_models import proto_of, weight

SHAPE = [1, 4, 5, 5]
KINDS = {"Relu": 1, "Tanh": 1, "MaxPool": 1, "Conv1": 1, "Conv3": 1, "SepConv": 1, "Add": 2, "Sub": 2, "Join": 2}
"""How many tensors a layer of each kind reads."""


def _layer(kind: str, reads: list[str], name: str) -> tuple[list[onnx.NodeProto], dict[str, np.ndarray]]:
    node = helper.make_node
    if kind == "MaxPool":
        return [node(kind, reads, [name], kernel_shape=[3, 3], pads=[1] * 4)], {}
    if kind in ("Conv1", "Conv3"):
        size = int(kind[-1])
        conv = node("Conv", [*reads, f"{name}w"], [name], pads=[size // 2] * 4, dilations=[1, 1])
        return [conv], {f"{name}w": weight(4, 4, size, size)}
    if kind == "Join":
        nodes = [node("Concat", reads, [f"{name}j"], axis=1), node("Conv", [f"{name}j", f"{name}w"], [name])]
        return nodes, {f"{name}w": weight(4, 8, 1, 1)}
    if kind == "SepConv":
        nodes = [
            node("Relu", reads, [f"{name}r"]),
            node("Conv", [f"{name}r", f"{name}d"], [f"{name}e"], group=4, pads=[1] * 4, dilations=[1, 1]),
            node("Conv", [f"{name}e", f"{name}p"], [name]),
        ]
        return nodes, {f"{name}d": weight(4, 1, 3, 3, seed=1), f"{name}p": weight(4, 4, 1, 1, seed=2)}
    return [node(kind, reads, [name])], {}


@st.composite
def models(draw: st.DrawFn, most: int = 9, kinds: tuple[str, ...] = tuple(KINDS)) -> onnx.ModelProto:
    """A model of up to `most` layers; what nobody reads is returned."""
    nodes: list[onnx.NodeProto] = []
    weights: dict[str, np.ndarray] = {}
    known = ["x"]
    for index in range(draw(st.integers(1, most))):
        kind = draw(st.sampled_from(kinds))
        reads = [draw(st.sampled_from(known)) for _ in range(KINDS[kind])]
        more, constants = _layer(kind, reads, f"n{index}")
        nodes += more
        weights |= constants
        known.append(f"n{index}")
    read = {name for item in nodes for name in item.input}
    return proto_of(nodes, {"x": SHAPE}, [name for name in known[1:] if name not in read], weights)
