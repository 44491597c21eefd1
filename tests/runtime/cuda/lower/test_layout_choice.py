"""Images use the layout in which the whole model ran faster, or the preferred one if that may be noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
from gpu_plans import expected_outputs, relative_error
from host_cuda import needs_compiler
from host_driver import HostChoice, HostDriver, Kept
from scripted import fire

from iosched.models.errors import DeviceError, DeviceLostError
from iosched.runtime.cuda.backend import CudaBackend
from iosched.runtime.cuda.execute.executor import CudaExecutor
from iosched.runtime.cuda.kernel import Gpu, Precision
from iosched.runtime.cuda.layout import Layout
from iosched.runtime.cuda.lower.lowered_model import LoweredModel
from iosched.runtime.cuda.lower.timed_choices import InterleavedLatencies, LayoutChoice, layout_by_choice, layout_key
from iosched.runtime.cuda.samples import sample
from iosched.runtime.inputs import random_inputs
from iosched.scheduler.baselines import greedy

FP32 = Precision("fp32")
V100 = Gpu(capability=70, processors=80)


def never(networks: Sequence[LoweredModel]) -> Sequence[Sequence[float]]:
    raise AssertionError("times what it knows, or may not time")


def takes(nhwc_us: Sequence[float], nchw_us: Sequence[float]) -> InterleavedLatencies:
    """A clock with these latencies of each layout, round by round."""
    rounds = {Layout.NHWC: nhwc_us, Layout.NCHW: nchw_us}
    return lambda networks: [rounds[network.layout] for network in networks]


@pytest.mark.parametrize("preferred", Layout)
@pytest.mark.parametrize("nhwc_us", [96.0, 98.0, 102.0, 104.0])
def test_the_other_layout_has_to_be_clearly_faster(preferred: Layout, nhwc_us: float) -> None:
    network, kept = LoweredModel(fire(), FP32, preferred), Kept()
    found = layout_by_choice(network, kept, takes([nhwc_us] * 3, [100.0] * 3))
    faster = Layout.NHWC if nhwc_us < 100 else Layout.NCHW
    assert found.layout is (preferred if nhwc_us in (98.0, 102.0) else faster)
    assert found.latency_us == {Layout.NHWC: nhwc_us, Layout.NCHW: 100.0}
    assert layout_by_choice(network, kept, never) == found
    assert len(found.notes) == (nhwc_us in (96.0, 104.0))


def test_latencies_are_compared_within_a_round() -> None:
    """The GPU slows down: a layout compared with the previous round would look too slow."""
    network = LoweredModel(fire(), FP32, Layout.NHWC)
    found = layout_by_choice(network, Kept(), takes([100.0, 150.0, 200.0, 250.0], [95.0, 142.0, 190.0, 400.0]))
    assert found.layout is Layout.NCHW


def test_a_layout_in_which_the_model_fails_is_not_taken() -> None:
    network, kept, fails = LoweredModel(fire(), FP32, Layout.NHWC), Kept(), [math.inf] * 3
    assert layout_by_choice(network, kept, takes(fails, [100.0] * 3)).layout is Layout.NCHW
    assert layout_by_choice(network, kept, never) == LayoutChoice(
        Layout.NCHW, {Layout.NHWC: math.inf, Layout.NCHW: 100.0}
    )
    assert layout_by_choice(network, Kept(), takes([100.0] * 3, fails)).layout is Layout.NHWC
    kept = Kept()
    assert layout_by_choice(network, kept, takes(fails, fails)) == LayoutChoice(Layout.NHWC)
    assert kept.known == {}


def test_nothing_is_timed_if_not_allowed_or_if_layouts_are_the_same() -> None:
    for preferred in Layout:
        found = layout_by_choice(LoweredModel(fire(), FP32, preferred), Kept(times=False), never)
        assert found == LayoutChoice(preferred)
        assert found.notes == ()
    lines = sample("(float[2,4,8] x) => (float[2,4,8] y) { y = Relu(x) }")
    assert layout_by_choice(LoweredModel(lines, FP32, Layout.NCHW), Kept(), never) == LayoutChoice(Layout.NCHW)


def test_stored_choices_are_used_and_malformed_ones_are_ignored() -> None:
    network = LoweredModel(fire(), FP32, Layout.NHWC)
    key = layout_key(network)
    assert (
        key
        == layout_key(LoweredModel(fire(), FP32, Layout.NHWC))
        != layout_key(LoweredModel(fire(2), FP32, Layout.NHWC))
    )
    for text, layout in (("nchw", Layout.NCHW), ("nchw 1.0us, nhwc xus", Layout.NCHW), ("nc 1us", None), ("", None)):
        assert layout_by_choice(network, Kept({key: text}, times=False), never).layout is (layout or Layout.NHWC)


def layouts_in(kept: Kept) -> list[str]:
    return [text for key, text in kept.known.items() if key.startswith("layout ")]


def by_kernels(self: CudaExecutor, repeats: int) -> tuple[float, ...]:
    return (10.0 * sum(map(len, self._plan.lanes)),) * repeats


@needs_compiler
def test_a_backend_runs_the_model_in_both_layouts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a V100 NHWC is preferred; here NCHW is faster, as it needs no copies of input and output."""
    monkeypatch.setattr(CudaExecutor, "time_launches", by_kernels)
    model, driver, kept = fire(), HostDriver(gpu=V100), Kept()
    backend = CudaBackend(model, driver, HostChoice(driver), FP32, choices=kept)
    assert backend.layout is Layout.NCHW
    assert layouts_in(kept) == ["nchw 60.00us, nhwc 80.00us"]
    (note,) = backend.notes
    assert "Images use the NCHW layout: one operator at a time, the model takes 60 µs" in note
    assert driver.mistakes == []
    inputs = random_inputs(model.graph.inputs)
    found = backend.compile(greedy(model.graph)).run(inputs)
    assert relative_error(found, expected_outputs(model, inputs)) < 1e-5
    launches, opened = driver.graph_launches, partial(CudaBackend, model, driver, HostChoice(driver), FP32)
    assert opened(choices=Kept(kept.known, times=False)).layout is Layout.NCHW
    assert opened(choices=kept, layout=Layout.NHWC).layout is Layout.NHWC
    assert opened().layout is Layout.NHWC
    assert driver.graph_launches == launches


