"""Intervals of schedules of real models: they contain published latencies, and shared stages cancel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from math import inf, log

import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from networks import zoo_model
from onnx import helper
from small_models import models, proto_of

from iosched.models.load import load_model
from iosched.profiler.devices.analytic import uncertainty
from iosched.profiler.devices.analytic.analytic_cost import AnalyticCost
from iosched.profiler.devices.analytic.constants import LAUNCH_CONSTANTS, LEAST_NODE_US, MOST_NODE_US, NODE_US, Known
from iosched.profiler.devices.analytic.kernels import Kernel
from iosched.profiler.devices.analytic.scaled import ScaledCost
from iosched.profiler.devices.analytic.uncertainty import (
    SPREADS,
    AnalyticUncertainty,
    SideBySide,
    Sum,
    around,
    deviation,
)
from iosched.profiler.devices.analytic.work import ModelledGpu, Work
from iosched.profiler.devices.gpus import gpu_named
from iosched.profiler.devices.imported_stages import ImportedStages
from iosched.profiler.devices.open_settings import LAUNCHES, LaunchName
from iosched.profiler.measuring.statistics import Interval
from iosched.scheduler.baselines import greedy, sequential
from iosched.scheduler.precision import PrecisionName
from iosched.scheduler.schedule import Block, Schedule, Stage, Strategy
from iosched.scheduler.signature import stage_signature
from iosched.scheduler.strategies import merge_classes

PUBLISHED_MS = {"inception_v3": (6.51, 4.62), "squeezenet": (0.86, 0.98)}  # sequential and greedy, IOS table on a V100


def cost_of(
    network: str,
    gpu: str = "v100",
    precision: PrecisionName = "fp32",
    batch: int = 1,
    launch: LaunchName = "streams",
) -> AnalyticCost:
    found = gpu_named(gpu)
    assert found is not None
    return AnalyticCost(zoo_model(network, batch).graph, found, precision, launches=LAUNCH_CONSTANTS[launch])


@cache
def known(
    network: str,
    gpu: str = "v100",
    precision: PrecisionName = "fp32",
    batch: int = 1,
    launch: LaunchName = "streams",
) -> AnalyticUncertainty:
    return AnalyticUncertainty(cost_of(network, gpu, precision, batch, launch), launch)


def stages(network: str, *, at_once: bool = False) -> list[Stage]:
    graph = zoo_model(network).graph
    return list((greedy if at_once else sequential)(graph).stages)


def merged(network: str) -> Stage:
    graph = zoo_model(network).graph
    pair = merge_classes(graph, [operator.name for operator in graph.operators])[0][:2]
    return Stage(Strategy.MERGE, tuple((name,) for name in pair))


def width(at: AnalyticUncertainty, of: Sequence[Stage]) -> float:
    found = at.latency_us(of)
    return log(found.high / found.low)


def slow_down(monkeypatch: pytest.MonkeyPatch, slow: Kernel, by: float) -> None:
    """Makes one kernel longer by a fraction of its time without the launch."""
    priced = ModelledGpu._kernel

    def longer(gpu: ModelledGpu, kernel: Kernel) -> Work:
        work = priced(gpu, kernel)
        if kernel != slow:
            return work
        launch_us, times = gpu.launches.kernel_us, 1 + by
        return replace(
            work,
            path_us=launch_us + times * (work.path_us - launch_us),
            busy_us=times * work.busy_us,
            spill_us=times * work.spill_us,
        )

    monkeypatch.setattr(ModelledGpu, "_kernel", longer)


def check_shares(cost: AnalyticCost, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks the shares of kernels against the growth of the stage if one of them is a little longer."""
    latency_us = cost.stage_latency_us(stage)
    for kernel, share_us in cost.shares_us(stage).items():
        with monkeypatch.context() as patched:
            slow_down(patched, kernel, 1e-7)
            slower = AnalyticCost(cost.graph, cost.gpu, launches=cost.modelled.launches)
            grown_us = slower.stage_latency_us(stage) - latency_us
        assert grown_us / 1e-7 == pytest.approx(share_us, rel=1e-3, abs=1e-3)


