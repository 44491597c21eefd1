"""Convolutions by cuDNN, with batch normalization, scale, bias, residual and activation folded in where possible."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
import onnx

from iosched.models.fusion.affine import Affine, affine_of
from iosched.models.graph import Operator
from iosched.models.merging.stacking import is_gate, margins, padded_kernel
from iosched.models.node_attributes import integer
from iosched.runtime.cuda.builder import Builder
from iosched.runtime.cuda.cudnn.cudnn_graph import (
    Epilogue,
    add_tensor,
    convolve,
    filter_shape,
    image_shape,
    vector_shape,
    write_tensor,
)
from iosched.runtime.cuda.kernel import Precision
from iosched.runtime.cuda.kernels.add import AddN
from iosched.runtime.cuda.kernels.depthwise import Depthwise, depthwise_weight
from iosched.runtime.cuda.kernels.elementwise import activation_of
from iosched.runtime.cuda.layout import Layout
from iosched.runtime.cuda.source.activation import IDENTITY, RELU, Activation
from iosched.runtime.cuda.source.windows import Window, window_of
from iosched.runtime.plan import View
from iosched.runtime.session import DERIVED, load_onnxruntime, open_session


@dataclass(frozen=True, eq=False)
class Convolution:
    """activation(conv(relu?(x), weight) + bias + residual?).

    Attributes:
        weight: `(out, in / groups, *kernel)`, float64.
        bias: `(out,)`, float64.
        pads: all begins, then all ends.
        residual: a tensor of the result's shape that is added before the activation.
    """

    x: str
    weight: np.ndarray
    bias: np.ndarray
    strides: tuple[int, ...]
    pads: tuple[int, ...]
    dilations: tuple[int, ...]
    groups: int = 1
    leading_relu: bool = False
    residual: str | None = None
    activation: Activation = IDENTITY

    @property
    def kernel_shape(self) -> tuple[int, ...]:
        """Extents of the kernel."""
        return tuple(self.weight.shape[2:])

    @property
    def window(self) -> Window:
        """Its window."""
        return Window(self.kernel_shape, self.strides, self.pads, self.dilations)

    def reading(self, x: str) -> Convolution:
        """The same convolution of another tensor."""
        return replace(self, x=x)


def plain_convolution(builder: Builder, node: onnx.NodeProto, operator: Operator) -> Convolution | None:
    """The convolution of `node` with the normalized attributes of `operator`; None if its weight is computed."""
    weight = builder.constant(node.input[1])
    bias = builder.constant(node.input[2]) if len(node.input) > 2 and node.input[2] else None
    if weight is None or (bias is None and len(node.input) > 2 and node.input[2]):
        return None
    return Convolution(
        x=node.input[0],
        weight=weight.astype(np.float64),
        bias=np.zeros(weight.shape[0]) if bias is None else bias.astype(np.float64),
        strides=operator.integers("strides"),
        pads=operator.integers("pads"),
        dilations=operator.integers("dilations"),
        groups=operator.integer("group", 1),
    )


def fused_convolution(builder: Builder, nodes: Sequence[onnx.NodeProto], operator: Operator) -> Convolution | None:
    """The nodes of an operator of type Conv or ReluConv as one convolution; None if it takes more than one.

    The nodes: ReLU?, Conv, batch normalizations and constant scales and shifts, Add of a residual?, activation (or
    x * sigmoid(x) as two nodes)?
    """
    position = next((index for index, node in enumerate(nodes) if node.op_type == "Conv"), None)
    if position is None or position > 1:
        return None
    found = plain_convolution(builder, nodes[position], operator)
    if found is None:
        return None
    if position == 1:
        found = replace(found, x=nodes[0].input[0], leading_relu=True)
    current = nodes[position].output[0]
    rest = list(nodes[position + 1 :])
    while rest:
        if found.activation.is_identity and is_gate(rest, current):
            return replace(found, activation=Activation("Swish", 1.0))
        node = rest.pop(0)
        folded = _with(builder, found, node, current)
        if folded is None:
            return None
        found, current = folded, node.output[0]
    return found


def _with(builder: Builder, known: Convolution, node: onnx.NodeProto, current: str) -> Convolution | None:
    if not known.activation.is_identity:
        return None
    affine = affine_of(node, current, builder.model.weights, known.weight.shape[0], known.weight.ndim)
    if affine is not None:
        return None if known.residual else _scaled(known, affine)
    others = [name for name in node.input if name != current]
    if node.op_type in ("Add", "Sum") and len(others) == 1 and len(node.input) == 2:
        is_sum = known.residual is None and builder.constant(others[0]) is None
        return replace(known, residual=others[0]) if is_sum else None
    activation = activation_of(builder, node)
    return None if activation is None else replace(known, activation=activation)


def _scaled(known: Convolution, affine: Affine) -> Convolution:
    factors = affine.scale.reshape((-1,) + (1,) * (known.weight.ndim - 1))
    return replace(known, weight=known.weight * factors, bias=known.bias * affine.scale + affine.shift)


def merged_convolution(parts: Sequence[Convolution]) -> Convolution:
    """Convolutions of one input as one: kernels are zero-padded around their centres and stacked along the outputs.

    Exact under `models.merge_rule`, which the caller has checked.
    """
    size = [max(extents) for extents in zip(*(part.kernel_shape for part in parts), strict=True)]
    padded = [padded_kernel(part.weight, size) for part in parts]
    first = parts[0]
    grown = [by * more for by, more in zip(first.dilations, margins(first.kernel_shape, size), strict=True)]
    pads = tuple(pad + growth for pad, growth in zip(first.pads, [*grown, *grown], strict=True))
    return replace(first, weight=np.concatenate(padded), bias=np.concatenate([part.bias for part in parts]), pads=pads)


def output_shape(shape: Sequence[int], convolution: Convolution) -> tuple[int, ...]:
    """Shape of the result for an input of `shape`."""
    rank = len(shape) - 2
    spatial = tuple(
        (extent + before + after - dilation * (kernel - 1) - 1) // stride + 1
        for extent, before, after, dilation, kernel, stride in zip(
            shape[2:],
            convolution.pads[:rank],
            convolution.pads[rank:],
            convolution.dilations,
            convolution.kernel_shape,
            convolution.strides,
            strict=True,
        )
    )
    return (shape[0], convolution.weight.shape[0], *spatial)


_MAX_AXES = 3


@dataclass(frozen=True)
class Conv:
    """y = activation(conv(relu?(x), weight) + residual? + bias?) of one to three dimensions, dense or grouped.

    Reads x (N, C, L), (N, C, H, W) or (N, C, D, H, W), the weight of `conv_weight`, the bias (O,) and the residual,
    which has y's shape; all in y's type. Sums are float32. x and y may be channel slices of wider tensors. One
    dimension is an image with one row for cuDNN.

    cuDNN has tuned engines for identity or ReLU, a bias, and a residual in y's layout; for others see
    benchmarks/reports/cudnn-coverage.md.

    Attributes:
        pads: all begins, then all ends; not negative.
        leading_relu: whether x passes a ReLU.
        precision: decides which engines are allowed.
        filters: layout of the weight. Not in `repr`, and so not in keys, which distinguish layouts by strides of x.
    """

    strides: tuple[int, ...]
    pads: tuple[int, ...]
    dilations: tuple[int, ...] = (1, 1)
    groups: int = 1
    leading_relu: bool = False
    bias: bool = True
    residual: bool = False
    activation: Activation = IDENTITY
    precision: Precision = Precision("fp32")
    filters: Layout = field(default=Layout.NHWC, repr=False)

    def interpret(self, reads: Sequence[np.ndarray], writes: Sequence[np.ndarray]) -> None:
        """See the class; onnxruntime computes the convolution."""
        x, weight, *rest = (np.ascontiguousarray(read, np.float32) for read in reads)
        bias = rest.pop(0) if self.bias else np.zeros(weight.shape[0], np.float32)
        session = _session(self.strides, self.pads, self.dilations, self.groups)
        image = np.maximum(x, 0) if self.leading_relu else x
        kernel = weight.transpose(np.argsort(self.filters.memory_order(weight.ndim)))
        (result,) = session.run(None, {"x": image, "weight": np.ascontiguousarray(kernel), "bias": bias})
        writes[0][...] = self.activation(result + rest[0] if self.residual else result)

    def build(self, graph: Any, reads: Sequence[View], writes: Sequence[View]) -> None:
        """See `CudnnKernel.build`; raises ValueError if a view is not aligned."""
        uids = iter(range(1, len(reads) + 1))
        views = iter(reads)
        shape = image_shape(next(views))
        x = add_tensor(graph, reads[0], next(uids), shape)
        weight = add_tensor(graph, reads[1], next(uids), filter_shape(next(views), self.filters))
        bias = residual = None
        if self.bias:
            view = next(views)
            bias = add_tensor(graph, view, next(uids), vector_shape(view, len(shape.extents)))
        if self.residual:
            view = next(views)
            residual = add_tensor(graph, view, next(uids), image_shape(view))
        image = graph.relu(input=x) if self.leading_relu else x
        strides, pads, dilations = self._as_2d
        product = convolve(graph, image, weight, pads, strides, dilations)
        result = Epilogue(residual, bias, self.activation).add(graph, product)
        write_tensor(result, writes[0], len(reads) + 1, image_shape(writes[0]))

    @property
    def _as_2d(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        if len(self.strides) > 1:
            return self.strides, self.pads, self.dilations
        return (1, *self.strides), (0, self.pads[0], 0, self.pads[1]), (1, *self.dilations)


def conv_weight(weight: np.ndarray, filters: Layout) -> np.ndarray:
    """The ONNX weight (O, I, *kernel) with axes in the order of `filters`: (O, KH, KW, I) for NHWC."""
    return np.ascontiguousarray(weight.transpose(filters.memory_order(weight.ndim)))


def lower_conv(builder: Builder, found: Convolution, y: str, name: str) -> bool:
    """Emits the calls of a convolution that writes `y`.

    cuDNN runs what it has tuned engines for, elementwise kernels the rest, and our own kernel depthwise convolutions of
    one or two dimensions.

    Args:
        name: prefix of weights and temporaries.

    Returns:
        False, with nothing emitted, for more than three dimensions, negative padding, or operands that are not floats.
    """
    operands = [found.x, y] if found.residual is None else [found.x, y, found.residual]
    if min(found.pads, default=0) < 0 or not all(builder.is_float(operand) for operand in operands):
        return False
    if found.residual is not None and builder.shape(found.residual) != builder.shape(y):
        return False
    axes = len(found.kernel_shape)
    if not 1 <= axes <= _MAX_AXES:
        return False
    is_depthwise = found.groups > 1 and found.weight.shape[1] == 1 and found.groups == builder.shape(found.x)[1]
    (_emit_depthwise if is_depthwise and axes <= 2 else _emit_conv)(builder, found, y, name)
    return True


def lower(builder: Builder, node: onnx.NodeProto) -> bool:
    """Conv with constant weight and bias."""
    constants = [builder.constant(name) for name in node.input[1:] if name]
    if any(array is None for array in constants) or node.input[0] not in builder.tensors:
        return False
    weight = np.asarray(constants[0])
    bias = constants[1] if len(constants) > 1 and constants[1] is not None else np.zeros(weight.shape[0])
    window = window_of(node, builder.shape(node.input[0]), weight.shape[2:], _MAX_AXES)
    if window is None:
        return False
    groups, y = integer(node, "group", 1), node.output[0]
    plain = Convolution(node.input[0], weight, bias, window.strides, window.pads, window.dilations, groups)
    return lower_conv(builder, plain, y, y)


def _emit_depthwise(builder: Builder, found: Convolution, y: str, name: str) -> None:
    inside = found.activation if found.residual is None else IDENTITY
    kernel = Depthwise(found.window, found.leading_relu, inside)
    weight = builder.weight(f"{name}/weight", depthwise_weight(found.weight))
    bias = builder.float32_weight(f"{name}/bias", found.bias)
    written = y if found.residual is None else builder.temporary(f"{name}/conv", builder.shape(y))
    builder.emit(kernel, (found.x, weight, bias), (written,))
    if found.residual is not None:
        builder.emit(AddN(found.activation), (written, found.residual), (y,))


def _emit_conv(builder: Builder, found: Convolution, y: str, name: str) -> None:
    x = found.x
    if found.leading_relu:
        x = builder.temporary(f"{name}/relu", builder.shape(found.x))
        builder.emit(AddN(RELU), (found.x,), (x,))
    if found.activation in (IDENTITY, RELU):
        _emit_cudnn(builder, found.reading(x), y, name)
        return
    written = builder.temporary(f"{name}/conv", builder.shape(y))
    _emit_cudnn(builder, replace(found, x=x, residual=None, activation=IDENTITY), written, name)
    terms = (written,) if found.residual is None else (written, found.residual)
    builder.emit(AddN(found.activation), terms, (y,))


def _emit_cudnn(builder: Builder, found: Convolution, y: str, name: str) -> None:
    has_bias = bool(np.any(found.bias)) or found.residual is not None or not found.activation.is_identity
    reads = [found.x, builder.weight(f"{name}/weight", conv_weight(found.weight, builder.layout))]
    if has_bias:
        reads.append(builder.weight(f"{name}/bias", found.bias))
    if found.residual is not None:
        reads.append(found.residual)
    kernel = Conv(
        found.strides,
        found.pads,
        found.dilations,
        found.groups,
        bias=has_bias,
        residual=found.residual is not None,
        activation=found.activation,
        precision=builder.precision,
        filters=builder.layout,
    )
    builder.emit(kernel, reads, (y,))


@cache
def _session(strides: tuple[int, ...], pads: tuple[int, ...], dilations: tuple[int, ...], groups: int) -> Any:
    rank = 2 + len(strides)
    node = onnx.helper.make_node(
        "Conv", ["x", "weight", "bias"], ["y"], strides=strides, pads=pads, dilations=dilations, group=groups
    )
    kind = onnx.TensorProto.FLOAT
    inputs = [
        onnx.helper.make_tensor_value_info(name, kind, [None] * axes)
        for name, axes in (("x", rank), ("weight", rank), ("bias", 1))
    ]
    outputs = [onnx.helper.make_tensor_value_info("y", kind, [None] * rank)]
    graph = onnx.helper.make_graph([node], "conv", inputs, outputs)
    proto = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    options = load_onnxruntime().SessionOptions()
    options.log_severity_level = 4
    return open_session(proto.SerializeToString(), options, called=DERIVED)
