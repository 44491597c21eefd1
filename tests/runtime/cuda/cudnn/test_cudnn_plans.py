"""cuDNN graphs and their plans: the requests, and the answers of cuDNN for a simulated GPU.

The tests of the second kind are skipped where cuDNN or a libcuda.so.1 is missing.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import fake_cudnn
import pytest
from fake_cudnn import Tensor

from iosched.models.errors import DeviceError
from iosched.runtime.cuda.cudnn.cudnn_graph import Epilogue, GpuDescription, is_aligned, load_cudnn
from iosched.runtime.cuda.cudnn.plans import (
    TENSOR_CORES,
    TRANSFORMS,
    CudnnOffer,
    build_cudnn_plans,
    load_cudnn_plan,
    noted_cudnn_plans,
    rebuild_cudnn_plan,
)
from iosched.runtime.cuda.kernel import CudnnKernel, Precision
from iosched.runtime.cuda.kernels.conv import Conv
from iosched.runtime.cuda.kernels.product import Dense, MatMul
from iosched.runtime.cuda.source.activation import IDENTITY, RELU, Activation
from iosched.runtime.plan import View

DESCRIPTION = Path(__file__).parents[4] / "benchmarks/devices/h100.json"
H100 = GpuDescription.from_json(DESCRIPTION.read_text(encoding="utf-8"))
FP32, TF32, FP16 = Precision("fp32"), Precision("tf32"), Precision("fp16")
PRECISIONS = [FP32, TF32, FP16]


@dataclass(frozen=True)
class Case:
    """A kernel with its reads and writes."""

    kernel: CudnnKernel
    reads: tuple[View, ...]
    writes: tuple[View, ...]

    def offer(self, target: Any = H100, **limits: Any) -> CudnnOffer:
        return build_cudnn_plans(self.kernel, self.reads, self.writes, target, **limits)


def image(precision: Precision, channels: int, *, size: int = 28, columns: int | None = None, first: int = 0) -> View:
    """(2, channels, size, size) in a tensor of `columns` channels, starting at channel `first`."""
    item = 2 if precision.dtype == "float16" else 4
    pixel = (columns or channels) * item
    strides = (size * size * pixel, item, size * pixel, pixel)
    return View("t", precision.dtype, (2, channels, size, size), first * item, 0, strides)


def plain(precision: Precision, *shape: int) -> View:
    return View("w", precision.dtype, shape)


def conv(precision: Precision, *, out: View | None = None, **changes: Any) -> Case:
    """3x3, from 64 channels to 64, with bias and ReLU."""
    kernel = replace(Conv((1, 1), (1, 1, 1, 1), activation=RELU, precision=precision), **changes)
    reads = [image(precision, 64), plain(precision, 64, 3, 3, 64 // kernel.groups)]
    reads += [plain(precision, 64)] if kernel.bias else []
    reads += [image(precision, 64)] if kernel.residual else []
    return Case(kernel, tuple(reads), (out or image(precision, 64, size=28 // kernel.strides[0]),))


def dense(precision: Precision, *lead: int) -> Case:
    kernel = Dense(True, RELU, precision)
    reads = (plain(precision, *lead, 512), plain(precision, 1000, 512), plain(precision, 1000))
    return Case(kernel, reads, (plain(precision, *lead, 1000),))


# Requests.


def result_of(case: Case, monkeypatch: pytest.MonkeyPatch) -> tuple[Tensor, list[Tensor]]:
    """The output of the graph, and its tensors in order of their uids."""
    graph = fake_cudnn.install(monkeypatch)
    case.offer()
    tensors = [tensor for tensor in graph[0].tensors if "uid" in tensor.attributes]
    tensors.sort(key=lambda tensor: int(tensor.attributes["uid"]))
    return tensors[-1], tensors


def test_views_have_the_uids_of_their_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    case = conv(FP16, residual=True, out=image(FP16, 64, columns=256, first=8))
    _, tensors = result_of(case, monkeypatch)
    assert [tensor.attributes["uid"] for tensor in tensors] == [1, 2, 3, 4, 5]
    assert [tensor.attributes["dim"] for tensor in tensors] == [
        [2, 64, 28, 28], [64, 64, 3, 3], [1, 64, 1, 1], [2, 64, 28, 28], [2, 64, 28, 28],
    ]  # fmt: skip
    assert tensors[1].attributes["stride"] == [576, 1, 192, 64]
    assert tensors[4].attributes["stride"] == [784 * 256, 1, 28 * 256, 256]
    assert {tensor.attributes["data_type"] for tensor in tensors} == {"half"}
    assert tensors[-1].attributes["output"]


def test_the_residual_comes_before_the_bias_because_cudnn_is_tuned_for_that(monkeypatch: pytest.MonkeyPatch) -> None:
    relu, tensors = result_of(conv(FP32, residual=True), monkeypatch)
    x, weight, bias_vector, residual = tensors[:4]
    bias = relu.operands[0]
    total = bias.operands[0]
    product = total.operands[0]
    assert [step.operation for step in (relu, bias, total, product)] == ["relu", "bias", "add", "conv_fprop"]
    assert (bias.operands[1], total.operands[1], product.operands) == (bias_vector, residual, (x, weight))


def test_convolutions_pass_their_pads_strides_and_dilations(monkeypatch: pytest.MonkeyPatch) -> None:
    case = conv(FP32, pads=(1, 2, 3, 4), strides=(1, 2), dilations=(2, 1), bias=False, activation=IDENTITY)
    product, _ = result_of(case, monkeypatch)
    assert product.operation == "conv_fprop"
    assert product.arguments == {
        "pre_padding": [1, 2], "post_padding": [3, 4], "stride": [1, 2], "dilation": [2, 1],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("lead", "extents", "strides"),
    [((), [1, 512, 1, 1], [512, 1, 512, 512]), ((3,), [3, 512, 1, 1], [512, 1, 512, 512]),
     ((2, 5), [2, 512, 5, 1], [2560, 1, 512, 512])],
)  # fmt: skip
def test_dense_layers_are_convolutions_of_pixels(
    lead: tuple[int, ...], extents: list[int], strides: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    result, (x, weight, bias, y) = result_of(dense(FP32, *lead), monkeypatch)
    assert result.operation == "relu"
    assert (x.attributes["dim"], x.attributes["stride"]) == (extents, strides)
    assert weight.attributes["dim"] == [1000, 512, 1, 1]
    assert bias.attributes["dim"] == [1, 1000, 1, 1]
    assert y.attributes["dim"] == [extents[0], 1000, *extents[2:]]


def test_addresses_that_are_no_multiples_of_16_bytes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_cudnn.install(monkeypatch)
    out = image(FP32, 64, columns=256, first=3)
    assert not is_aligned(out)
    with pytest.raises(ValueError, match="multiple of 16"):
        conv(FP32, out=out).offer()


def test_described_gpus_and_handles_get_the_same_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs = fake_cudnn.install(monkeypatch)
    conv(FP16).offer()
    conv(FP16).offer("a handle")
    described, attached = (graph.arguments for graph in graphs)
    assert described["sm_version"] == 90
    assert "sm_count" not in described, "cuDNN would refuse its engines for Hopper"
    assert "handle" not in described
    assert attached == {
        "io_data_type": "half", "intermediate_data_type": "float", "compute_data_type": "float", "handle": "a handle",
    }  # fmt: skip


def test_strict_float32_forbids_tensor_cores_and_nothing_else_does(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs = fake_cudnn.install(monkeypatch)
    for precision in PRECISIONS:
        conv(precision).offer()
    fp32, tf32, fp16 = (set(graph.forbidden) for graph in graphs)
    assert fp32 - tf32 == {"TENSOR_CORE", "DOWN_CONVERT_INPUTS"}
    assert tf32 == fp16 == {"REDUCED_PRECISION_REDUCTION", "NONDETERMINISTIC", "WINOGRAD_TILE_13x13"}


CONFIGURATIONS = [
    ("eng7_k2=5_k22=3", ""),
    ("eng26", "Deselecting execution plan at position 1"),
    ("eng9", "ptxas failed\nlong story"),
    ("eng0", ""),
]


def test_plans_that_build_come_in_cudnns_order(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_cudnn.install(monkeypatch, CONFIGURATIONS)
    offer = conv(FP32).offer()
    assert [plan.name for plan in offer.plans] == ["eng7_k2=5_k22=3", "eng0"]
    assert [plan.workspace_nbytes for plan in offer.plans] == [0, 300]
    assert offer.offered == 3
    assert offer.refusal == ""


def test_at_most_the_requested_number_of_plans_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs = fake_cudnn.install(monkeypatch, CONFIGURATIONS)
    assert len(conv(FP32).offer(at_most=1).plans) == 1
    assert graphs[0].built == [0]


def test_one_plan_is_built_even_after_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_cudnn.install(monkeypatch, CONFIGURATIONS)
    assert len(conv(FP32).offer(deadline_s=0).plans) == 1


def test_a_refusal_is_reported_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_cudnn.install(monkeypatch, CONFIGURATIONS, "No execution plans\nsomewhere")
    offer = conv(FP32).offer()
    assert (offer.plans, offer.offered, offer.refusal) == ((), 0, "No execution plans")
    fake_cudnn.install(monkeypatch, CONFIGURATIONS[1:3])
    assert conv(FP32).offer().refusal == "ptxas failed"


def test_a_runtime_compiled_plan_is_built_if_no_precompiled_one_builds(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [("rtc52", ""), ("eng1", ""), ("rtc53", ""), ("eng2", "")]
    fake_cudnn.install(monkeypatch, names)
    assert [plan.name for plan in conv(FP32).offer().plans] == ["rtc52", "eng1", "rtc53", "eng2"]
    assert [plan.name for plan in conv(FP32).offer(precompiled=True).plans] == ["eng1", "eng2"]
    fake_cudnn.install(monkeypatch, [("eng1", "does not fit"), ("rtc52", ""), ("rtc53", "")])
    assert [plan.name for plan in conv(FP32).offer(precompiled=True).plans] == ["rtc52"]


def test_a_plan_is_built_again_from_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs = fake_cudnn.install(monkeypatch, CONFIGURATIONS)
    case = conv(FP32)
    for plan in case.offer().plans:
        again = rebuild_cudnn_plan(case.kernel, case.reads, case.writes, H100, plan.name)
        assert (again.name, again.workspace_nbytes) == (plan.name, plan.workspace_nbytes)
        assert len(graphs[-1].built) == 1


APPENDED = ["eng44_k2=12_k18=0", "eng44_k2=12_k18=1", "eng44_k2=4_k18=0"]


def test_strict_float32_asks_for_tuned_plans_that_cudnn_does_not_name(monkeypatch: pytest.MonkeyPatch) -> None:
    offered = [("eng11", ""), (APPENDED[0], ""), ("eng0", "")]
    fake_cudnn.install(monkeypatch, offered, appendable=[44])
    case = conv(FP32)
    assert [plan.name for plan in case.offer().plans] == ["eng11", APPENDED[0], "eng0", *APPENDED[1:]]
    assert rebuild_cudnn_plan(case.kernel, case.reads, case.writes, H100, APPENDED[2]).name == APPENDED[2]
    for precision in (TF32, FP16):
        assert len(conv(precision).offer().plans) == 3, "they do not use tensor cores"
    fake_cudnn.install(monkeypatch, offered)
    assert len(case.offer().plans) == 3, "older GPUs have no such engine"


def test_more_plans_are_built_until_there_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs = fake_cudnn.install(monkeypatch, [(f"eng{index}", "") for index in range(6)])
    offer = conv(FP32).offer(at_most=2, enough=lambda plans: plans[-1].name == "eng4")
    assert len(offer.plans) == 5
    assert graphs[0].built == [0, 1, 2, 3, 4]
    assert len(conv(FP32).offer(at_most=2, enough=lambda _: False).plans) == 6


def test_plans_with_notes_are_found_by_barring_those_notes(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs = fake_cudnn.install(
        monkeypatch, [("eng1", ""), ("eng2", ""), ("eng3", "")], noted={"WINOGRAD": ["eng2"], "FFT": ["eng3"]}
    )
    case = conv(TF32)
    plans = case.offer().plans
    is_noted = noted_cudnn_plans(case.kernel, case.reads, case.writes, H100, TRANSFORMS)
    assert len(graphs) == 1, "the kernel is planned again only when asked"
    assert [is_noted(plan) for plan in (*plans, *plans)] == [False, True, True] * 2
    assert len(graphs) == 2


@pytest.mark.parametrize("name", ["eng8", "eng7_k2=5", "eng9", "eng26", ""])
def test_a_plan_that_cudnn_cannot_build_is_an_error(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_cudnn.install(monkeypatch, CONFIGURATIONS)
    case = conv(FP32)
    with pytest.raises(DeviceError, match="cannot build plan"):
        rebuild_cudnn_plan(case.kernel, case.reads, case.writes, H100, name)


def test_a_missing_frontend_is_an_error_that_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cudnn", None)
    with pytest.raises(DeviceError, match=r"pip install '.\[cuda\]'"):
        conv(FP32).offer()


@pytest.mark.parametrize("text", ["", "[]", "{}", json.dumps({"deviceName": "x", "deviceVer": 900})])
def test_an_incomplete_gpu_description_is_refused(text: str) -> None:
    with pytest.raises(DeviceError, match="GPU description"):
        GpuDescription.from_json(text)


def test_a_gpu_description_has_a_name_and_an_sm_version() -> None:
    assert (H100.name, H100.sm_version) == ("NVIDIA H100 80GB HBM3", 90)


# Answers of cuDNN.


@cache
def why_not() -> str:
    """The reason why plans cannot be built on this machine; "" where they can."""
    try:
        load_cudnn()
        return conv(FP32).offer(at_most=1).refusal
    except (DeviceError, RuntimeError) as error:
        return str(error).splitlines()[0]


needs_cudnn = pytest.mark.skipif(bool(why_not()), reason=f"no cuDNN plans here: {why_not()}")


@needs_cudnn
@pytest.mark.parametrize("precision", PRECISIONS, ids=lambda precision: precision.name)
@pytest.mark.parametrize(
    "changes",
    [
        {}, {"bias": False, "activation": IDENTITY}, {"residual": True}, {"groups": 8}, {"strides": (2, 2)},
        {"pads": (0, 1, 2, 1)}, {"pads": (2, 2, 2, 2), "dilations": (2, 2)},
    ],
    ids=str,
)  # fmt: skip
def test_cudnn_has_several_precompiled_plans_for_lowered_kernels(precision: Precision, changes: dict[str, Any]) -> None:
    offer = conv(precision, **changes).offer(at_most=3)
    assert len(offer.plans) == 3
    assert all(plan.build_ms < 1000 for plan in offer.plans)


@needs_cudnn
@pytest.mark.parametrize("precision", [TF32, FP16], ids=lambda precision: precision.name)
def test_cudnn_has_engines_for_the_described_gpu_and_not_only_for_older_ones(precision: Precision) -> None:
    """Those that know Hopper's clusters of blocks have knobs for them."""
    offer = conv(precision).offer(precompiled=True)
    assert any("_k27=" in plan.name for plan in offer.plans), [plan.name for plan in offer.plans]