@pytest.mark.parametrize("launch", ["streams", "graph"])
def test_a_share_is_the_derivative_of_the_stage_latency_by_a_kernel(
    launch: LaunchName, monkeypatch: pytest.MonkeyPatch
) -> None:
    cost = cost_of("squeezenet", launch=launch)
    for stage in (*stages("squeezenet")[:6], *stages("squeezenet", at_once=True)[:12], merged("squeezenet")):
        check_shares(cost, stage, monkeypatch)


def without_spill_us(cost: AnalyticCost, stage: Stage) -> float:
    """The latency of a stage of several groups if all their inputs and outputs fitted into the L2 cache."""
    launches = cost.modelled.launches
    groups = [replace(stage, groups=(group,)) for group in stage.groups]
    busy_us = sum(map(cost.busy_us, groups))
    ends = [cost.stage_latency_us(group) + launches.interference * (busy_us - cost.busy_us(group)) for group in groups]
    return launches.fork_us * len(groups) + max(busy_us, *ends)


def test_a_share_includes_cache_spills(monkeypatch: pytest.MonkeyPatch) -> None:
    cost = cost_of("inception_v3", "k80")
    spilling = [
        stage
        for stage in stages("inception_v3", at_once=True)
        if len(stage.groups) > 1 and cost.stage_latency_us(stage) > without_spill_us(cost, stage) * (1 + 1e-9)
    ]
    assert spilling
    check_shares(cost, spilling[0], monkeypatch)


@pytest.mark.parametrize("at_once", [False, True])
def test_kernels_and_launches_make_up_a_latency(at_once: bool) -> None:
    found = known("squeezenet").sum_of(stages("squeezenet", at_once=at_once))
    made_up_of = [us for part, us in found.by_part_us.items() if not isinstance(part, SideBySide) and part != "gains"]
    assert sum(made_up_of) == pytest.approx(found.whole_us)
    assert min(made_up_of) >= 0
    side_by_side = [us for part, us in found.by_part_us.items() if isinstance(part, SideBySide)]
    of_several = [stage for stage in stages("squeezenet", at_once=at_once) if len(stage.groups) > 1]
    latency_us = sum(map(known("squeezenet").cost.stage_latency_us, of_several))
    assert sum(side_by_side) == pytest.approx(latency_us)
    assert bool(side_by_side) == at_once


@pytest.mark.parametrize(("network", "at_once"), [("inception_v3", 0), ("inception_v3", 1), ("squeezenet", 0)])
def test_published_latencies_lie_in_their_intervals(network: str, at_once: int) -> None:
    published_us = 1e3 * PUBLISHED_MS[network][at_once]
    assert published_us in known(network).latency_us(stages(network, at_once=bool(at_once)))


def test_the_published_speed_up_of_inception_lies_in_its_interval() -> None:
    one, other = stages("inception_v3"), stages("inception_v3", at_once=True)
    found = known("inception_v3").ratio(one, other)
    assert 6.51 / 4.62 in found
    assert not found.is_equal


