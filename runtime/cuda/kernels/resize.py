"""Nearest, linear and cubic resizing of images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from iosched.models.node_attributes import integer, names, number, numbers, text
from iosched.models.wiring import standard_opset
from iosched.runtime.cuda.builder import Builder
from iosched.runtime.cuda.kernel import CudaCall, Pointer
from iosched.runtime.cuda.source.elements import C_TYPES, FLOATS, LOAD, STRIDED, loaded, preamble, stored, widened
from iosched.runtime.cuda.source.pointwise import launch
from iosched.runtime.cuda.source.windows import Image, channel_width, indices, planar_width, thread_axes
from iosched.runtime.plan import View

_MODES_SINCE = 11  # in earlier opsets, coordinates are asymmetric and nearest means floor


@dataclass(frozen=True)
class Resize:
    """y[n, c, i, j] = sum over taps a, b of rw[i, a] * cw[j, b] * x[n, c, ri[i, a], ci[j, b]], in float32.

    Reads x (N, C, H, W), then for rows and for columns int32 indices and float32 weights (extent of y, taps).
    """

    taps: int

    def interpret(self, reads: Sequence[np.ndarray], writes: Sequence[np.ndarray]) -> None:
        """See the class."""
        x, rows, row_weights, columns, column_weights = reads
        total = np.zeros(writes[0].shape, np.float32)
        for a, b in np.ndindex(self.taps, self.taps):
            weights = row_weights[:, a, None] * column_weights[:, b]
            total += weights * widened(x[:, :, rows[:, a]][:, :, :, columns[:, b]])
        writes[0][...] = total

    def call(self, reads: Sequence[View], writes: Sequence[View]) -> CudaCall:
        """See `SourceKernel.call`."""
        x, y = Image.of(reads[0]), Image.of(writes[0])
        batch, channels, height, width = y.shape
        pack = planar_width(y.shape) if y.is_planar else channel_width(channels, x, y)
        threads = batch * height * width * (channels // pack)
        source = _SOURCE.format(
            preamble=preamble([reads[0].dtype]),
            type=C_TYPES[reads[0].dtype],
            indices=indices(*thread_axes(y.is_planar, ("pack", "packs"), ("column", "out_w"), ("row", "out_h"))),
            load=LOAD + STRIDED,
            pack=pack,
            side_by_side="false" if y.is_planar else "true",
            taps=self.taps,
            value=loaded(reads[0].dtype, "input.at[v]"),
            result=stored(writes[0].dtype, "total[v]"),
        )
        counts = map(np.int32, (threads, channels // pack, width, height))
        arguments = [*(Pointer(index) for index in range(6)), *counts, *x.steps(1), *y.steps(1)]
        return launch(source, "resize", threads, arguments)


def lower(builder: Builder, node: onnx.NodeProto) -> bool:
    """Resize and Upsample of the last two axes, by constant scales or to constant sizes."""
    x, y = builder.tensors.get(node.input[0]), builder.tensors[node.output[0]]
    if x is None or x.dtype not in FLOATS or len(x.shape or ()) != 4 or _is_rare(node):
        return False
    before, after = builder.shape(x.name), builder.shape(y.name)
    scales = _scales(builder, node, before, after)
    tap = _tap(builder, node)
    if scales is None or tap is None or before[:2] != after[:2]:
        return False
    tables = []
    for axis, role in ((2, "rows"), (3, "columns")):
        places, weights = tap(before[axis], after[axis], scales[axis])
        tables.append(builder.weight(f"{y.name}/{role}", places))
        tables.append(builder.float32_weight(f"{y.name}/{role}/weights", weights))
    builder.emit(Resize(places.shape[1]), (x.name, *tables), node.output)
    return True


def _is_rare(node: onnx.NodeProto) -> bool:
    crops = text(node, "coordinate_transformation_mode") == "tf_crop_and_resize"
    chosen = "axes" in names(node) or text(node, "keep_aspect_ratio_policy", "stretch") != "stretch"
    return crops or chosen or integer(node, "antialias") == 1 or integer(node, "exclude_outside") == 1


def _scales(builder: Builder, node: onnx.NodeProto, before: Sequence[int], after: Sequence[int]) -> list[float] | None:
    if any(name and builder.constant(name) is None for name in node.input[1:]):
        return None
    if scales := numbers(node, "scales"):
        return list(scales)
    position = 2 if node.op_type == "Resize" and standard_opset(builder.model.proto) >= _MODES_SINCE else 1
    named = node.input[position] if len(node.input) > position else ""
    constant = builder.constant(named) if named else None
    if constant is not None and constant.size == len(before):
        return [float(item) for item in constant]
    return [new / old for new, old in zip(after, before, strict=True)]


Tap = Callable[[int, int, float], tuple[np.ndarray, np.ndarray]]


def _tap(builder: Builder, node: onnx.NodeProto) -> Tap | None:
    """A function of (old extent, new extent, scale) that returns source indices and weights."""
    modern = node.op_type == "Resize" and standard_opset(builder.model.proto) >= _MODES_SINCE
    mode = text(node, "mode", "nearest")
    coordinates = text(node, "coordinate_transformation_mode", "half_pixel") if modern else "asymmetric"
    rounding = text(node, "nearest_mode", "round_prefer_floor") if modern else "floor"
    if coordinates not in _COORDINATES:
        return None
    where = _COORDINATES[coordinates]
    if mode == "nearest" and rounding in _ROUNDINGS:
        return lambda old, new, scale: _nearest(where(old, new, scale), old, _ROUNDINGS[rounding])
    if mode in ("linear", "bilinear"):
        return lambda old, new, scale: _linear(where(old, new, scale), old)
    if mode == "cubic":
        slope = number(node, "cubic_coeff_a", -0.75)
        return lambda old, new, scale: _cubic(where(old, new, scale), old, slope)
    return None


def _nearest(x: np.ndarray, extent: int, rounded: Callable[[np.ndarray], np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    places = rounded(x).clip(0, extent - 1).astype(np.int32)[:, None]
    return places, np.ones(places.shape, np.float32)


def _linear(x: np.ndarray, extent: int) -> tuple[np.ndarray, np.ndarray]:
    inside = x.clip(0, extent - 1)
    first = np.floor(inside)
    places = np.stack([first, first + 1], 1).clip(0, extent - 1).astype(np.int32)
    return places, np.stack([1 - (inside - first), inside - first], 1).astype(np.float32)


def _cubic(x: np.ndarray, extent: int, a: float) -> tuple[np.ndarray, np.ndarray]:
    """Keys, "Cubic convolution interpolation for digital image processing" (1981), equation 15 with free `a`."""
    first = np.floor(x)
    t = x - first
    near = [(a + 2) * d**3 - (a + 3) * d**2 + 1 for d in (t, 1 - t)]
    far = [a * d**3 - 5 * a * d**2 + 8 * a * d - 4 * a for d in (t + 1, 2 - t)]
    places = np.stack([first + k for k in (-1, 0, 1, 2)], 1).clip(0, extent - 1).astype(np.int32)
    return places, np.stack([far[0], *near, far[1]], 1).astype(np.float32)


def _half_pixel(old: int, new: int, scale: float) -> np.ndarray:
    del old
    half = np.float32(0.5)
    return np.asarray((np.arange(new, dtype=np.float32) + half) / np.float32(scale) - half)


def _aligned(old: int, new: int, scale: float) -> np.ndarray:
    del scale
    return np.arange(new, dtype=np.float32) * np.float32(old - 1) / np.float32(max(new - 1, 1))


# In float32, as in other runtimes: at a border, another precision may round to another neighbour.
_COORDINATES: dict[str, Callable[[int, int, float], np.ndarray]] = {
    "half_pixel": _half_pixel,
    "pytorch_half_pixel": lambda old, new, scale: _half_pixel(old, new, scale) if new > 1 else np.zeros(1),
    "asymmetric": lambda old, new, scale: np.arange(new, dtype=np.float32) / np.float32(scale),
    "align_corners": _aligned,
}
_ROUNDINGS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}

_SOURCE = """{preamble}{load}
constexpr int V = {pack}, TAPS = {taps};
constexpr bool SIDE_BY_SIDE = {side_by_side};  // channels

