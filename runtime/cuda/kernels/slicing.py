"""Slices with steps, and padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx

from iosched.models.node_attributes import integer, integers, number, text
from iosched.models.wiring import standard_opset
from iosched.runtime.cuda.builder import Builder
from iosched.runtime.cuda.kernel import Argument, CudaCall, Pointer
from iosched.runtime.cuda.source.elements import C_TYPES, FLOATS, loaded, preamble, stored
from iosched.runtime.cuda.source.loops import element_strides, operand, shape_of
from iosched.runtime.cuda.source.pointwise import launch, pointwise_call
from iosched.runtime.plan import View

_INPUTS_SINCE = 10  # Slice
_PAD_INPUTS_SINCE = 11


@dataclass(frozen=True)
class Slice:
    """y[i, j, ...] = x[starts[0] + i * steps[0], starts[1] + j * steps[1], ...].

    Attributes:
        starts, steps: for each axis of x; steps are not 0.
        dropped: axes of x with one index that y does not have.
    """

    starts: tuple[int, ...]
    steps: tuple[int, ...]
    dropped: tuple[int, ...] = ()

    def interpret(self, reads: Sequence[np.ndarray], writes: Sequence[np.ndarray]) -> None:
        """See the class."""
        extents = self._extents(writes[0].shape)
        index = [start + step * np.arange(n) for start, step, n in zip(self.starts, self.steps, extents, strict=True)]
        writes[0][...] = reads[0][np.ix_(*index)].reshape(writes[0].shape)

    def call(self, reads: Sequence[View], writes: Sequence[View]) -> CudaCall:
        """See `SourceKernel.call`."""
        x, y = operand(reads[0]), operand(writes[0])
        start = sum(first * stride for first, stride in zip(self.starts, x.strides, strict=True))
        steps = tuple(step * stride for step, stride in zip(self.steps, x.strides, strict=True))
        kept = tuple(stride for axis, stride in enumerate(steps) if axis not in self.dropped)
        moved = replace(x, start=start, strides=kept)
        return pointwise_call(shape_of(writes[0]), [moved], y, "const auto y = x0;", entry="slice")

    def _extents(self, shape: Sequence[int]) -> list[int]:
        left = list(shape)
        return [1 if axis in self.dropped else left.pop(0) for axis in range(len(self.starts))]


@dataclass(frozen=True)
class Pad:
    """Padding, or cropping where a pad is negative.

    Attributes:
        begins: elements before x along each axis.
        mode: "constant", "edge" or "reflect".
    """

    begins: tuple[int, ...]
    mode: str = "constant"
    value: float = 0.0

    def interpret(self, reads: Sequence[np.ndarray], writes: Sequence[np.ndarray]) -> None:
        """See the class."""
        x, y = reads[0], writes[0]
        places = [np.arange(n) - begin for n, begin in zip(y.shape, self.begins, strict=True)]
        inside = [(at >= 0) & (at < n) for at, n in zip(places, x.shape, strict=True)]
        seen = [self._seen(at, n) for at, n in zip(places, x.shape, strict=True)]
        values = x[np.ix_(*seen)]
        if self.mode == "constant":
            copied = np.ones(y.shape, bool)
            for axis, known in enumerate(inside):
                copied &= known.reshape(-1, *(1,) * (y.ndim - axis - 1))
            values = np.where(copied, values, np.asarray(self.value, x.dtype))
        y[...] = values

    def _seen(self, at: np.ndarray, extent: int) -> np.ndarray:
        if self.mode == "reflect":
            at = np.minimum(np.abs(at), 2 * (extent - 1) - np.abs(at))
        return np.asarray(np.clip(at, 0, extent - 1))

    def call(self, reads: Sequence[View], writes: Sequence[View]) -> CudaCall:
        """See `SourceKernel.call`."""
        shape, target = shape_of(reads[0]), shape_of(writes[0])
        rank, count = len(target), int(np.prod(target, dtype=np.int64))
        order = sorted(range(rank), key=lambda axis: -element_strides(writes[0])[axis])
        arguments: list[Argument] = [Pointer(0), Pointer(1), np.int32(count), np.float32(self.value)]
        for axis in order:
            arguments += [np.int32(target[axis]), np.int32(shape[axis]), np.int32(self.begins[axis])]
            arguments += [np.int64(element_strides(view)[axis]) for view in (reads[0], writes[0])]
        return launch(_pad_source(reads[0].dtype, rank, self.mode), "pad", count, arguments)


def lower(builder: Builder, node: onnx.NodeProto) -> bool:
    """Slice with constant parameters."""
    spec = builder.tensors.get(node.input[0])
    if spec is None or spec.shape is None or spec.dtype not in C_TYPES:
        return False
    indices = _indices(builder, node)
    if indices is None:
        return False
    starts, axes, steps = indices
    firsts, strides = [0] * len(spec.shape), [1] * len(spec.shape)
    for start, axis, step in zip(starts, axes or range(len(starts)), steps or [1] * len(starts), strict=True):
        # ONNX clamps bounds as Python does; the result's shape gives the end.
        firsts[axis] = slice(start, None, step).indices(spec.shape[axis])[0]
        strides[axis] = step
    builder.emit(Slice(tuple(firsts), tuple(strides)), node.input[:1], node.output)
    return True


def lower_gather(builder: Builder, node: onnx.NodeProto) -> bool:
    """Gather of one constant index."""
    spec, index = builder.tensors.get(node.input[0]), builder.constant(node.input[1])
    axis = integer(node, "axis")
    if spec is None or not spec.shape or spec.dtype not in C_TYPES:
        return False
    if index is None or index.ndim > 1 or index.size != 1:
        return False
    axis %= len(spec.shape)
    starts = [0] * len(spec.shape)
    starts[axis] = int(index.reshape(-1)[0]) % spec.shape[axis]
    dropped = (axis,) if index.ndim == 0 else ()
    builder.emit(Slice(tuple(starts), (1,) * len(starts), dropped), node.input[:1], node.output)
    return True


def lower_pad(builder: Builder, node: onnx.NodeProto) -> bool:
    """Pad of floats with constant parameters."""
    spec = builder.tensors.get(node.input[0])
    mode = text(node, "mode", "constant")
    if spec is None or not spec.shape or spec.dtype not in FLOATS:
        return False
    pads, value = _pads_and_value(builder, node)
    if pads is None or value is None or mode not in ("constant", "edge", "reflect"):
        return False
    begins, ends = pads[: len(spec.shape)], pads[len(spec.shape) :]
    too_far = any(max(pair) >= n for *pair, n in zip(begins, ends, spec.shape, strict=True))
    if mode == "reflect" and too_far:
        return False
    builder.emit(Pad(tuple(begins), mode, value), node.input[:1], node.output)
    return True


def _indices(builder: Builder, node: onnx.NodeProto) -> tuple[list[int], list[int], list[int]] | None:
    if standard_opset(builder.model.proto) < _INPUTS_SINCE:
        return list(integers(node, "starts")), list(integers(node, "axes")), []
    if any(name and builder.constant(name) is None for name in node.input[1:]):
        return None
    starts, axes, steps = (_constant(builder, node, position) for position in (1, 3, 4))
    return _integers(starts), _integers(axes), _integers(steps)


def _integers(array: np.ndarray | None) -> list[int]:
    return [] if array is None else [int(item) for item in array]


def _constant(builder: Builder, node: onnx.NodeProto, position: int) -> np.ndarray | None:
    return builder.constant(node.input[position]) if len(node.input) > position and node.input[position] else None


def _pads_and_value(builder: Builder, node: onnx.NodeProto) -> tuple[list[int] | None, float | None]:
    if standard_opset(builder.model.proto) < _PAD_INPUTS_SINCE:
        return list(integers(node, "pads")) or None, number(node, "value")
    pads, value = _constant(builder, node, 1), _constant(builder, node, 2)
    has_value = len(node.input) > 2 and bool(node.input[2])
    if pads is None or (len(node.input) > 3 and node.input[3]):
        return None, None
    if has_value and value is None:
        return None, None
    return _integers(pads), 0.0 if value is None else float(value.reshape(-1)[0])


def _pad_source(dtype: str, rank: int, mode: str) -> str:
    names = ", ".join(f"int n{k}, int m{k}, int b{k}, long long x{k}, long long y{k}" for k in range(rank))
    lines = []
    for k in reversed(range(rank)):
        lines.append(
            f"  {{ int at = rest % (unsigned int)n{k}; rest /= (unsigned int)n{k}; yat += (long long)at * y{k};"
        )
        lines.append(f"    at -= b{k}; {_PAD_MODES[mode].format(extent=f'm{k}')} xat += (long long)at * x{k}; }}")
    return _PAD_SOURCE.format(
        preamble=preamble([dtype]),
        type=C_TYPES[dtype],
        names=names,
        walk="\n".join(lines),
        value=loaded(dtype, "x[xat]"),
        result=stored(dtype, "found"),
    )


_PAD_MODES = {
    "constant": "inside &= at >= 0 && at < {extent};",
    "edge": "at = at < 0 ? 0 : (at >= {extent} ? {extent} - 1 : at);",
    "reflect": "at = at < 0 ? -at : at; at = at >= {extent} ? 2 * ({extent} - 1) - at : at;",
}

_PAD_SOURCE = """{preamble}
extern "C" __global__ void pad(const {type}* __restrict__ x, {type}* __restrict__ y, int count, float value, {names}) {{
  unsigned int rest = blockIdx.x * blockDim.x + threadIdx.x;
  if (rest >= (unsigned int)count) return;
  long long xat = 0, yat = 0;
  bool inside = true;
{walk}
  float found = value;
  if (inside) found = {value};
  y[yat] = {result};
}}
"""