@pytest.mark.parametrize("batch", [1, 64])
def test_fewer_measurements_of_a_gpu_widen_the_interval_of_a_latency(
    batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def width_if(how: Known) -> float:
        monkeypatch.setattr(uncertainty, "known_by", lambda gpu: how)
        return width(known("inception_v3", "t4", batch=batch), stages("inception_v3"))

    assert width_if("networks") < width_if("kernels") < width_if("specification")


@pytest.mark.parametrize(("precision", "wider"), [("fp16", True), ("fp32", False)])
def test_tensor_cores_widen_the_interval_of_a_latency(precision: PrecisionName, wider: bool) -> None:
    cost, of = cost_of("squeezenet", "t4", precision), stages("squeezenet")
    plain, far_off = (
        width(AnalyticUncertainty(cost, "streams", replace(SPREADS, tensor_cores=times)), of) for times in (1.0, 2.0)
    )
    assert (far_off > 1.3 * plain) == wider
    assert wider or far_off == plain


def test_the_interval_of_launches_alone_is_the_range_of_a_graph_node() -> None:
    only_launches = Sum(10 * NODE_US, {"launches": 10 * NODE_US})
    at = known("squeezenet", launch="graph")
    found = around(only_launches.whole_us, deviation(at.shares(only_launches)))
    assert (found.low, found.high) == pytest.approx((10 * LEAST_NODE_US, 10 * MOST_NODE_US))


def test_large_batches_have_narrower_intervals_than_short_kernels() -> None:
    of = stages("inception_v3")
    assert width(known("inception_v3", "t4", batch=64), of) < width(known("inception_v3", "t4"), of) / 2


def test_the_ratio_of_two_schedules_has_a_narrower_interval_than_either() -> None:
    at, one, other = known("inception_v3"), stages("inception_v3"), stages("inception_v3", at_once=True)
    found, turned = at.ratio(one, other), at.ratio(other, one)
    assert log(found.high / found.low) < min(width(at, one), width(at, other))
    assert (turned.low, turned.value, turned.high) == pytest.approx((1 / found.high, 1 / found.value, 1 / found.low))


def test_a_speedup_has_a_wider_interval_on_a_gpu_without_measured_networks() -> None:
    one, other = stages("inception_v3"), stages("inception_v3", at_once=True)
    on_v100, on_t4 = (known("inception_v3", gpu).ratio(one, other) for gpu in ("v100", "t4"))
    assert on_t4.high / on_t4.low > 1.3 * on_v100.high / on_v100.low
    merge = [merged("squeezenet")]
    apart = [Stage(Strategy.CONCURRENT, (group,)) for group in merge[0].groups]
    on_v100, on_t4 = (known("squeezenet", gpu).ratio(apart, merge) for gpu in ("v100", "t4"))
    assert on_t4.high / on_t4.low < 1.2 * on_v100.high / on_v100.low


def test_the_interval_of_a_ratio_widens_with_the_difference_of_the_schedules() -> None:
    at, plain, at_once = known("inception_v3"), stages("inception_v3"), stages("inception_v3", at_once=True)
    several = [stage for stage in at_once if len(stage.groups) > 1]

    def width_with(count: int) -> float:
        kept = several[:count]
        names = {name for stage in kept for name in stage.operators}
        found = at.ratio(plain, [*kept, *(stage for stage in plain if not names.intersection(stage.operators))])
        return log(found.high / found.low)

    widths = [width_with(count) for count in (0, 1, 3, len(several))]
    assert widths[0] == 0
    assert widths == sorted(set(widths))


@pytest.mark.parametrize("at_once", [False, True])
def test_a_schedule_is_exactly_as_fast_as_itself(at_once: bool) -> None:
    of = stages("squeezenet", at_once=at_once)
    found = known("squeezenet").ratio(of, of)
    assert (found.low, found.value, found.high) == (1.0, 1.0, 1.0)
    assert known("squeezenet").ratio(of, of[::-1]).is_equal


def test_identical_stages_share_one_error() -> None:
    stage = next(stage for stage in stages("squeezenet", at_once=True) if len(stage.groups) > 1)
    alike = [replace(stage, predicted_us=float(number)) for number in range(9)]
    assert width(known("squeezenet"), alike) == pytest.approx(width(known("squeezenet"), [stage]))


def test_an_empty_schedule_takes_exactly_no_time() -> None:
    at = known("squeezenet")
    found = at.latency_us([])
    assert (found.low, found.value, found.high) == (0.0, 0.0, 0.0)
    assert at.ratio([], []).value == 1.0
    assert at.ratio(stages("squeezenet"), []).value == float("inf")


def test_a_merged_stage_is_one_kernel() -> None:
    found = known("squeezenet").sum_of([merged("squeezenet")])
    assert len(found.by_part_us) == 2
    assert "launches" in found.by_part_us


def scaled(measured_us: Mapping[Stage, float]) -> AnalyticUncertainty:
    """With measurements from another machine for these stages of SqueezeNet, and those with equal keys."""
    cost = known("squeezenet").analytic
    signature = partial(stage_signature, cost.graph)
    measured = {signature(stage): us for stage, us in measured_us.items()}
    elsewhere = ImportedStages("a V100", measured, signature, cost.operator_key)
    return AnalyticUncertainty(ScaledCost(cost, elsewhere), "streams")


def test_gains_are_the_time_that_concurrent_groups_save() -> None:
    at = known("inception_v3")
    for stage in (stage for stage in stages("inception_v3", at_once=True) if len(stage.groups) > 1):
        apart = at.ratio([Stage(Strategy.CONCURRENT, (group,)) for group in stage.groups], [stage])
        assert at.sum_of([stage]).by_part_us["gains"] == pytest.approx(
            at.cost.stage_latency_us(stage) * log(apart.value)
        )
    assert "gains" not in at.sum_of(stages("inception_v3")).by_part_us


def test_the_gain_is_small_and_certain_where_kernels_fill_the_gpu() -> None:
    one, other = stages("inception_v3"), stages("inception_v3", at_once=True)
    alone, batched = (known("inception_v3", "t4", batch=batch).ratio(one, other) for batch in (1, 64))
    assert batched.value < alone.value
    assert batched.high / batched.low < alone.high / alone.low


def test_imported_measurements_are_certain_and_other_stages_are_not() -> None:
    of, others = stages("squeezenet"), stages("squeezenet", at_once=True)
    latency_us = known("squeezenet").cost.stage_latency_us
    everything = scaled({stage: 2 * latency_us(stage) for stage in (*of, *others)})
    assert width(everything, of) == 0
    assert everything.latency_us(of).value == pytest.approx(2 * sum(map(latency_us, of)))
    assert everything.ratio(of, others).low == everything.ratio(of, others).high
    parts = [scaled({stage: latency_us(stage) for stage in of[:count]}) for count in (0, 10, 30, len(of))]
    widths = [width(part, of) for part in parts]
    assert widths == sorted(widths, reverse=True)
    assert widths[0] == pytest.approx(width(known("squeezenet"), of))
    assert widths[-1] == 0


def test_scaling_changes_a_latency_but_not_its_relative_interval() -> None:
    of = stages("squeezenet")
    latency_us = known("squeezenet").cost.stage_latency_us
    side_by_side = [stage for stage in stages("squeezenet", at_once=True) if len(stage.groups) > 1]
    twice = scaled({stage: 2 * latency_us(stage) for stage in of})
    plain, found = known("squeezenet").latency_us(side_by_side), twice.latency_us(side_by_side)
    assert found.value == pytest.approx(2 * plain.value)
    assert found.high / found.low == pytest.approx(plain.high / plain.low)


@given(models(), st.sampled_from(["v100", "k80", "h100"]), st.sampled_from(LAUNCHES))
def test_every_schedule_of_every_model_has_an_interval(model: onnx.ModelProto, device: str, launch: LaunchName) -> None:
    graph, gpu = load_model(model.SerializeToString(), name="random").graph, gpu_named(device)
    assert gpu is not None
    cost = AnalyticCost(graph, gpu, launches=LAUNCH_CONSTANTS[launch])
    at = AnalyticUncertainty(cost, launch)
    schedules = [tuple(find(graph).stages) for find in (sequential, greedy)]
    for of in schedules:
        found = at.latency_us(of)
        assert found.value == pytest.approx(cost.schedule_latency_us(Schedule((Block(0, of),))))
        assert 0 <= found.low <= found.value <= found.high < inf
        assert at.ratio(of, of) == Interval(1.0, 1.0, 1.0)
    found = at.ratio(*schedules)
    assert found.low <= found.value <= found.high


def test_stages_that_run_no_kernel_gain_nothing() -> None:
    nodes = [helper.make_node("Identity", ["x"], [name]) for name in ("a", "b")]
    model = load_model(proto_of(nodes, {"x": [2, 2]}, ["a", "b"]).SerializeToString(), name="renames")
    gpu = gpu_named("v100")
    assert gpu is not None
    at = AnalyticUncertainty(AnalyticCost(model.graph, gpu))
    (stage,) = greedy(model.graph).stages
    assert len(stage.groups) == 2
    assert "gains" not in at.sum_of([stage]).by_part_us
    assert at.latency_us([stage]).high < inf