extern "C" __global__ void resize(const {type}* __restrict__ x, const int* __restrict__ rows,
                                  const float* __restrict__ row_weights, const int* __restrict__ columns,
                                  const float* __restrict__ column_weights, {type}* __restrict__ y, int count,
                                  int packs, int out_w, int out_h, long long xn, long long xc, long long xh,
                                  long long xw, long long yn, long long yc, long long yh, long long yw) {{
  unsigned int rest = blockIdx.x * blockDim.x + threadIdx.x;
  if (rest >= (unsigned int)count) return;
{indices}
  x += rest * xn + pack * V * xc;
  y += rest * yn + pack * V * yc + row * yh + column * yw;
  float total[V];
#pragma unroll
  for (int v = 0; v < V; ++v) total[v] = 0.0f;
#pragma unroll
  for (int a = 0; a < TAPS; ++a) {{
#pragma unroll
    for (int b = 0; b < TAPS; ++b) {{
      const float factor = row_weights[row * TAPS + a] * column_weights[column * TAPS + b];
      const {type}* at = x + rows[row * TAPS + a] * xh + columns[column * TAPS + b] * xw;
      const auto input = load_apart<V, SIDE_BY_SIDE>(at, xc);
#pragma unroll
      for (int v = 0; v < V; ++v) total[v] = fmaf(factor, {value}, total[v]);
    }}
  }}
  Pack<{type}, V> result;
#pragma unroll
  for (int v = 0; v < V; ++v) result.at[v] = {result};
  store_apart<V, SIDE_BY_SIDE>(y, yc, result);
}}
"""
