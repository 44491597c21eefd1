"""Convolutions: the reference of cuDNN's kernel, and which nodes are fused into it or run around it."""

from __future__ import annotations

import numpy as np
import pytest
from host_cuda import blank, put
from hypothesis import given
from hypothesis import strategies as st
from node_kernels import FP16, FP32, lowered, normal
from onnx import helper
from small_models import loaded, proto_of

from iosched.runtime.cuda.builder import Builder
from iosched.runtime.cuda.kernel import CudnnKernel, Kernel, Precision
from iosched.runtime.cuda.kernels.add import AddN
from iosched.runtime.cuda.kernels.conv import Conv, Convolution, conv_weight, lower_conv
from iosched.runtime.cuda.kernels.depthwise import Depthwise
from iosched.runtime.cuda.layout import Layout
from iosched.runtime.cuda.source.activation import IDENTITY, RELU, Activation

TANH = Activation("Tanh")


def by_definition(x: np.ndarray, weight: np.ndarray, kernel: Conv) -> np.ndarray:
    """The convolution alone, in float64, tap by tap."""
    top, left, bottom, right = kernel.pads
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (top, bottom), (left, right)))
    (down, along), (tall, wide) = kernel.strides, kernel.dilations
    out, depth, rows, columns = weight.shape
    height = (padded.shape[2] - tall * (rows - 1) - 1) // down + 1
    width = (padded.shape[3] - wide * (columns - 1) - 1) // along + 1
    y = np.zeros((x.shape[0], out, height, width))
    for channel in range(out):
        group = channel // (out // kernel.groups)
        own = padded[:, group * depth : (group + 1) * depth]
        for row, column in np.ndindex(rows, columns):
            tap = own[:, :, row * tall :, column * wide :][:, :, : height * down : down, : width * along : along]
            y[:, channel] += np.einsum("ndhw,d->nhw", tap[:, :, :height, :width], weight[channel, :, row, column])
    return y


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[Conv, tuple[int, int, int, int], tuple[int, int, int, int]]:
    """A kernel with the shapes of its input and its weight."""
    pair = st.tuples(st.integers(1, 3), st.integers(1, 3))
    groups, (rows, columns), dilations = draw(st.integers(1, 3)), draw(pair), draw(pair)
    pads = tuple(draw(st.integers(0, 2)) for _ in range(4))
    kernel = Conv(
        strides=draw(pair),
        pads=(pads[0], pads[1], pads[2], pads[3]),
        dilations=dilations,
        groups=groups,
        leading_relu=draw(st.booleans()),
        bias=draw(st.booleans()),
        residual=draw(st.booleans()),
        activation=draw(st.sampled_from([IDENTITY, RELU, TANH])),
    )
    least = (dilations[0] * (rows - 1) + 1, dilations[1] * (columns - 1) + 1)
    depth, out = draw(st.integers(1, 4)), draw(st.integers(1, 4)) * groups
    height, width = (extent + draw(st.integers(0, 5)) for extent in least)
    return kernel, (draw(st.sampled_from([1, 3])), depth * groups, height, width), (out, depth, rows, columns)


@given(convolutions(), st.sampled_from(["float32", "float16"]), st.integers(0, 5))
def test_the_reference_on_slices_of_channels_equals_the_definition(
    case: tuple[Conv, tuple[int, int, int, int], tuple[int, int, int, int]], dtype: str, before: int
) -> None:
    kernel, x_shape, weight_shape = case
    x, weight = normal(*x_shape).astype(dtype), (normal(*weight_shape) / 4).astype(dtype)
    wanted = by_definition(np.maximum(x, 0) if kernel.leading_relu else x, weight, kernel)
    reads = [put(x, before=before, after=1).array, conv_weight(weight, Layout.NHWC)]
    if kernel.bias:
        reads.append(normal(weight_shape[0]).astype(dtype))
        wanted = wanted + reads[-1].reshape(1, -1, 1, 1)
    if kernel.residual:
        reads.append(put(normal(*wanted.shape, seed=1).astype(dtype), before=before).array)
        wanted = wanted + reads[-1]
    y = blank(wanted.shape, dtype, before=before, after=2)
    kernel.interpret(reads, [y.array])
    scale = 2e-5 if dtype == "float32" else 4e-3
    np.testing.assert_allclose(y.array, kernel.activation(wanted), rtol=scale, atol=scale)
    assert y.is_clean_outside()


@pytest.mark.parametrize("precision", [FP32, FP16])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(
    ("attributes", "weight_shape"),
    [
        ({"pads": [1, 1, 1, 1]}, (8, 6, 3, 3)),
        ({"strides": [2, 1], "pads": [0, 1, 2, 1]}, (5, 6, 3, 2)),
        ({"auto_pad": "SAME_LOWER", "strides": [2, 3]}, (4, 6, 2, 2)),
        ({"auto_pad": "SAME_UPPER", "strides": [2, 2]}, (4, 6, 3, 3)),
        ({"dilations": [2, 3], "pads": [0, 1, 2, 3]}, (4, 6, 2, 2)),
        ({"auto_pad": "VALID"}, (4, 6, 1, 3)),
        ({"group": 2, "pads": [2, 0, 2, 0]}, (4, 3, 5, 1)),
        ({"group": 6, "pads": [1, 1, 1, 1]}, (6, 1, 3, 3)),
        ({"group": 6}, (12, 1, 2, 3)),
    ],
)
def test_nodes_compute_the_same_as_onnxruntime(
    precision: Precision, batch: int, attributes: dict[str, object], weight_shape: tuple[int, ...]
) -> None:
    node = helper.make_node("Conv", ["x", "w", "b"], ["y"], **attributes)
    constants = {"w": normal(*weight_shape) / 8, "b": normal(weight_shape[0])}
    case = lowered(node, {"x": normal(batch, 6, 9, 7)}, constants, precision=precision)
    case.compare(before=3)
    lowered(
        helper.make_node("Conv", ["x", "w"], ["y"], **attributes), case.inputs, constants, precision=precision
    ).compare()


