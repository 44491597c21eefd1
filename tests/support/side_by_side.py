"""Models of convolutions side by side, each with what follows it, from which `load_model` makes the operators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SIZE = 9  # of the images, along each axis
CHANNELS = 4


@dataclass(frozen=True)
class Conv:
    """A convolution of `source` and the nodes behind it.

    Attributes:
        channels: of the result; by default another number for each convolution.
        behind: operator types; BatchNormalization, Mul and Add work with constants for each channel.
    """

    kernel: tuple[int, ...] = (3, 3)
    pads: tuple[int, ...] = (1, 1, 1, 1)
    strides: tuple[int, ...] = (1, 1)
    dilations: tuple[int, ...] = (1, 1)
    group: int = 1
    channels: int | None = None
    bias: bool = True
    behind: tuple[str, ...] = ()
    source: str = "x"
    auto_pad: str = "NOTSET"


def side_by_side(convs: Sequence[Conv], *, opset: int = 17, dtype: str = "float32") -> onnx.ModelProto:
    """Convolution `i` reads x or y and computes the graph output `o{i}`; its own output is `c{i}` if nodes follow."""
    builder = _Builder(np.random.default_rng(0), dtype)
    for index, conv in enumerate(convs):
        builder.add(index, conv)
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    sources = dict.fromkeys(conv.source for conv in convs)
    graph = helper.make_graph(
        builder.nodes,
        "side_by_side",
        [helper.make_tensor_value_info(name, kind, _input_shape(convs[0])) for name in sources],
        [helper.make_tensor_value_info(f"o{index}", kind, None) for index in range(len(convs))],
        builder.weights,
    )
    model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", opset)])
    return onnx.shape_inference.infer_shapes(model)


def _input_shape(conv: Conv) -> tuple[int, ...]:
    return (1, CHANNELS, *(SIZE,) * len(conv.kernel))


class _Builder:
    def __init__(self, random: np.random.Generator, dtype: str) -> None:
        self.random, self.dtype = random, dtype
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[TensorProto] = []

    def add(self, index: int, conv: Conv) -> None:
        channels = conv.channels or CHANNELS * (index + 1)
        constants = [self.constant(f"w{index}", (channels, CHANNELS // conv.group, *conv.kernel))]
        constants += [self.constant(f"b{index}", (channels,))] if conv.bias else []
        attributes = {"strides": conv.strides, "dilations": conv.dilations, "group": conv.group}
        attributes |= {"auto_pad": conv.auto_pad} if conv.auto_pad != "NOTSET" else {"pads": conv.pads}
        last = f"c{index}" if conv.behind else f"o{index}"
        self.nodes.append(helper.make_node("Conv", [conv.source, *constants], [last], **attributes))
        for place, kind in enumerate(conv.behind):
            output = f"o{index}" if place == len(conv.behind) - 1 else f"{kind}{index}.{place}"
            self.follow(kind, last, output, channels, len(conv.kernel))
            last = output

    def follow(self, kind: str, source: str, output: str, channels: int, rank: int) -> None:
        names: list[str] = []
        if kind == "BatchNormalization":
            names = [self.constant(f"{output}/{role}", (channels,), role) for role in ("scale", "b", "mean", "var")]
        elif kind in ("Mul", "Add"):
            names = [self.constant(f"{output}/{kind}", (channels, *(1,) * rank))]
        self.nodes.append(helper.make_node(kind, [source, *names], [output]))

    def constant(self, name: str, shape: tuple[int, ...], role: str = "") -> str:
        values = self.random.standard_normal(shape)
        values = 0.5 + np.abs(values) if role == "var" else values
        self.weights.append(numpy_helper.from_array(values.astype(self.dtype), name))
        return name
