"""Average and maximum pooling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from iosched.models.node_attributes import integer, integers
from iosched.runtime.cuda.builder import Builder
from iosched.runtime.cuda.kernel import CudaCall, Pointer
from iosched.runtime.cuda.source.activation import IDENTITY, Activation
from iosched.runtime.cuda.source.elements import FLOATS, loaded, summed, widened
from iosched.runtime.cuda.source.pointwise import launch
from iosched.runtime.cuda.source.windows import Image, Window, WindowLoop, as_images, tap, window_of
from iosched.runtime.plan import View


@dataclass(frozen=True)
class Pool:
    """y = activation(average or maximum of each window of x + terms), of one or two dimensions.

    Reads `pooled` images, whose sum is x, then terms of y's shape or (1, C, 1, 1); float32 or float16 with float32
    sums. See `WindowLoop`. Windows may reach beyond the padding, as ceil_mode allows.

    Attributes:
        average: average instead of maximum.
        counts_pads: whether the average counts padding, as zeros.
    """

    window: Window
    average: bool
    counts_pads: bool = False
    pooled: int = 1
    activation: Activation = IDENTITY

    def interpret(self, reads: Sequence[np.ndarray], writes: Sequence[np.ndarray]) -> None:
        """See the class."""
        x, y, window = as_images(summed(reads[: self.pooled])), as_images(writes[0]), self.window.as_2d
        values = _padded(x, window, y.shape, 0.0 if self.average else -np.inf)
        taps = [tap(values, window, at, y.shape) for at in np.ndindex(*window.kernel)]
        result = sum(taps) / self._counts(x.shape, y.shape) if self.average else np.maximum.reduce(taps)
        y[...] = self.activation(sum((as_images(widened(term)) for term in reads[self.pooled :]), result))

    def _counts(self, shape: Sequence[int], output: Sequence[int]) -> np.ndarray:
        window = self.window.as_2d
        inside = np.ones((1, 1, *shape[2:]), np.float32)
        if self.counts_pads:
            top, left, bottom, right = window.pads
            inside = np.pad(inside, ((0, 0), (0, 0), (top, bottom), (left, right)), constant_values=1)
            window = Window(window.kernel, window.strides, (0, 0, 0, 0), window.dilations)
        seen = _padded(inside, window, output, 0.0)
        return np.asarray(sum(tap(seen, window, at, output) for at in np.ndindex(*window.kernel)))

    def call(self, reads: Sequence[View], writes: Sequence[View]) -> CudaCall:
        """See `SourceKernel.call`."""
        (x, *others), y = map(Image.of, reads), Image.of(writes[0])
        seen = [other if k < self.pooled else other.over(y.shape) for k, other in enumerate(others, 1)]
        loop = WindowLoop.of(self.window.as_2d, x, y, seen)
        arguments = [*map(Pointer, range(len(reads) + 1)), *loop.arguments]
        return launch(self._source(reads[0].dtype, loop), "pool", loop.threads, arguments)

    def _source(self, dtype: str, loop: WindowLoop) -> str:
        start = "0.0f" if self.average else "__int_as_float(0xff800000)"
        result = "sum[t][v] / (float)(counted_rows * counted_columns)" if self.average else "sum[t][v]"
        terms = {f"x{k}": other.operand.dtype for k, other in enumerate(loop.others, 1) if k >= self.pooled}
        counted = [self._counted(loop)] if self.average else []
        return loop.source(
            "pool",
            dtype,
            images=self.pooled,
            start=start,
            outside=start,
            joined="sum[t][v] + seen" if self.average else "fmaxf(sum[t][v], seen)",
            last="\n".join(
                [*counted, *(f"    const auto {x}_at = load<V>({x} + row * {x}h + column * {x}w);" for x in terms)]
            ),
            total=" + ".join([result, *(loaded(kind, f"{x}_at.at[v]") for x, kind in terms.items())]),
            activation=self.activation,
        )

    def _counted(self, loop: WindowLoop) -> str:
        rows, columns = ("-PT", "in_h + PB"), ("-PL", "in_w + PR")
        if not self.counts_pads:
            rows, columns = ("0", "in_h"), ("0", "in_w")
        return _COUNTED.format(unroll=loop.unroll, rows=rows, columns=columns)


def _padded(x: np.ndarray, window: Window, output: Sequence[int], value: float) -> np.ndarray:
    needed = [
        (extent - 1) * stride + (kernel - 1) * dilation + 1
        for extent, stride, kernel, dilation in zip(
            output[2:], window.strides, window.kernel, window.dilations, strict=True
        )
    ]
    ends = [max(need - pad - extent, 0) for need, pad, extent in zip(needed, window.pads[:2], x.shape[2:], strict=True)]
    widths = ((0, 0), (0, 0), (window.pads[0], ends[0]), (window.pads[1], ends[1]))
    return np.pad(x, widths, constant_values=value)


def lower(builder: Builder, node: onnx.NodeProto) -> bool:
    """AveragePool, and MaxPool without indices."""
    spec = builder.tensors.get(node.input[0])
    kernel = integers(node, "kernel_shape")
    has_indices = len(node.output) > 1 and bool(node.output[1])
    if spec is None or spec.shape is None or spec.dtype not in FLOATS or has_indices:
        return False
    window = window_of(node, spec.shape, kernel)
    if window is None:
        return False
    average = node.op_type == "AveragePool"
    counts_pads = average and integer(node, "count_include_pad") == 1
    builder.emit(Pool(window, average, counts_pads), node.input[:1], node.output[:1])
    return True


_COUNTED = """    int counted_rows = 0, counted_columns = 0;
{unroll}
    for (int ky = 0; ky < KH; ++ky) {{
      const int h = top + ky * DH;
      counted_rows += h >= {rows[0]} && h < {rows[1]} ? 1 : 0;
    }}
{unroll}
    for (int kx = 0; kx < KW; ++kx) {{
      const int w = left + t * SW + kx * DW;
      counted_columns += w >= {columns[0]} && w < {columns[1]} ? 1 : 0;
    }}"""