def test_computed_weights_and_negative_pads_are_left_to_onnxruntime() -> None:
    computed = helper.make_node("Conv", ["x", "w"], ["y"])
    assert not lowered(computed, {"x": normal(1, 4, 5, 5), "w": normal(5, 4, 3, 3)}).calls
    assert not built(pads=(-1, 0, 0, 0)).calls


# Nodes around a convolution of x (2, 8, 5, 5) with r of the shape of y (2, 8, 5, 5).


def built(
    *,
    residual: str | None = None,
    activation: Activation = IDENTITY,
    leading_relu: bool = False,
    bias: np.ndarray | None = None,
    groups: int = 1,
    pads: tuple[int, ...] = (1, 1, 1, 1),
    precision: Precision = FP32,
) -> Builder:
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1], group=groups)
    add = helper.make_node("Add", ["y", "r"], ["z"])
    shape = (2, 8, 5, 5)
    model = loaded(proto_of([node, add], {"x": shape, "r": shape}, ["y", "z"], {"w": weight_of(groups)}))
    builder = Builder.of(model, precision)
    weight, shift = weight_of(groups), np.zeros(8) if bias is None else bias
    around = Convolution("x", weight, shift, (1, 1), pads, (1, 1), groups, leading_relu, residual, activation)
    done = lower_conv(builder, around, "y", "y")
    assert done == bool(builder.calls)
    return builder


def weight_of(groups: int) -> np.ndarray:
    return normal(8, 8 // groups, 3, 3) / 8


def run(builder: Builder) -> np.ndarray:
    """The outputs of the calls for x and r."""
    dtype = builder.precision.dtype
    known = {"x": normal(2, 8, 5, 5).astype(dtype), "r": normal(2, 8, 5, 5, seed=1).astype(dtype), **builder.weights}
    for call in builder.calls:
        for name in call.writes:
            spec = builder.tensors[name]
            known[name] = np.full(spec.shape or (), np.nan, spec.dtype)
        call.kernel.interpret([known[name] for name in call.reads], [known[name] for name in call.writes])
    return known["y"]


def kernels(builder: Builder) -> list[Kernel]:
    return [call.kernel for call in builder.calls]


@pytest.mark.parametrize("precision", [FP32, FP16])
@pytest.mark.parametrize("groups", [1, 2, 8])
@pytest.mark.parametrize("leading_relu", [False, True])
@pytest.mark.parametrize("residual", [None, "r"])
@pytest.mark.parametrize("activation", [IDENTITY, RELU, TANH, Activation("Clip", 0, 0.5)])
def test_everything_around_a_convolution_is_computed(
    precision: Precision, groups: int, leading_relu: bool, residual: str | None, activation: Activation
) -> None:
    bias = normal(8, seed=2)
    builder = built(
        residual=residual, activation=activation, leading_relu=leading_relu, bias=bias, groups=groups,
        precision=precision,
    )  # fmt: skip
    x, r = normal(2, 8, 5, 5), normal(2, 8, 5, 5, seed=1)
    plain = Conv((1, 1), (1, 1, 1, 1), groups=groups)
    wanted = by_definition(np.maximum(x, 0) if leading_relu else x, weight_of(groups), plain)
    wanted = activation(wanted + bias.reshape(1, -1, 1, 1) + (r if residual else 0))
    scale = 2e-5 if precision is FP32 else 1e-2
    np.testing.assert_allclose(run(builder), wanted, rtol=scale, atol=scale)


def test_cudnn_does_the_bias_the_residual_and_the_relu() -> None:
    (call,) = built(residual="r", activation=RELU).calls
    assert isinstance(call.kernel, CudnnKernel)
    assert (call.kernel.bias, call.kernel.residual, call.kernel.activation) == (True, True, RELU)
    assert call.reads == ("x", "y/weight", "y/bias", "r")


def test_other_activations_are_one_kernel_with_the_residual() -> None:
    conv, rest = built(residual="r", activation=TANH, bias=normal(8)).calls
    assert conv.kernel == Conv((1, 1), (1, 1, 1, 1))
    assert rest.kernel == AddN(TANH)
    assert rest.reads == (*conv.writes, "r")


def test_a_leading_relu_is_a_separate_kernel_unless_the_convolution_is_depthwise() -> None:
    first, second = kernels(built(leading_relu=True))
    assert first == AddN(RELU)
    assert isinstance(second, Conv)
    assert not second.leading_relu
    (only,) = kernels(built(leading_relu=True, groups=8, activation=TANH))
    assert isinstance(only, Depthwise)
    assert (only.relu, only.activation) == (True, TANH)


def test_a_bias_of_zeros_is_left_out_where_nothing_follows() -> None:
    (plain,) = kernels(built(bias=np.zeros(8)))
    (relu,) = kernels(built(bias=np.zeros(8), activation=RELU))
    assert isinstance(plain, Conv)
    assert isinstance(relu, Conv)
    assert not plain.bias
    assert relu.bias


def test_weights_are_stored_in_the_precision_with_channels_last() -> None:
    builder = built(bias=normal(8), precision=FP16)
    weight, bias = builder.weights["y/weight"], builder.weights["y/bias"]
    assert weight.shape == (8, 3, 3, 8)
    assert (weight.dtype, bias.dtype) == (np.float16, np.float16)
    np.testing.assert_array_equal(weight, weight_of(1).transpose(0, 2, 3, 1).astype(np.float16))
