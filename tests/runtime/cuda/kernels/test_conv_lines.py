"""Convolutions of one and of three dimensions: row-major tensors, an axis of one row where cuDNN wants an image."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import desk_cudnn
import fake_cudnn
import numpy as np
import pytest
from gpu_plans import expected_outputs, interpreted, merged_schedule, relative_error
from host_cuda import needs_compiler
from host_driver import HostChoice, HostDriver
from node_kernels import FP16, FP32, lowered, normal
from onnx import helper
from small_models import LINE, SOLID, conv_network

from iosched.models.graph import TensorSpec
from iosched.models.model import Model
from iosched.runtime.cuda.builder import Cut, KernelCall
from iosched.runtime.cuda.cudnn.plans import build_cudnn_plans
from iosched.runtime.cuda.execute.executor import CudaExecutor
from iosched.runtime.cuda.kernel import Precision
from iosched.runtime.cuda.kernels.conv import Conv
from iosched.runtime.cuda.kernels.depthwise import Depthwise
from iosched.runtime.cuda.layout import Layout
from iosched.runtime.cuda.lower.lowered_model import LoweredModel
from iosched.runtime.cuda.lower.lowering import Lowering, lower
from iosched.runtime.cuda.lower.placement import place_calls
from iosched.runtime.cuda.source.activation import RELU
from iosched.runtime.inputs import random_inputs
from iosched.runtime.plan import View
from iosched.scheduler.baselines import greedy, sequential

TF32 = Precision("tf32")
H100 = desk_cudnn.described()
needs_cudnn = pytest.mark.skipif(bool(desk_cudnn.missing()), reason=f"no cuDNN plans here: {desk_cudnn.missing()}")


@pytest.mark.parametrize("precision", [FP32, FP16])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(
    ("attributes", "weight_shape"),
    [
        ({}, (8, 6, 1)),
        ({"pads": [1, 1]}, (8, 6, 3)),
        ({"pads": [2, 5], "strides": [2]}, (5, 6, 7)),
        ({"auto_pad": "SAME_LOWER", "strides": [3]}, (4, 6, 2)),
        ({"dilations": [4], "pads": [0, 3]}, (4, 6, 3)),
        ({"group": 2, "pads": [3, 3]}, (4, 3, 7)),
        ({"group": 6, "pads": [1, 1]}, (12, 1, 3)),
        ({}, (8, 6, 1, 1, 1)),
        ({"pads": [1, 0, 2, 0, 1, 1], "strides": [1, 2, 3]}, (8, 6, 3, 2, 1)),
        ({"auto_pad": "SAME_UPPER", "strides": [1, 2, 3]}, (4, 6, 2, 3, 3)),
        ({"group": 3, "dilations": [2, 1, 3]}, (9, 2, 2, 2, 3)),
        ({"group": 6, "pads": [1, 1, 1, 1, 1, 1]}, (6, 1, 3, 3, 3)),
    ],
    ids=str,
)
def test_nodes_compute_the_same_as_onnxruntime(
    precision: Precision, batch: int, attributes: dict[str, object], weight_shape: tuple[int, ...]
) -> None:
    node = helper.make_node("Conv", ["x", "w", "b"], ["y"], **attributes)
    constants = {"w": normal(*weight_shape) / 8, "b": normal(weight_shape[0])}
    x = normal(batch, 6, *(LINE if len(weight_shape) == 3 else SOLID))
    case = lowered(node, {"x": x}, constants, precision=precision)
    case.compare(before=3)
    depthwise = weight_shape[1] == 1 and len(weight_shape) == 3
    assert [type(call.kernel) for call in case.calls] == [Depthwise if depthwise else Conv]
    bare = helper.make_node("Conv", ["x", "w"], ["y"], **attributes)
    lowered(bare, case.inputs, constants, precision=precision).compare()


def test_a_line_is_an_image_of_one_row() -> None:
    """Against the kernel for images, which is compared with the definition elsewhere."""
    kernel = Conv((2,), (1, 3), (3,), 2, leading_relu=True, residual=True, activation=RELU)
    x, w, bias, y = normal(3, 4, 20), normal(6, 2, 3), normal(6), np.zeros((3, 6, 9), np.float32)
    residual = normal(*y.shape, seed=1)
    kernel.interpret([x, w, bias, residual], [y])
    image = replace(kernel, strides=(1, 2), pads=(0, 1, 0, 3), dilations=(1, 3))
    rows = np.zeros((3, 6, 1, 9), np.float32)
    kernel_last = np.ascontiguousarray(w[:, :, None].transpose(0, 2, 3, 1))
    image.interpret([x[:, :, None], kernel_last, bias, residual[:, :, None]], [rows])
    np.testing.assert_allclose(y, rows[:, :, 0], rtol=1e-6, atol=1e-6)
    assert y.any()


def test_four_dimensions_are_left_to_onnxruntime() -> None:
    node = helper.make_node("Conv", ["x", "w"], ["y"])
    assert not lowered(node, {"x": normal(1, 2, *(3,) * 4)}, {"w": normal(3, 2, *(2,) * 4)}).calls


# The cuDNN graph.


def case(precision: Precision, axes: int, *, residual: bool = False, groups: int = 1) -> tuple[Conv, tuple[View, ...]]:
    """A kernel of three along each axis, bias and ReLU, on a batch of two; with its reads and writes."""
    kernel = Conv(
        (1,) * axes, (1, 1) * axes, (1,) * axes, groups, residual=residual, activation=RELU, precision=precision
    )
    shape = (2, 32, 31) if axes == 1 else (2, 32, 6, 7, 8)
    y = View("t", precision.dtype, shape)
    reads = (y, replace(y, shape=(32, 32 // groups, *(3,) * axes)), replace(y, shape=(32,)))
    return kernel, (*reads, y, y) if residual else (*reads, y)


def in_wider(view: View) -> View:
    """`view` as a slice of a tensor of twice as many channels."""
    shape = view.shape or ()
    item = np.dtype(view.dtype).itemsize
    strides = [item * int(np.prod(shape[axis + 1 :])) for axis in range(len(shape))]
    return replace(view, strides=(2 * strides[0], *strides[1:]))


def described(monkeypatch: pytest.MonkeyPatch, kernel: Conv, views: tuple[View, ...]) -> tuple[list[Any], Any]:
    """(dim, stride) of every view's tensor, and the convolution's parameters."""
    (graph,) = offered(monkeypatch, kernel, views)
    tensors = {tensor.attributes["uid"]: tensor for tensor in graph.tensors if "uid" in tensor.attributes}
    (product,) = (tensor for tensor in graph.tensors if tensor.operation == "conv_fprop")
    found = [(tensors[uid].attributes["dim"], tensors[uid].attributes["stride"]) for uid in sorted(tensors)]
    return found, product.arguments


def offered(monkeypatch: pytest.MonkeyPatch, kernel: Conv, views: tuple[View, ...]) -> list[fake_cudnn.Graph]:
    graphs = fake_cudnn.install(monkeypatch)
    build_cudnn_plans(kernel, views[:-1], views[-1:], H100)
    return graphs


def test_cudnn_sees_a_line_as_an_image_of_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, views = case(FP16, 1, residual=True)
    kernel = replace(kernel, strides=(2,), pads=(0, 3), dilations=(4,))
    found, told = described(monkeypatch, kernel, (in_wider(views[0]), *views[1:]))
    image = ([2, 32, 1, 31], [32 * 31, 31, 31, 1])
    wide = ([2, 32, 1, 31], [64 * 31, 31, 31, 1])
    assert found == [wide, ([32, 32, 1, 3], [96, 3, 3, 1]), ([1, 32, 1, 1], [32, 1, 32, 32]), image, image]
    assert told == {"pre_padding": [0, 0], "post_padding": [0, 3], "stride": [1, 2], "dilation": [1, 4]}


def test_cudnn_sees_a_solid_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, views = case(FP32, 3)
    found, told = described(monkeypatch, replace(kernel, pads=(1, 2, 3, 4, 5, 6), strides=(1, 2, 1)), views)
    solid = ([2, 32, 6, 7, 8], [32 * 336, 336, 56, 8, 1])
    assert found == [solid, ([32, 32, 3, 3, 3], [864, 27, 9, 3, 1]), ([1, 32, 1, 1, 1], [32, 1, 32, 32, 32]), solid]
    assert told == {
        "pre_padding": [1, 2, 3], "post_padding": [4, 5, 6], "stride": [1, 2, 1], "dilation": [1, 1, 1],
    }  # fmt: skip


@needs_cudnn
@pytest.mark.parametrize("precision", [FP32, TF32, FP16], ids=lambda precision: precision.name)
@pytest.mark.parametrize("axes", [1, 3])
def test_cudnn_has_precompiled_plans(precision: Precision, axes: int) -> None:
    for residual, groups in ((False, 1), (True, 1), (False, 8)):
        kernel, views = case(precision, axes, residual=residual, groups=groups)
        for seen in (views, (in_wider(views[0]), *views[1:]), tuple(map(in_wider, views[-2:]))):
            if len(seen) == 2:  # the output, and the residual with it
                seen = (*views[:-2], *seen) if residual else (*views[:-1], seen[-1])
            offer = build_cudnn_plans(kernel, seen[:-1], seen[-1:], H100, at_most=2)
            assert len(offer.plans) == 2, offer.refusal
            assert all(plan.build_ms < 1000 for plan in offer.plans)


@needs_cudnn
@pytest.mark.parametrize("axes", [1, 3])
def test_cudnn_has_no_plan_if_the_residual_has_another_layout(axes: int) -> None:
    """The reason why the placement moves neither; see `placement._gapless`."""
    kernel, views = case(FP16, axes, residual=True)
    assert not build_cudnn_plans(kernel, (*views[:3], in_wider(views[3])), views[4:], H100).plans


# Networks.


def lowerings(model: Model, precision: Precision) -> list[Lowering]:
    """Under schedules with and without streams and merging."""
    made = LoweredModel(model, precision)
    return [lower(made, schedule(model.graph)) for schedule in (sequential, greedy, merged_schedule)]


@pytest.mark.parametrize("precision", [FP32, FP16])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("space", [LINE, SOLID], ids=str)
def test_networks_compute_the_same_as_onnxruntime(space: tuple[int, ...], batch: int, precision: Precision) -> None:
    model = conv_network(space, batch)
    inputs = random_inputs(model.graph.inputs)
    found = lowerings(model, precision)
    for lowering in found:
        assert not lowering.sessions
        wanted = expected_outputs(model, inputs)
        assert relative_error(interpreted(lowering, inputs, 1), wanted) < (1e-5 if precision is FP32 else 1e-2)
    counts = [len(convolutions(lowering)) for lowering in found]
    assert counts[0] - 1 == counts[2], "two convolutions are merged"


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("space", [LINE, SOLID], ids=str)
def test_a_residual_has_the_same_layout_as_its_sum(space: tuple[int, ...], batch: int) -> None:
    """Both are operands of one Concat; at batch 1 its slices are whole, at batch 3 they are not and both are copied."""
    for lowering in lowerings(conv_network(space, batch), FP32):
        (found,) = (views for kernel, views in convolutions(lowering) if kernel.residual)
        residual, result = (replace(view, buffer="", offset=0) for view in (found[-2], found[-1]))
        assert residual == result
        whole = result.strides is None or result.strides == plain_strides(result)
        assert whole
        copies = [task.name for lane in lowering.plan.lanes for task in lane if task.name == "all"]
        assert len(copies) == (0 if batch == 1 else 1), "one kernel for both"


@pytest.mark.parametrize("batch", [1, 8])
def test_a_residual_and_its_sum_read_by_a_concat_are_contiguous(batch: int) -> None:
    """Images too: cuDNN has no engine for slices on older GPUs."""
    model = conv_network((6, 7), batch)
    inputs = random_inputs(model.graph.inputs)
    for lowering in lowerings(model, FP32):
        (found,) = (views for kernel, views in convolutions(lowering) if kernel.residual)
        shape = (batch, 8, 6, 7)
        assert [(view.shape, view.strides) for view in found[-2:]] == [(shape, Layout.NHWC.strides_of(shape, 4))] * 2
        copies = [task.name for lane in lowering.plan.lanes for task in lane if task.name == "all"]
        assert len(copies) == 1, "one kernel for both"
        assert relative_error(interpreted(lowering, inputs, 1), expected_outputs(model, inputs)) < 1e-5


@pytest.mark.parametrize("batch", [1, 3])
def test_a_residual_that_is_a_part_of_a_batch_is_copied_out_of_it(batch: int) -> None:
    shapes = {"x": (batch, 8, 20), "a": (batch, 4, 20), "b": (batch, 4, 20), "y": (batch, 4, 20), "w": (4, 4, 1)}
    tensors = {name: TensorSpec(name, "float32", shape) for name, shape in shapes.items()}
    kernel = Conv((1,), (0, 0), (1,), bias=False, residual=True)
    calls = [KernelCall(Cut(1), ("x",), ("a", "b")), KernelCall(kernel, ("a", "w", "b"), ("y",))]
    placement = place_calls(calls, tensors, Layout.NHWC, fixed=("y",), constants=("w",))
    assert placement.elided == ({0} if batch == 1 else set())
    assert placement.views["b"].strides == placement.views["y"].strides
    plain_calls = [calls[0], KernelCall(replace(kernel, residual=False), ("a", "w"), ("y",))]
    assert place_calls(plain_calls, tensors, Layout.NHWC, fixed=("y",), constants=("w",)).elided == {0}


def plain_strides(view: View) -> tuple[int, ...]:
    shape = view.shape or ()
    return tuple(4 * int(np.prod(shape[axis + 1 :])) for axis in range(len(shape)))


def convolutions(lowering: Lowering) -> list[tuple[Conv, tuple[View, ...]]]:
    tasks = [task for lane in lowering.plan.lanes for task in lane]
    pairs = [(lowering.kernels[task.kernel], (*task.reads, *task.writes)) for task in tasks]
    return [(kernel, views) for kernel, views in pairs if isinstance(kernel, Conv)]


@needs_compiler
@pytest.mark.parametrize("space", [LINE, SOLID], ids=str)
def test_a_network_is_one_captured_graph(space: tuple[int, ...]) -> None:
    model, driver = conv_network(space, 3), HostDriver(1)
    inputs = random_inputs(model.graph.inputs)
    executor = CudaExecutor(lower(LoweredModel(model, FP32), greedy(model.graph)), driver, HostChoice(driver))
    assert executor.is_captured
    executor.poison()
    found = executor.run({view.buffer: inputs[view.buffer.removesuffix("@caller")] for view in executor.inputs})
    named = {name.removesuffix("@caller"): array for name, array in found.items()}
    assert relative_error(named, expected_outputs(model, inputs)) < 1e-5
