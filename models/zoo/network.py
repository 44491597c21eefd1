"""Writes ONNX networks layer by layer, with seeded weights that keep activations near variance one.

Developer notes:
    * A convolution's weights have variance 1 / (fan_in * E[x^2]), with E[x^2] tracked through activations, sums and
      concatenations; after a Relu this is He's 2 / fan_in, and after sums of many values it stays finite.
    * Layers are named by their output tensors, to keep schedules readable.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod, sqrt

import numpy as np
import onnx
from onnx import TensorProto, helper

OPSET = 17
IR_VERSION = 10
Pair = int | tuple[int, int]


@dataclass(frozen=True)
class Value:
    """A tensor of shape (1, *shape), and the expected mean square of its elements."""

    name: str
    shape: tuple[int, ...]
    mean_square: float

    @property
    def channels(self) -> int:
        """Size of the channel axis."""
        return self.shape[0]


@dataclass
class Network:
    """A network under construction; each method appends one layer and returns its output.

    Sizes are (C, H, W) at batch 1; kernels, strides and paddings are one number or (height, width).

    Attributes:
        name: of the graph, and the seed of its weights.
        blank: keeps weights zero, which is faster if only layers matter.
        model: layers and weights so far.
    """

    name: str
    blank: bool = False
    model: onnx.ModelProto = field(default_factory=onnx.ModelProto)

    def __post_init__(self) -> None:
        # crc32 and not hash(): the same weights in every process.
        self._random = np.random.default_rng(zlib.crc32(self.name.encode()))

    def input(self, channels: int, size: int) -> Value:
        """The image, (1, channels, size, size) float32."""
        shape = (channels, size, size)
        self.model.graph.input.append(helper.make_tensor_value_info("input", TensorProto.FLOAT, (1, *shape)))
        return Value("input", shape, 1.0)

    def conv(
        self,
        x: Value,
        channels: int,
        kernel: Pair,
        name: str,
        *,
        stride: Pair = 1,
        padding: Pair = 0,
        dilation: int = 1,
        groups: int = 1,
        relu: bool = True,
    ) -> Value:
        """Convolution with bias, by default followed by Relu."""
        kernel, stride, padding = _pair(kernel), _pair(stride), _pair(padding)
        weight_shape = (channels, x.channels // groups, *kernel)
        scale = 1 / sqrt(prod(weight_shape[1:]) * x.mean_square)
        reach = [dilation * (length - 1) + 1 for length in kernel]
        size = _sizes(x.shape[1:], reach, stride, padding)
        inner = f"{name}/conv" if relu else name
        self.append(
            "Conv", [x.name, self.normal(f"{name}/weight", weight_shape, scale), self.bias(name, channels)], inner,
            kernel_shape=kernel, strides=stride, pads=padding * 2, dilations=_pair(dilation), group=groups,
        )  # fmt: skip
        value = Value(inner, (channels, *size), 1.0)
        return self.relu(value, name) if relu else value

    def relu(self, x: Value, name: str) -> Value:
        """Rectified linear unit; half of a centred value's mean square remains."""
        self.append("Relu", [x.name], name)
        return Value(name, x.shape, x.mean_square / 2)

    def batch_norm(self, x: Value, name: str) -> Value:
        """Batch normalization (inference) that does not follow a convolution."""
        scale = self.normal(f"{name}/scale", (x.channels,), 0.1, mean=1.0)
        mean = self.normal(f"{name}/mean", (x.channels,), 0.05)
        variance = self.constant(f"{name}/variance", np.full(x.channels, x.mean_square, np.float32))
        self.append("BatchNormalization", [x.name, scale, self.bias(name, x.channels), mean, variance], name)
        return Value(name, x.shape, 1.0)

    def max_pool(
        self, x: Value, kernel: int, name: str, *, stride: int = 1, padding: int = 0, ceil: bool = False
    ) -> Value:
        """Max pooling; `ceil` rounds the output size up."""
        return self._pool("MaxPool", x, kernel, name, stride, padding, ceil_mode=int(ceil))

    def average_pool(self, x: Value, kernel: int, name: str, *, stride: int = 1, padding: int = 0) -> Value:
        """Average pooling that counts the padding."""
        return self._pool("AveragePool", x, kernel, name, stride, padding, count_include_pad=1)

    def global_average_pool(self, x: Value, name: str) -> Value:
        """Mean of each channel, (C, 1, 1)."""
        self.append("GlobalAveragePool", [x.name], name)
        return Value(name, (x.channels, 1, 1), x.mean_square)

    def concat(self, values: Sequence[Value], name: str) -> Value:
        """Concatenation along channels."""
        channels = sum(value.channels for value in values)
        square = sum(value.channels * value.mean_square for value in values) / channels
        self.append("Concat", [value.name for value in values], name, axis=1)
        return Value(name, (channels, *values[0].shape[1:]), square)

    def identity(self, x: Value, name: str) -> Value:
        """The value through a separate operator, a Concat of one."""
        return self.concat([x], name)

    def sum(self, values: Sequence[Value], name: str) -> Value:
        """The sum of values, by a chain of Add; one value is returned as it is."""
        total = values[0]
        for index, value in enumerate(values[1:], start=1):
            step = name if index == len(values) - 1 else f"{name}/{index}"
            self.append("Add", [total.name, value.name], step)
            total = Value(step, total.shape, total.mean_square + value.mean_square)
        return total

    def relu_conv(self, x: Value, channels: int, name: str, *, stride: int = 1) -> Value:
        """Relu, then a 1x1 convolution."""
        return self.conv(self.relu(x, f"{name}/relu"), channels, 1, name, stride=stride, relu=False)

    def relu_sep_conv(self, x: Value, channels: int, kernel: int, name: str, *, stride: int = 1) -> Value:
        """Relu, then a depthwise and a pointwise convolution."""
        x = self.relu(x, f"{name}/relu")
        x = self.conv(
            x, x.channels, kernel, f"{name}/depthwise",
            stride=stride, padding=kernel // 2, groups=x.channels, relu=False,
        )  # fmt: skip
        return self.conv(x, channels, 1, name, relu=False)

    def excited(self, x: Value, channels: int, name: str) -> Value:
        """Squeeze and excitation: every channel times a factor in 0..1 from all channels' means."""
        squeezed = self.conv(self.global_average_pool(x, f"{name}/squeeze"), channels, 1, f"{name}/reduce")
        grown = self.conv(squeezed, x.channels, 1, f"{name}/expand", relu=False)
        self.append("Sigmoid", [grown.name], f"{name}/gate")
        self.append("Mul", [x.name, f"{name}/gate"], name)
        return Value(name, x.shape, x.mean_square / 4)

    def flatten(self, x: Value, name: str) -> Value:
        """The value as one row."""
        self.append("Flatten", [x.name], name, axis=1)
        return Value(name, (prod(x.shape),), x.mean_square)

    def linear(self, x: Value, features: int, name: str, *, relu: bool = False) -> Value:
        """Fully connected layer, (features,)."""
        scale = 1 / sqrt(x.channels * x.mean_square)
        weight = self.normal(f"{name}/weight", (features, x.channels), scale)
        inner = f"{name}/gemm" if relu else name
        self.append("Gemm", [x.name, weight, self.bias(name, features)], inner, transB=1)
        value = Value(inner, (features,), 1.0)
        return self.relu(value, name) if relu else value

    def finish(self, output: Value) -> onnx.ModelProto:
        """The network as an ONNX model with one output."""
        return self.complete(helper.make_tensor_value_info(output.name, TensorProto.FLOAT, (1, *output.shape)))

    def complete(self, *outputs: onnx.ValueInfoProto) -> onnx.ModelProto:
        """The network as an ONNX model with these outputs."""
        self.model.graph.name = self.name
        self.model.graph.output.extend(outputs)
        self.model.ir_version = IR_VERSION
        self.model.opset_import.append(helper.make_opsetid("", OPSET))
        self.model.producer_name = "iosched"
        return self.model

    def _pool(self, op: str, x: Value, kernel: int, name: str, stride: int, padding: int, **attributes: int) -> Value:
        window, step, pad = _pair(kernel), _pair(stride), _pair(padding)
        size = _sizes(x.shape[1:], window, step, pad, round_up=bool(attributes.get("ceil_mode")))
        self.append(op, [x.name], name, kernel_shape=window, strides=step, pads=pad * 2, **attributes)
        return Value(name, (x.channels, *size), x.mean_square)

    def append(self, op: str, inputs: Sequence[str], output: str, **attributes: int | tuple[int, ...]) -> None:
        """Append a node of any type, named by its output."""
        node = helper.make_node(op, inputs, [output], name=output)
        node.attribute.extend(helper.make_attribute(key, value) for key, value in attributes.items())
        self.model.graph.node.append(node)

    def bias(self, name: str, channels: int) -> str:
        """A small random number for each channel."""
        return self.normal(f"{name}/bias", (channels,), 0.05)

    def normal(self, name: str, shape: tuple[int, ...], scale: float, mean: float = 0.0) -> str:
        """Normally distributed weights with standard deviation `scale`."""
        if self.blank:
            return self.constant(name, np.zeros(shape, np.float32))
        array = self._random.standard_normal(shape, dtype=np.float32)
        array *= np.float32(scale)
        array += np.float32(mean)
        return self.constant(name, array)

    def constant(self, name: str, array: np.ndarray) -> str:
        """Add weights with these values."""
        tensor = self.model.graph.initializer.add(name=name, dims=array.shape)
        tensor.data_type = helper.np_dtype_to_tensor_dtype(array.dtype)
        tensor.raw_data = array.tobytes()
        return name


def _pair(value: Pair) -> tuple[int, int]:
    return value if isinstance(value, tuple) else (value, value)


def _sizes(
    size: Sequence[int], kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int], round_up: bool = False
) -> tuple[int, ...]:
    free = [n + 2 * p - k for n, k, p in zip(size, kernel, padding, strict=True)]
    return tuple((-(-n // s) if round_up else n // s) + 1 for n, s in zip(free, stride, strict=True))
