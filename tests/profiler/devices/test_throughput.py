"""How much stages compute, how fast, and which part of the device they use."""

from __future__ import annotations

from dataclasses import replace

import pytest
from scripted import fire
from shipped import document

from iosched.models.model import Model
from iosched.profiler.devices.analytic.analytic_cost import AnalyticCost
from iosched.profiler.devices.gpus import gpu_named
from iosched.profiler.devices.resolve import throughputs
from iosched.profiler.devices.throughput import Throughput, Throughputs
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


def test_a_share_is_what_is_done_over_what_could_be() -> None:
    found = Throughput(flops=10**9, latency_us=1000.0, peak_tflops=4.0, busy_us=100.0)

    assert (found.tflops, found.share_of_peak, found.sm_share) == (1.0, 0.25, 0.1)


def test_nothing_is_said_of_what_is_not_known() -> None:
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


def test_stages_add_up_and_one_unknown_latency_is_enough(model: Model) -> None:
    known = Throughputs(model.graph)
    one, other = Stage(CONCURRENT, (("f1",),), 1.0), Stage(CONCURRENT, (("f3",),), 2.0)

    both = known.of([one, other])

    assert both.flops == known.of([one]).flops + known.of([other]).flops
    assert both.latency_us == 3.0
    assert known.of([one, replace(other, predicted_us=None)]).latency_us is None


def test_zeros_that_a_merge_pads_with_are_no_work(model: Model) -> None:
    gpu = gpu_named("v100")
    assert gpu is not None
    known = AnalyticCost(model.graph, gpu).throughputs
    groups = (("f1",), ("f3",))

    merged, beside = (known.of([Stage(strategy, groups, 10.0)]) for strategy in (MERGE, CONCURRENT))

    assert merged.flops == beside.flops
    larger = known.of([Stage(CONCURRENT, (("f3",),), 10.0)])
    assert larger.busy_us < merged.busy_us < 1.5 * larger.busy_us  # one tile as well, but twice the results


def test_a_plan_has_the_specifications_peak_and_no_stage_passes_it(model: Model) -> None:
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
    assert throughputs(model, planned(model, precision="tf32")).peak_tflops == 15.7  # a V100 does not know it


def test_of_a_precision_that_is_none_only_the_speed_is_known(model: Model) -> None:
    assert throughputs(model, planned(model, precision="fp3")).peak_tflops is None
    assert throughputs(model, measured_on(model, "cuda", "Tesla T4", precision="fp3")).peak_tflops is None


def test_of_a_gpu_of_another_table_only_the_speed_is_known(model: Model) -> None:
    known = throughputs(model, planned(model, "A GPU of 2040"))
    assert (known.peak_tflops, known.busy_us) == (None, None)


def test_a_measured_gpu_has_its_specifications_peak_and_no_modelled_share(model: Model) -> None:
    known = throughputs(model, measured_on(model, "cuda", "NVIDIA H100 80GB HBM3", precision="tf32"))
    assert (known.peak_tflops, known.busy_us) == (494.7, None)
    assert throughputs(model, measured_on(model, "cuda", "NVIDIA GeForce 9999")).peak_tflops is None


def test_of_a_cpu_no_peak_is_known(model: Model) -> None:
    assert throughputs(model, measured_on(model, "cpu", "v100")).peak_tflops is None


def test_of_a_damaged_file_with_computed_costs_on_a_cpu_only_the_speed_is_known(model: Model) -> None:
    damaged = replace(planned(model), device={"kind": "cpu", "name": "Some CPU"})
    assert throughputs(model, damaged).of([]).peak_tflops is None
