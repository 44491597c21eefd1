"""Lowers matrix products with their epilogues: dense layers for constant factors, else batched products."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
import onnx

from iosched.models.node_attributes import integer, number
from iosched.runtime.cuda.builder import Builder
from iosched.runtime.cuda.cudnn.cudnn_graph import (
    Epilogue,
    StridedShape,
    add_tensor,
    convolve,
    vector_shape,
    write_tensor,
)
from iosched.runtime.cuda.kernel import Precision
from iosched.runtime.cuda.kernels.add import AddN
from iosched.runtime.cuda.kernels.batched_matmul import BatchedMatMul
from iosched.runtime.cuda.kernels.copy import Copy
from iosched.runtime.cuda.kernels.dense_row import DenseRow
from iosched.runtime.cuda.kernels.elementwise import activation_of
from iosched.runtime.cuda.source.activation import IDENTITY, RELU, Activation
from iosched.runtime.cuda.source.elements import widened
from iosched.runtime.cuda.source.loops import element_strides, shape_of
from iosched.runtime.plan import View

_AMPERE = 80


def lower(builder: Builder, node: onnx.NodeProto) -> bool:
    """Gemm and MatMul."""
    return lower_product(builder, [node])


def lower_product(builder: Builder, nodes: Sequence[onnx.NodeProto]) -> bool:
    """Emits the calls of a Gemm or MatMul, then an optional bias and activation.

    Returns:
        False, with nothing emitted, for batches with a bias, scaled computed factors, biases that differ between rows,
        or operands that are not floats.
    """
    found = _followed_by(builder, nodes)
    if found is None or not builder.is_float(found.y):
        return False
    if found.weight is None and len(builder.shape(found.b)) != 2:
        return _emit_batches(builder, found)
    return _emit_dense(builder, found)


def lower_stacked(builder: Builder, operators: Sequence[Sequence[onnx.NodeProto]], y: str) -> list[str] | None:
    """Emits several products of one factor with constant matrices as one product with all their columns.

    Args:
        operators: the nodes of each.
        y: name of the result.

    Returns:
        The temporary with the result, and the results of the parts; None, with nothing emitted, if impossible.
    """
    parts = [_followed_by(builder, nodes) for nodes in operators]
    found = [part for part in parts if part is not None and part.weight is not None and part.added is None]
    if len(found) < len(parts) or not all(builder.is_float(part.y) for part in found):
        return None
    weight = np.concatenate([part.weight for part in found if part.weight is not None])
    bias = None
    if any(part.bias is not None for part in found):
        widths = [builder.shape(part.y)[-1] for part in found]
        rows = [part.bias for part in found]
        bias = np.concatenate([np.zeros(n) if row is None else row for n, row in zip(widths, rows, strict=True)])
    target = builder.temporary(y, (*builder.shape(found[0].y)[:-1], len(weight)))
    if not _emit_dense(builder, replace(found[0], y=target, weight=weight, bias=bias)):
        return None
    return [target, *(part.y for part in found)]


@dataclass(frozen=True, eq=False)
class _Product:
    """activation(a' @ b' + bias?), where a' and b' are a and b, or their transposes.

    Attributes:
        weight: constant b as (N, K), transposed and scaled; None if computed.
        bias: (N,), if any.
        added: a computed tensor of the result's shape that is added before the activation.
    """

    a: str
    b: str
    y: str
    weight: np.ndarray | None
    transposes_a: bool = False
    transposes_b: bool = False
    bias: np.ndarray | None = None
    added: str | None = None
    activation: Activation = IDENTITY


def _followed_by(builder: Builder, nodes: Sequence[onnx.NodeProto]) -> _Product | None:
    found = _product(builder, nodes[0])
    for node in nodes[1:]:
        found = None if found is None else _followed(builder, found, node)
    return found


def _product(builder: Builder, node: onnx.NodeProto) -> _Product | None:
    return _gemm(builder, node) if node.op_type == "Gemm" else _matmul(builder, node)


def _matmul(builder: Builder, node: onnx.NodeProto) -> _Product | None:
    a, b = node.input[:2]
    constant = builder.constant(b)
    extra = builder.shape(b)[:-2]
    is_one = prod(extra) == 1 and len(extra) <= max(len(builder.shape(a)) - 2, 0)
    if constant is None or constant.ndim < 2 or not is_one:
        return _Product(a, b, node.output[0], None)
    return _Product(a, b, node.output[0], constant.reshape(constant.shape[-2:]).T)


def _gemm(builder: Builder, node: onnx.NodeProto) -> _Product | None:
    a, b, *others = node.input
    alpha, beta = number(node, "alpha", 1.0), number(node, "beta", 1.0)
    transposes_b = bool(integer(node, "transB"))
    constant = builder.constant(b)
    if constant is None and alpha != 1:
        return None
    weight = None if constant is None else alpha * (constant if transposes_b else constant.T)
    found = _Product(a, b, node.output[0], weight, bool(integer(node, "transA")), transposes_b)
    return _plus(builder, found, others[0], beta) if others and others[0] and beta else found


def _followed(builder: Builder, known: _Product, node: onnx.NodeProto) -> _Product | None:
    if node.op_type == "Add":
        other = next(name for name in node.input if name != known.y)
        found = _plus(builder, known, other, 1.0)
    else:
        activation = activation_of(builder, node)
        found = None if activation is None else replace(known, activation=activation)
    return None if found is None else replace(found, y=node.output[0])


def _plus(builder: Builder, known: _Product, name: str, factor: float) -> _Product | None:
    shape, size = builder.shape(name), builder.shape(known.y)
    if known.added is not None or not known.activation.is_identity or len(shape) > len(size):
        return None
    constant = builder.constant(name)
    if constant is None:
        is_alike = shape == size and factor == 1 and builder.is_float(name)
        return replace(known, added=name) if is_alike else None
    if prod(shape[:-1]) != 1:
        return None
    values = factor * np.broadcast_to(constant.reshape(-1).astype(np.float64), size[-1:])
    return replace(known, bias=values if known.bias is None else known.bias + values)


def _emit_dense(builder: Builder, found: _Product) -> bool:
    shape = builder.shape(found.y)
    if not _is_operand(builder, found.a) or (found.weight is None and not _is_operand(builder, found.b)):
        return False
    x = _rows(builder, found)
    is_row = builder.precision.name == "fp32" and prod(shape[:-1]) == 1
    is_fused = found.added is None and (is_row or found.activation in (IDENTITY, RELU))
    activation = found.activation if is_fused else IDENTITY
    reads = [x, _factor(builder, found)]
    has_bias = found.bias is not None or not (is_row or activation.is_identity)
    if has_bias:
        bias = np.zeros(shape[-1]) if found.bias is None else found.bias
        reads.append(builder.weight(f"{found.y}/bias", bias))
    flat = shape if len(shape) <= MAX_AXES else (prod(shape[:-1]), shape[-1])
    written = found.y if is_fused and flat == shape else builder.temporary(f"{found.y}/product", flat)
    kernel = DenseRow(has_bias, activation) if is_row else Dense(has_bias, activation, builder.precision)
    builder.emit(kernel, reads, (written,))
    _finish(builder, found, written, is_fused)
    return True


def _emit_batches(builder: Builder, found: _Product) -> bool:
    if found.bias is not None or not all(_is_operand(builder, name) for name in (found.a, found.b)):
        return False
    if _is_for_cudnn(builder, found):
        _emit_by_cudnn(builder, found)
        return True
    reads = [_in_rows(builder, name, f"{found.y}/{role}") for name, role in ((found.a, "a"), (found.b, "b"))]
    is_fused = found.added is None
    written = found.y if is_fused else builder.temporary(f"{found.y}/product", builder.shape(found.y))
    kernel = BatchedMatMul(found.activation if is_fused else IDENTITY, builder.gpu.processors)
    builder.emit(kernel, reads, (written,))
    _finish(builder, found, written, is_fused)
    return True


def _is_for_cudnn(builder: Builder, found: _Product) -> bool:
    """cuDNN has no engine for strict float32, vectors, mutually broadcast batches, or odd row lengths."""
    a, b, shape = builder.shape(found.a), builder.shape(found.b), builder.shape(found.y)
    batches = {prod(each[:-2]) for each in (a, b)}
    is_broadcast = (len(batches) > 1 and min(batches) > 1) or prod(shape[:-2]) not in batches
    is_even = all(each[-1] % _row_multiple(builder) == 0 for each in (a, b))
    return builder.precision.name != "fp32" and min(len(a), len(b)) >= 2 and not is_broadcast and is_even


def _row_multiple(builder: Builder) -> int:
    """Row lengths must be multiples of this for cuDNN's batched products.

    Found by building plans with cuDNN 9.10 and 9.19; see benchmarks/reports/cudnn-coverage.md.
    """
    if builder.precision.dtype != "float16" or builder.gpu.capability > _AMPERE:
        return 1
    return 2 if builder.gpu.capability == _AMPERE else 8


def _emit_by_cudnn(builder: Builder, found: _Product) -> None:
    shape = builder.shape(found.y)
    reads = [_as_batch(builder, name, f"{found.y}/{role}") for name, role in ((found.a, "a"), (found.b, "b"))]
    is_fused = found.added is None and found.activation.is_identity
    flat = shape if len(shape) <= MAX_AXES else (prod(shape[:-2]), *shape[-2:])
    written = found.y if is_fused and flat == shape else builder.temporary(f"{found.y}/product", flat)
    builder.emit(MatMul(builder.precision), reads, (written,))
    _finish(builder, found, written, is_fused)


def _finish(builder: Builder, found: _Product, written: str, is_fused: bool) -> None:
    shape = builder.shape(found.y)
    if builder.shape(written) != shape:
        shaped = found.y if is_fused else builder.temporary(f"{found.y}/shaped", shape)
        builder.emit(Copy(reshapes=True), (written,), (shaped,))
        written = shaped
    if not is_fused:
        terms = (written,) if found.added is None else (written, found.added)
        builder.emit(AddN(found.activation), terms, (found.y,))


def _is_operand(builder: Builder, name: str) -> bool:
    constant = builder.constant(name)
    return builder.is_float(name) if constant is None else constant.dtype == np.float32


def _stored(builder: Builder, name: str) -> str:
    return name if name in builder.tensors else builder.stored_weight(name)


def _rows(builder: Builder, found: _Product) -> str:
    name, shape = _stored(builder, found.a), builder.shape(found.a)
    if found.transposes_a:
        transposed = builder.temporary(f"{found.y}/a", shape[::-1])
        builder.emit(Copy(permutation=(1, 0)), (name,), (transposed,))
        return transposed
    if len(shape) <= MAX_AXES:
        return name
    flat = builder.temporary(f"{found.y}/a", (prod(shape[:-1]), shape[-1]))
    builder.emit(Copy(reshapes=True), (name,), (flat,))
    return flat


def _factor(builder: Builder, found: _Product) -> str:
    if found.weight is not None:
        return builder.weight(f"{found.y}/weight", found.weight)
    if found.transposes_b:
        return found.b
    transposed = builder.temporary(f"{found.y}/b", builder.shape(found.b)[::-1])
    builder.emit(Copy(permutation=(1, 0)), (found.b,), (transposed,))
    return transposed


def _as_batch(builder: Builder, name: str, role: str) -> str:
    source, shape = _stored(builder, name), builder.shape(name)
    if len(shape) <= MAX_AXES:
        return source
    flat = builder.temporary(role, (prod(shape[:-2]), *shape[-2:]))
    builder.emit(Copy(reshapes=True), (source,), (flat,))
    return flat


def _in_rows(builder: Builder, name: str, role: str) -> str:
    """Copies a channels-last factor to a tensor of five axes, which is row-major."""
    source, shape = _stored(builder, name), builder.shape(name)
    if source in builder.weights or builder.layout.is_row_major(len(shape)) or shape[1] == 1:
        return source
    copied = builder.temporary(role, (1, *shape))
    builder.emit(Copy(reshapes=True), (source,), (copied,))
    return copied


MAX_AXES = 3
"""Axes of a factor: for cuDNN a batch of matrices, or pixels of images."""


@dataclass(frozen=True)
class Dense:
    """y = activation(x @ weight.T + bias?) over the last axis of x; sums are float32.

    Reads x (..., K) of one to three axes, weight (N, K) and bias (N,), writes y (..., N); one type, last axes dense.
    cuDNN has tuned engines for identity, and for ReLU with a bias.
    """

    bias: bool = True
    activation: Activation = IDENTITY
    precision: Precision = Precision("fp32")

    def interpret(self, reads: Sequence[np.ndarray], writes: Sequence[np.ndarray]) -> None:
        """See the class."""
        product = widened(reads[0]) @ widened(reads[1]).T
        writes[0][...] = self.activation(product + widened(reads[2]) if self.bias else product)

    def build(self, graph: Any, reads: Sequence[View], writes: Sequence[View]) -> None:
        """See `CudnnKernel.build`; raises ValueError if a view is not aligned."""
        x = add_tensor(graph, reads[0], 1, _pixels(reads[0]))
        n, k = shape_of(reads[1])
        weight = add_tensor(graph, reads[1], 2, StridedShape((n, k, 1, 1), (k, 1, k, k)))
        bias = add_tensor(graph, reads[2], 3, vector_shape(reads[2])) if self.bias else None
        product = convolve(graph, x, weight, (0, 0, 0, 0), (1, 1), (1, 1))
        result = Epilogue(None, bias, self.activation).add(graph, product)
        write_tensor(result, writes[0], len(reads) + 1, _pixels(writes[0]))


@dataclass(frozen=True)
class MatMul:
    """y = a @ b for a (A, M, K) and b (B, K, N), where A and B are equal, 1 or missing; sums are float32.

    Not in strict float32, for which cuDNN has no engine.
    """

    precision: Precision

    def interpret(self, reads: Sequence[np.ndarray], writes: Sequence[np.ndarray]) -> None:
        """See the class."""
        writes[0][...] = widened(reads[0]) @ widened(reads[1])

    def build(self, graph: Any, reads: Sequence[View], writes: Sequence[View]) -> None:
        """See `CudnnKernel.build`; raises ValueError if a view is not aligned."""
        a, b = (add_tensor(graph, view, uid, _batch(view)) for uid, view in enumerate(reads, start=1))
        write_tensor(graph.matmul(A=a, B=b), writes[0], 3, _batch(writes[0]))


def _batch(view: View) -> StridedShape:
    extents, strides = shape_of(view), element_strides(view)
    if len(extents) == MAX_AXES:
        return StridedShape(extents, strides)
    return StridedShape((1, *extents), (extents[0] * strides[0], *strides))


def _pixels(view: View) -> StridedShape:
    """(..., C) of one to three axes as pixels: (N, C, H, 1)."""
    extents, strides = shape_of(view), element_strides(view)
    channels = extents[-1]
    if len(extents) == 1:
        return StridedShape((1, channels, 1, 1), (channels, 1, channels, channels))
    row = strides[-2]
    height, image = (extents[1], strides[0]) if len(extents) == MAX_AXES else (1, row)
    return StridedShape((extents[0], channels, height, 1), (image, 1, row, row))