@needs_cudnn
@pytest.mark.parametrize("precision", PRECISIONS, ids=lambda precision: precision.name)
def test_cudnn_writes_slices_of_channels(precision: Precision) -> None:
    assert conv(precision, out=image(precision, 64, columns=256, first=64)).offer(at_most=3).plans
    assert conv(precision, out=image(precision, 64, columns=255)).offer(at_most=3).plans


@needs_cudnn
@pytest.mark.parametrize("precision", PRECISIONS, ids=lambda precision: precision.name)
@pytest.mark.parametrize("lead", [(), (1,), (16,), (2, 5)])
def test_cudnn_has_plans_for_dense_layers(precision: Precision, lead: tuple[int, ...]) -> None:
    assert len(dense(precision, *lead).offer(at_most=3).plans) == 3


@needs_cudnn
def test_cudnn_multiplies_batches_except_in_strict_float32() -> None:
    for precision in PRECISIONS:
        batch = plain(precision, 4, 64, 64)
        offer = Case(MatMul(precision), (batch, batch), (batch,)).offer(at_most=1)
        assert bool(offer.plans) == (precision is not FP32), precision


@needs_cudnn
def test_strict_float32_plans_are_fewer_than_those_with_tensor_cores() -> None:
    strict = {plan.name for plan in conv(FP32).offer().plans}
    fast = {plan.name for plan in conv(TF32).offer(precompiled=True).plans}
    assert strict
    assert fast - strict


