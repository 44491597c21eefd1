"""Transformer layers as exporters write them, unfused: separate query, key and value products, biases as Add, GELU as
five nodes, heads by Reshape and Transpose.

Tensors are (batch, length, width) float32; either of the first two may be dynamic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np
import onnx
from onnx import TensorProto, helper

from iosched.models.zoo.network import Network

MASKED = -1e4
"""The addend of a masked word's score."""


@dataclass(frozen=True)
class Sizes:
    """Sizes of a transformer: layers, width, heads, vocabulary (`words`), and `longest` text."""

    layers: int
    width: int
    heads: int
    words: int
    longest: int


@dataclass(frozen=True)
class Text:
    """A transformer under construction, with weights seeded by the network's name."""

    net: Network
    sizes: Sizes

    def embedded(self, ids: str, name: str) -> str:
        """Word embeddings plus position embeddings of (batch, length) int64."""
        net, sizes = self.net, self.sizes
        words = net.normal(f"{name}/words", (sizes.words, sizes.width), 1.0)
        places = net.normal(f"{name}/places", (sizes.longest, sizes.width), 0.5)
        net.append("Gather", [words, ids], f"{name}/word", axis=0)
        net.append("Slice", [places, self._numbers(f"{name}/from", 0), self.length(ids, name)], f"{name}/place")
        net.append("Add", [f"{name}/word", f"{name}/place"], name)
        return name

    def length(self, ids: str, name: str) -> str:
        """The number of words, as a vector of one."""
        self.net.append("Shape", [ids], f"{name}/length", start=1, end=2)
        return f"{name}/length"

    def product(self, x: str, features: int, name: str, *, columns: int = 0) -> str:
        """A linear layer; `columns` is the width of `x` if it is not the model's."""
        net, rows = self.net, columns or self.sizes.width
        matrix = net.normal(f"{name}/weight", (rows, features), sqrt(1 / rows))
        net.append("MatMul", [x, matrix], f"{name}/matmul")
        net.append("Add", [f"{name}/matmul", net.bias(name, features)], name)
        return name

    def normalized(self, x: str, name: str) -> str:
        """Layer normalization."""
        net, width = self.net, self.sizes.width
        scale = net.normal(f"{name}/scale", (width,), 0.1, mean=1.0)
        net.append("LayerNormalization", [x, scale, net.bias(name, width)], name, axis=-1)
        return name

    def added(self, x: str, y: str, name: str) -> str:
        """The sum of two tensors."""
        self.net.append("Add", [x, y], name)
        return name

    def attention(self, x: str, mask: str, name: str) -> str:
        """Multi-head self-attention; `mask` is added to the scores, (batch, heads, length, length)."""
        net, sizes = self.net, self.sizes
        size = sizes.width // sizes.heads
        query, key, value = (self.product(x, sizes.width, f"{name}/{part}") for part in ("query", "key", "value"))
        heads = self._numbers(f"{name}/heads", 0, 0, sizes.heads, size)
        for part, axes in ((query, (0, 2, 1, 3)), (key, (0, 2, 3, 1)), (value, (0, 2, 1, 3))):
            net.append("Reshape", [part, heads], f"{part}/split")
            net.append("Transpose", [f"{part}/split"], f"{part}/heads", perm=axes)
        net.append("MatMul", [f"{query}/heads", f"{key}/heads"], f"{name}/scores")
        root = net.constant(f"{name}/root", np.array(sqrt(size), np.float32))
        net.append("Div", [f"{name}/scores", root], f"{name}/scaled")
        net.append("Add", [f"{name}/scaled", mask], f"{name}/masked")
        net.append("Softmax", [f"{name}/masked"], f"{name}/shares", axis=-1)
        net.append("MatMul", [f"{name}/shares", f"{value}/heads"], f"{name}/mixed")
        net.append("Transpose", [f"{name}/mixed"], f"{name}/by_word", perm=(0, 2, 1, 3))
        width = self._numbers(f"{name}/width", 0, 0, sizes.width)
        net.append("Reshape", [f"{name}/by_word", width], f"{name}/joined")
        return self.product(f"{name}/joined", sizes.width, name)

    def feed_forward(self, x: str, name: str) -> str:
        """Two linear layers with GELU between them, four times as wide inside."""
        width = self.sizes.width
        wide = self.gelu(self.product(x, 4 * width, f"{name}/wide"), f"{name}/gelu")
        return self.product(wide, width, name, columns=4 * width)

    def gelu(self, x: str, name: str) -> str:
        """x/2 (1 + erf(x / sqrt 2)), as exporters write it."""
        net = self.net
        root, one, half = (
            net.constant(f"{name}/{what}", np.array(number, np.float32))
            for what, number in (("root2", sqrt(2)), ("one", 1.0), ("half", 0.5))
        )
        net.append("Div", [x, root], f"{name}/div")
        net.append("Erf", [f"{name}/div"], f"{name}/erf")
        net.append("Add", [f"{name}/erf", one], f"{name}/add")
        net.append("Mul", [x, f"{name}/add"], f"{name}/mul")
        net.append("Mul", [f"{name}/mul", half], name)
        return name

    def finish(
        self, inputs: Sequence[str], output: str, features: int, batch: int | str, length: int | str
    ) -> onnx.ModelProto:
        """The ONNX model with inputs (batch, length) int64, and one output with `features`."""
        net = self.net
        net.model.graph.input.extend(
            helper.make_tensor_value_info(name, TensorProto.INT64, (batch, length)) for name in inputs
        )
        return net.complete(helper.make_tensor_value_info(output, TensorProto.FLOAT, (batch, length, features)))

    def _numbers(self, name: str, *numbers: int) -> str:
        return self.net.constant(name, np.array(numbers, np.int64))
