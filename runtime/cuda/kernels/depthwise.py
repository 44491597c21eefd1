"""Depthwise convolution with an optional leading ReLU, bias and activation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from iosched.runtime.cuda.kernel import CudaCall, Pointer
from iosched.runtime.cuda.source.activation import IDENTITY, Activation
from iosched.runtime.cuda.source.elements import C_TYPES, loaded, summed, widened
from iosched.runtime.cuda.source.pointwise import launch
from iosched.runtime.cuda.source.windows import Image, Window, WindowLoop, as_images, tap
from iosched.runtime.plan import View


@dataclass(frozen=True)
class Depthwise:
    """y = activation(depthwise(relu?(x), weight) + bias?) of one or two dimensions.

    Channel c of y reads channel c // multiplier of x. Reads `terms` images (N, C, H, W), whose sum is x, the weight of
    `depthwise_weight`, and an optional float32 bias (C * multiplier,); float32 or float16 with float32 sums. See
    `WindowLoop`.

    Attributes:
        window: its pads are not negative.
        relu: whether x passes a ReLU.
    """

    window: Window
    relu: bool = False
    activation: Activation = IDENTITY
    terms: int = 1

    def interpret(self, reads: Sequence[np.ndarray], writes: Sequence[np.ndarray]) -> None:
        """See the class."""
        window, y, (first, *rest) = self.window.as_2d, as_images(writes[0]), reads[self.terms :]
        x, weight = as_images(summed(reads[: self.terms])), widened(first).reshape(*window.kernel, -1)
        top, left, bottom, right = window.pads
        padded = np.pad(np.maximum(x, 0) if self.relu else x, ((0, 0), (0, 0), (top, bottom), (left, right)))
        padded = padded.repeat(y.shape[1] // x.shape[1], 1)
        total = np.zeros(y.shape, np.float32)
        if rest:
            total += rest[0].reshape(1, -1, 1, 1)
        for at in np.ndindex(*window.kernel):
            total += weight[at].reshape(1, -1, 1, 1) * tap(padded, window, at, y.shape)
        y[...] = self.activation(total)

    def call(self, reads: Sequence[View], writes: Sequence[View]) -> CudaCall:
        """See `SourceKernel.call`."""
        x, *others = map(Image.of, reads[: self.terms])
        loop = WindowLoop.of(self.window.as_2d, x, Image.of(writes[0]), others)
        pointers = [Pointer(index) for index in range(len(reads) + 1)]
        source = self._source(reads[0].dtype, loop, has_bias=len(reads) > self.terms + 1)
        return launch(source, "depthwise", loop.threads, [*pointers, *loop.arguments])

    def _source(self, dtype: str, loop: WindowLoop, *, has_bias: bool) -> str:
        # The weight is not transposed.
        tap = "kx * KH + ky" if loop.planar else "ky * KW + kx"
        bias = "const float* __restrict__ bias, " if has_bias else ""
        return loop.source(
            "depthwise",
            dtype,
            images=self.terms,
            relu=self.relu,
            constants=f"const {C_TYPES[dtype]}* __restrict__ weight, {bias}",
            first="  weight += pack * V;" + (" const auto first = load<V>(bias + pack * V);" if has_bias else ""),
            start="first.at[v]" if has_bias else "0.0f",
            outside="0.0f",
            before=f"const auto factor = load<V>(weight + ({tap}) * (packs * V));",
            joined=f"fmaf(seen, {loaded(dtype, 'factor.at[v]')}, sum[t][v])",
            activation=self.activation,
        )


def depthwise_weight(weight: np.ndarray) -> np.ndarray:
    """The ONNX weight (C, 1, *kernel) of a depthwise convolution as (*kernel, C)."""
    return np.ascontiguousarray(np.moveaxis(weight[:, 0], 0, -1))