def test_an_activation_without_tuned_engines_is_refused() -> None:
    with pytest.raises(ValueError, match="no tuned engine for Tanh"):
        Epilogue(activation=Activation("Tanh")).add(None, None)


@needs_cudnn
@pytest.mark.parametrize("precision", PRECISIONS, ids=lambda precision: precision.name)
def test_rebuilding_or_loading_a_plan_restores_its_name_and_workspace(precision: Precision) -> None:
    case = conv(precision)
    plans = case.offer(precompiled=True).plans
    assert len({plan.name for plan in plans}) == len(plans) > 4
    assert precision is FP16 or len({plan.workspace_nbytes for plan in plans}) > 1
    for plan in plans:
        again = rebuild_cudnn_plan(case.kernel, case.reads, case.writes, H100, plan.name)
        loaded = load_cudnn_plan(plan.name, plan.serialize(), precision, H100)
        for other in (again, loaded):
            assert (other.name, other.workspace_nbytes) == (plan.name, plan.workspace_nbytes)


@needs_cudnn
@pytest.mark.parametrize("changes", [{}, {"residual": True}, {"groups": 8}, {"strides": (2, 2)}], ids=str)
def test_cudnn_builds_the_plans_that_are_asked_for_in_strict_float32(changes: dict[str, Any]) -> None:
    assert {*APPENDED} <= {plan.name for plan in conv(FP32, **changes).offer(precompiled=True).plans}


@needs_cudnn
@pytest.mark.parametrize("precision", PRECISIONS, ids=lambda precision: precision.name)
def test_cudnns_notes_identify_plans_that_use_tensor_cores(precision: Precision) -> None:
    case = conv(precision)
    uses = noted_cudnn_plans(case.kernel, case.reads, case.writes, H100, TENSOR_CORES)
    found = {plan.name.split("_")[0]: uses(plan) for plan in case.offer(precompiled=True).plans}
    assert not found["eng11"]
    assert any(found.values()) == (precision is not FP32)


@needs_cudnn
def test_data_that_is_not_a_stored_plan_is_refused() -> None:
    with pytest.raises(DeviceError, match="stored cuDNN plan"):
        load_cudnn_plan("eng0", b"something else", FP16, H100)
