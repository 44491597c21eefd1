"""Models of convolutions or products side by side, each with nodes behind it that `load_model` joins into operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper
from small_models import node, proto_of

SIZE = 9  # of the images, along each axis
CHANNELS = 4


@dataclass(frozen=True)
class Conv:
    """A convolution of `source` and the nodes behind it.

    Attributes:
        channels: of the result; by default another number for each convolution.
        behind: operator types; BatchNormalization, Mul and Add work with constants for each channel. "Gate" is
            x * sigmoid(x) in two nodes.
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
    relu: bool = False  # before it, one of its own


def side_by_side(convs: Sequence[Conv], *, opset: int = 17, dtype: str = "float32") -> onnx.ModelProto:
    """Convolution `i` reads x or y and computes the graph output `o{i}`; its own output is `c{i}` if nodes follow."""
    builder = _Builder(np.random.default_rng(0), dtype)
    for index, conv in enumerate(convs):
        builder.add(index, conv)
    shape = (1, CHANNELS, *(SIZE,) * len(convs[0].kernel))
    return builder.model(dict.fromkeys((conv.source for conv in convs), shape), len(convs), opset)


@dataclass(frozen=True)
class Product:
    """A product of x with a matrix of weights.

    Attributes:
        bias: "" for none, "Add" for a node behind it, "C" for an operand of the Gemm.
        behind: types of activations.
    """

    type: str = "MatMul"
    columns: int = 8
    bias: str = ""
    behind: tuple[str, ...] = ()
    attributes: tuple[tuple[str, float], ...] = ()


def products_side_by_side(products: Sequence[Product], shape: Sequence[int], *, opset: int = 17) -> onnx.ModelProto:
    """Product `i` reads x of `shape` and computes the graph output `o{i}`."""
    builder = _Builder(np.random.default_rng(0), "float32")
    for index, product in enumerate(products):
        builder.multiply(index, product, shape[-1])
    return builder.model({"x": tuple(shape)}, len(products), opset)


class _Builder:
    def __init__(self, random: np.random.Generator, dtype: str) -> None:
        self.random, self.dtype = random, dtype
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, np.ndarray] = {}

    def model(self, inputs: Mapping[str, Sequence[int]], n_outputs: int, opset: int) -> onnx.ModelProto:
        outputs = [f"o{index}" for index in range(n_outputs)]
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(self.dtype))
        proto = proto_of(self.nodes, inputs, outputs, self.weights, opset=opset, ir_version=10, dtype=kind)
        return onnx.shape_inference.infer_shapes(proto)

    def multiply(self, index: int, product: Product, rows: int) -> None:
        attributes = dict(product.attributes)
        shape = (product.columns, rows) if attributes.get("transB") else (rows, product.columns)
        inputs = ["x", self.constant(f"w{index}", shape)]
        inputs += [self.constant(f"b{index}", (product.columns,))] if product.bias == "C" else []
        kinds = [product.type, *(["Add"] if product.bias == "Add" else []), *product.behind]
        for place, kind in enumerate(kinds):
            output = f"o{index}" if place == len(kinds) - 1 else f"{kind}{index}.{place}"
            self.nodes.append(node(kind, inputs, [output], **(attributes if place == 0 else {})))
            inputs = [output]
            if place == 0 and product.bias == "Add":
                inputs.append(self.constant(f"b{index}", (product.columns,)))

    def add(self, index: int, conv: Conv) -> None:
        channels = conv.channels or CHANNELS * (index + 1)
        constants = [self.constant(f"w{index}", (channels, CHANNELS // conv.group, *conv.kernel))]
        constants += [self.constant(f"b{index}", (channels,))] if conv.bias else []
        attributes = {"strides": conv.strides, "dilations": conv.dilations, "group": conv.group}
        attributes |= {"auto_pad": conv.auto_pad} if conv.auto_pad != "NOTSET" else {"pads": conv.pads}
        last = f"c{index}" if conv.behind else f"o{index}"
        source = conv.source
        if conv.relu:
            source = f"r{index}"
            self.nodes.append(node("Relu", [conv.source], [source]))
        self.nodes.append(node("Conv", [source, *constants], [last], **attributes))
        for place, kind in enumerate(conv.behind):
            output = f"o{index}" if place == len(conv.behind) - 1 else f"{kind}{index}.{place}"
            self.follow(kind, last, output, channels, len(conv.kernel))
            last = output

    def follow(self, kind: str, source: str, output: str, channels: int, rank: int) -> None:
        names: list[str] = []
        if kind == "Gate":
            self.nodes.append(node("Sigmoid", [source], [f"{output}/sigmoid"]))
            self.nodes.append(node("Mul", [source, f"{output}/sigmoid"], [output]))
            return
        if kind == "BatchNormalization":
            names = [self.constant(f"{output}/{role}", (channels,), role) for role in ("scale", "b", "mean", "var")]
        elif kind in ("Mul", "Add"):
            names = [self.constant(f"{output}/{kind}", (channels, *(1,) * rank))]
        self.nodes.append(node(kind, [source, *names], [output]))

    def constant(self, name: str, shape: tuple[int, ...], role: str = "") -> str:
        values = self.random.standard_normal(shape)
        values = 0.5 + np.abs(values) if role == "var" else values
        self.weights[name] = values.astype(self.dtype)
        return name