@needs_compiler
def test_layouts_that_do_not_fit_in_memory_together_are_timed_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    open_now: list[CudaExecutor] = []
    close = CudaExecutor.close

    def timed(self: CudaExecutor, repeats: int) -> tuple[float, ...]:
        open_now.append(self)
        if len({id(each) for each in open_now}) > 1:
            raise DeviceError("no memory left")
        return by_kernels(self, repeats)

    monkeypatch.setattr(CudaExecutor, "time_launches", timed)
    monkeypatch.setattr(CudaExecutor, "close", lambda self: (open_now.clear(), close(self))[1])
    driver, kept = HostDriver(gpu=V100), Kept()
    assert CudaBackend(fire(), driver, HostChoice(driver), FP32, choices=kept).layout is Layout.NCHW
    assert layouts_in(kept) == ["nchw 60.00us, nhwc 80.00us"]


@needs_compiler
def test_a_failing_layout_is_no_candidate_and_a_lost_gpu_ends_the_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: CudaExecutor, repeats: int) -> tuple[float, ...]:
        if sum(map(len, self._plan.lanes)) == 6:
            raise error
        return by_kernels(self, repeats)

    monkeypatch.setattr(CudaExecutor, "time_launches", fails)
    error: Exception = DeviceError("no engine")
    driver, kept = HostDriver(gpu=V100), Kept()
    assert CudaBackend(fire(), driver, HostChoice(driver), FP32, choices=kept).layout is Layout.NHWC
    assert layouts_in(kept) == ["nhwc 80.00us, nchw infus"]
    error = DeviceLostError("lost")
    with pytest.raises(DeviceLostError):
        CudaBackend(fire(), driver, HostChoice(driver), FP32, choices=Kept())


@needs_compiler
def test_a_layout_that_breaks_memory_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    warm_up = CudaExecutor._warm_up

    def breaks(self: CudaExecutor, launches: Any) -> None:
        if sum(map(len, self._plan.lanes)) == 8:  # NHWC, with copies of input and output
            raise DeviceLostError("an illegal address")
        warm_up(self, launches)

    monkeypatch.setattr(CudaExecutor, "_warm_up", breaks)
    driver, kept = HostDriver(gpu=V100), Kept()
    with pytest.raises(DeviceLostError):
        CudaBackend(fire(), driver, HostChoice(driver), FP32, choices=kept)
    backend = CudaBackend(fire(), driver, HostChoice(driver), FP32, choices=kept)
    assert backend.layout is Layout.NCHW
    assert "1 (first: 'nhwc')" in backend.notes[0]
    backend.compile(greedy(backend.graph))
