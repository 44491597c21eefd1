"""`optimize` for a simulated GPU: its schedules, latencies and files are marked as computed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from networks import zoo_model
from onnx import helper
from quantized import quantized
from scripted import fire, model_with
from small_models import branches

from iosched.jobs.optimize import OptimizeResult, OptimizeSettings, optimize
from iosched.jobs.optimizing.estimate import estimate
from iosched.jobs.run import open_executor
from iosched.models.errors import UsageError
from iosched.models.load import load_model
from iosched.profiler.devices.analytic.analytic_cost import AnalyticCost
from iosched.profiler.devices.analytic.constants import STREAM_LAUNCHES
from iosched.profiler.devices.gpus import gpu_named
from iosched.profiler.devices.resolve import recorded
from iosched.runtime.compare import compare
from iosched.runtime.inputs import random_inputs
from iosched.runtime.reference import Reference
from iosched.scheduler.baselines import greedy, sequential
from iosched.scheduler.document import ScheduleDocument
from iosched.scheduler.document_format import Limits
from iosched.scheduler.schedule import Strategy


@pytest.fixture
def settings(tmp_path: Path) -> OptimizeSettings:
    return OptimizeSettings(device="v100", threads=2, profile_db=tmp_path / "p.db")


def cost_us(result: OptimizeResult, precision: str = "fp32") -> float:
    gpu = gpu_named("v100")
    assert gpu is not None
    return AnalyticCost(fire().graph, gpu, precision).schedule_latency_us(result.schedule)


def test_results_and_files_are_marked_as_analytic(settings: OptimizeSettings) -> None:
    result = optimize(fire(), settings)
    document = ScheduleDocument.from_json(result.document.to_json())
    assert (result.cost, document.cost) == ("analytic", "analytic")
    assert (result.measured_us, result.reference_us) == (None, None)
    assert (result.measurements, result.cache_hits) == (0, 0)
    assert document.device == {"kind": "cuda", "name": "Tesla V100-SXM2-16GB"}
    assert document.runtime == {"precision": "fp32", "launch": "graph"}
    assert settings.profile_db is not None
    assert not settings.profile_db.exists()


def test_predictions_are_those_of_the_analytic_model(settings: OptimizeSettings) -> None:
    result = optimize(fire(), settings)
    gpu = gpu_named("v100")
    assert gpu is not None
    cost = AnalyticCost(fire().graph, gpu, "fp32")
    assert result.predicted_us == pytest.approx(cost.schedule_latency_us(result.schedule))
    assert result.sequential_us == pytest.approx(cost.schedule_latency_us(sequential(fire().graph)))
    assert result.greedy_us == pytest.approx(cost.schedule_latency_us(greedy(fire().graph)))
    assert result.predicted_us <= min(result.sequential_us, result.greedy_us)
    assert result.optimal
    assert (result.proven, result.gap, result.gap_of) == ("whole", 0, "whole")
    assert result.document.proven == "whole"


def test_each_operator_and_each_merged_stage_counts_as_a_kernel(settings: OptimizeSettings) -> None:
    result = optimize(fire(), settings)
    merged = [stage for stage in result.schedule.stages if stage.strategy is Strategy.MERGE]
    saved = sum(len(stage.operators) - 1 for stage in merged)
    assert merged
    assert result.kernels_before == len(fire().graph.operators)
    assert result.kernels_after == result.kernels_before - saved


def test_the_sequential_strategy_ships_the_sequential_schedule(settings: OptimizeSettings) -> None:
    result = optimize(fire(), replace(settings, strategy="sequential"))
    assert result.shipped == result.document.shipped == "sequential"
    assert result.predicted_us == result.sequential_us
    assert (result.gap, result.gap_of, result.proven, result.optimal) == (None, None, None, False)
    assert not any(block.optimal for block in result.schedule.blocks)
    assert result.schedule.predicted_us == pytest.approx(result.sequential_us)


def test_the_sequential_schedule_is_optimal_where_no_schedule_is_faster(settings: OptimizeSettings) -> None:
    chain = model_with([helper.make_node("Relu", ["x"], ["h"]), helper.make_node("Exp", ["h"], ["y"])])
    result = optimize(chain, settings)
    assert (result.shipped, result.proven, result.gap) == ("sequential", "whole", 0)
    assert [len(stage.operators) for stage in result.schedule.stages] == [1, 1]
    assert all(block.optimal for block in result.schedule.blocks)


def test_rounding_errors_do_not_count_as_a_gain(settings: OptimizeSettings) -> None:
    result = optimize(zoo_model("light_densenet121"), settings)
    assert (result.shipped, result.proven) == ("sequential", "whole")


def test_dos_searches_groups_of_one_operator_and_is_recorded(settings: OptimizeSettings) -> None:
    found = optimize(fire(), replace(settings, strategy="dos"))
    limited = optimize(fire(), replace(settings, r=1, s=None))
    record = ScheduleDocument.from_json(found.document.to_json()).search
    assert (record.strategy, record.pruning) == ("dos", Limits(1, None))
    assert [stage.groups for stage in found.schedule.stages] == [stage.groups for stage in limited.schedule.stages]
    assert {len(group) for stage in found.schedule.stages for group in stage.groups} == {1}
    assert estimate(fire(), replace(settings, strategy="dos")) == estimate(fire(), replace(settings, r=1, s=None))


def test_precision_is_taken_and_recorded(settings: OptimizeSettings) -> None:
    half = optimize(fire(), replace(settings, precision="fp16"))
    assert half.document.runtime == {"precision": "fp16", "launch": "graph"}
    assert half.predicted_us == pytest.approx(cost_us(half, "fp16"))
    with pytest.raises(UsageError, match="fp32, tf32, fp16"):
        optimize(fire(), replace(settings, precision="int4"))


def streams_us(result: OptimizeResult) -> float:
    gpu = gpu_named("v100")
    assert gpu is not None
    return AnalyticCost(fire().graph, gpu, launches=STREAM_LAUNCHES).schedule_latency_us(result.schedule)


def test_the_launch_is_taken_and_recorded(settings: OptimizeSettings) -> None:
    graphs, streams = (optimize(fire(), replace(settings, launch=launch)) for launch in ("graph", "streams"))
    assert streams.document.runtime == {"precision": "fp32", "launch": "streams"}
    assert graphs.predicted_us == pytest.approx(cost_us(graphs))
    assert streams.predicted_us == pytest.approx(streams_us(streams))
    assert graphs.sequential_us < streams.sequential_us
    with pytest.raises(UsageError, match="unknown launch 'pigeon': choose graph or streams"):
        optimize(fire(), replace(settings, launch="pigeon"))


def test_a_schedule_file_keeps_its_launch(settings: OptimizeSettings) -> None:
    for launch in ("graph", "streams"):
        document = optimize(fire(), replace(settings, launch=launch)).document
        read = ScheduleDocument.from_json(document.to_json())
        older = replace(read, runtime={"precision": "fp32"})
        assert read.launch == recorded(read)[1].launch == launch
        assert older.launch == recorded(older)[1].launch == "streams"  # files from before there was a choice


@pytest.mark.parametrize("strange", ["pigeon", 3, ["graph"], None])
def test_a_schedule_file_with_an_unknown_launch_is_refused_in_words(
    settings: OptimizeSettings, strange: object
) -> None:
    document = replace(optimize(fire(), settings).document, runtime={"precision": "fp32", "launch": strange})
    device, opening = recorded(document)
    with pytest.raises(UsageError, match="unknown launch"):
        device.open(fire(), opening, None)


def test_only_simulated_gpus_have_a_choice_of_launches(settings: OptimizeSettings) -> None:
    says = r"launch='streams' only applies to simulated GPUs\nOmit launch, .*'iosched devices'"
    with pytest.raises(UsageError, match=says):
        optimize(fire(), replace(settings, device="cpu", launch="streams"))


def test_quantized_models_are_refused(settings: OptimizeSettings) -> None:
    pytest.importorskip("onnxruntime")
    model = load_model(quantized(branches()).SerializeToString(), name="branches")
    with pytest.raises(UsageError, match=r"V100.* floating-point .* 4 of 4 operators .*\n.*the floating-point model"):
        optimize(model, settings)


def test_gpus_without_tf32_refuse_it_by_name(settings: OptimizeSettings) -> None:
    v100 = replace(settings, device="v100", precision="tf32")
    for job in (optimize, estimate):
        with pytest.raises(
            UsageError, match=r"V100-SXM2-16GB does not support tf32, .* 8\.0: use --precision fp32 or fp16"
        ):
            job(fire(), v100)
    assert optimize(fire(), replace(v100, device="a100")).document.precision == "tf32"


def test_the_same_input_gives_the_same_bytes(settings: OptimizeSettings) -> None:
    assert optimize(fire(), settings).document.to_json() == optimize(fire(), settings).document.to_json()


def test_a_spent_budget_still_gives_a_schedule_no_worse_than_sequential(settings: OptimizeSettings) -> None:
    result = optimize(fire(), replace(settings, budget_s=1e-9))
    assert not result.optimal
    assert cost_us(result) <= result.sequential_us
    result.document.validate_for(fire().graph, fire().digest, fire().bindings)


def test_exhaustive_finds_the_same_latency(settings: OptimizeSettings) -> None:
    lazy, every = optimize(fire(), settings), optimize(fire(), replace(settings, exhaustive=True))
    assert every.predicted_us == pytest.approx(lazy.predicted_us)
    assert every.signatures > lazy.signatures


def test_the_schedule_runs_on_the_cpu_and_computes_the_same(settings: OptimizeSettings) -> None:
    model = fire()
    document = optimize(model, settings).document
    inputs = random_inputs(model.graph.inputs)
    executor = open_executor(model, document, threads=2)
    with Reference(model) as reference:
        assert compare(executor.run(inputs), reference.run(inputs)).passed
    executor.close()


def test_the_estimate_needs_no_measurements(settings: OptimizeSettings) -> None:
    found = estimate(fire(), settings)
    assert (found.cost, found.measurements, found.seconds) == ("analytic", 0, 0.0)
    assert sum(block.operators for block in found.blocks) == len(fire().graph.operators)
    assert all(block.known == 0 for block in found.blocks)
