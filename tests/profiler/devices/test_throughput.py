"""How much stages compute, how fast, and which part of the device they use."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted import fire
from shipped import document

from iosched.models.model import Model
from iosched.profiler.devices.analytic.analytic_cost import AnalyticCost
from iosched.profiler.devices.analytic.device import SimulatedGpu
from iosched.profiler.devices.gpus import gpu_named
from iosched.profiler.devices.open_settings import OpenSettings
from iosched.profiler.devices.resolve import throughputs
from iosched.profiler.devices.throughput import Throughput, Throughputs, idle_share, idle_streams
from iosched.scheduler.baselines import greedy
from iosched.scheduler.document import ScheduleDocument
from iosched.scheduler.schedule import Stage, Strategy
from iosched.scheduler.search import search

CONCURRENT, MERGE = Strategy.CONCURRENT, Strategy.MERGE


@pytest.fixture(scope="module")
def model() -> Model:
    return fire()


def planned(model: Model, device: str = "Tesla V100-SXM2-16GB", **runtime: str) -> ScheduleDocument:
    return replace(document(model), device={"kind": "cuda", "name": device}, cost="analytic", runtime=runtime)


def measured_on(model: Model, kind: str, device: str, **runtime: str) -> ScheduleDocument:
    return replace(planned(model, device, **runtime), device={"kind": kind, "name": device}, cost="measured")


def test_a_share_is_the_ratio_of_actual_to_possible() -> None:
    found = Throughput(flops=10**9, latency_us=1000.0, peak_tflops=4.0, busy_us=100.0)

    assert (found.tflops, found.share_of_peak, found.sm_share) == (1.0, 0.25, 0.1)


def test_without_a_latency_or_a_peak_the_shares_are_unknown() -> None:
    found = Throughput(flops=10**9, latency_us=None, peak_tflops=4.0, busy_us=100.0)

    assert (found.tflops, found.share_of_peak, found.sm_share) == (None, None, None)
    assert Throughput(10**9, 1000.0).share_of_peak is None
    assert Throughput(10**9, 1000.0).sm_share is None
    assert Throughput(10**9, 0.0, 4.0, 0.0).tflops is None


def test_a_convolution_counts_multiply_and_add_as_two(model: Model) -> None:
    known = Throughputs(model.graph)

    expand3 = known.of([Stage(CONCURRENT, (("f3",),), predicted_us=2.0, measured_us=1.0)])

    assert expand3.flops == 2 * 16 * 16 * 3 * 3 * 6 * 6
    assert expand3.latency_us == 1.0


def test_stages_add_up_and_one_unknown_latency_makes_the_sum_unknown(model: Model) -> None:
    known = Throughputs(model.graph)
    one, other = Stage(CONCURRENT, (("f1",),), 1.0), Stage(CONCURRENT, (("f3",),), 2.0)

    both = known.of([one, other])

    assert both.flops == known.of([one]).flops + known.of([other]).flops
    assert both.latency_us == 3.0
    assert known.of([one, replace(other, predicted_us=None)]).latency_us is None


def test_padding_zeros_of_a_merge_do_not_count_as_work(model: Model) -> None:
    gpu = gpu_named("v100")
    assert gpu is not None
    known = AnalyticCost(model.graph, gpu).throughputs
    groups = (("f1",), ("f3",))

    merged, beside = (known.of([Stage(strategy, groups, 10.0)]) for strategy in (MERGE, CONCURRENT))

    assert merged.flops == beside.flops
    larger = known.of([Stage(CONCURRENT, (("f3",),), 10.0)])
    assert larger.busy_us < merged.busy_us < 1.5 * larger.busy_us  # one tile as well, but twice the results


def test_a_simulated_schedule_has_the_specified_peak_and_no_stage_exceeds_it(model: Model) -> None:
    gpu = gpu_named("v100")
    assert gpu is not None
    found = search(model.graph, AnalyticCost(model.graph, gpu)).schedule

    known = throughputs(model, planned(model))

    for stage in found.stages:
        shown = known.of([stage])
        assert shown.peak_tflops == 15.7
        assert shown.share_of_peak is not None
        assert shown.sm_share is not None
        assert 0 <= shown.share_of_peak < 1
        assert 0 < shown.sm_share <= 1


def test_the_peak_is_that_of_the_precision(model: Model) -> None:
    assert throughputs(model, planned(model, precision="fp16")).peak_tflops == 125
    assert throughputs(model, planned(model, precision="tf32")).peak_tflops == 15.7  # a V100 does not support it


def test_an_unknown_precision_has_no_peak(model: Model) -> None:
    assert throughputs(model, planned(model, precision="fp3")).peak_tflops is None
    assert throughputs(model, measured_on(model, "cuda", "Tesla T4", precision="fp3")).peak_tflops is None


def test_a_gpu_outside_the_table_has_no_peak(model: Model) -> None:
    known = throughputs(model, planned(model, "A GPU of 2040"))
    assert (known.peak_tflops, known.busy_us) == (None, None)


def test_a_measured_gpu_has_its_specifications_peak_and_no_modelled_share(model: Model) -> None:
    known = throughputs(model, measured_on(model, "cuda", "NVIDIA H100 80GB HBM3", precision="tf32"))
    assert (known.peak_tflops, known.busy_us) == (494.7, None)
    assert throughputs(model, measured_on(model, "cuda", "NVIDIA GeForce 9999")).peak_tflops is None


def test_a_cpu_has_no_peak(model: Model) -> None:
    assert throughputs(model, measured_on(model, "cpu", "v100")).peak_tflops is None


def test_a_damaged_file_with_computed_costs_on_a_cpu_has_no_peak(model: Model) -> None:
    damaged = replace(planned(model), device={"kind": "cpu", "name": "Some CPU"})
    assert throughputs(model, damaged).of([]).peak_tflops is None


ALONE_US = {("a",): 100.0, ("b", "c"): 60.0, ("d",): 20.0}


def latency_us(stage: Stage) -> float | None:
    """Groups alone take what the table says; side by side, the longest of them and 5 us a group."""
    known = [ALONE_US.get(group) for group in stage.groups]
    if None in known:
        return None
    return max(map(float, known)) + (5.0 * len(known) if len(known) > 1 else 0.0)  # type: ignore[arg-type]


def concurrent(*groups: tuple[str, ...]) -> Stage:
    return Stage(Strategy.CONCURRENT, groups)


def test_lanes_are_idle_when_they_are_not_busy() -> None:
    assert idle_share(100.0, [100.0, 60.0], 2) == pytest.approx(0.2)
    assert idle_share(100.0, [30.0, 70.0, 20.0], 4) == pytest.approx(0.7)
    assert idle_share(50.0, [100.0], 2) == 0.0


def test_the_idle_share_is_unknown_where_a_number_is_missing() -> None:
    assert idle_share(None, [1.0], 2) is None
    assert idle_share(1.0, [1.0, None], 2) is None
    assert idle_share(0.0, [0.0], 2) is None
    assert idle_share(math.inf, [1.0], 2) is None


@given(st.floats(1e-3, 1e6), st.lists(st.floats(0, 1e7), max_size=8), st.integers(1, 64))
def test_the_idle_share_is_in_0_to_1_and_falls_with_busy_lanes(latency: float, busy: list[float], lanes: int) -> None:
    found = idle_share(latency, busy, lanes)
    more = idle_share(latency, [*busy, latency], lanes)
    assert found is not None
    assert more is not None
    assert 0 <= more <= found <= 1
    assert idle_share(latency, [latency] * lanes, lanes) == pytest.approx(0.0)


def test_a_stream_waits_for_the_longest_group_of_its_stage() -> None:
    """3 streams of 115 us, of which 100 + 60 + 20 are busy."""
    assert idle_streams(concurrent(*ALONE_US), latency_us) == pytest.approx(1 - 180 / 345)
    assert idle_streams(concurrent(("b", "c")), latency_us) == 0.0
    assert idle_streams(concurrent(("a",), ("x",)), latency_us) is None
    for strategy in (Strategy.MERGE, Strategy.SESSION):
        assert idle_streams(Stage(strategy, (("a",), ("d",))), latency_us) is None


def test_the_idle_share_of_a_simulated_gpu_is_computed() -> None:
    gpu = gpu_named("v100")
    assert gpu is not None
    opened = SimulatedGpu(gpu).open(fire(), OpenSettings())
    stages = list(greedy(fire().graph).stages)
    for stage in stages:
        alone_us = [opened.cost.stage_latency_us(concurrent(group)) for group in stage.groups]
        busy = sum(alone_us) / len(alone_us) / opened.cost.stage_latency_us(stage)
        assert opened.details.idle_share(stage) == pytest.approx(max(1 - busy, 0))
    assert any(len(stage.groups) > 1 for stage in stages)
