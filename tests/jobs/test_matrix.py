"""Every schedule on every target: a target's own schedule is the best there, by latencies of the cost model."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from host_cuda import needs_compiler
from host_gpu import attach_host, time_by_size
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import zoo_model
from onnx import TensorProto, helper
from scripted import fire, model_with, script_stages
from small_models import proto_of

from iosched.jobs import schedules
from iosched.jobs.matrix import MatrixResult, MatrixSettings, matrix
from iosched.models.errors import DeviceError, UsageError
from iosched.models.load import load_model
from iosched.models.model import Model
from iosched.profiler.devices.analytic.analytic_cost import AnalyticCost
from iosched.profiler.devices.cpu.measured_cost import CpuStageCost
from iosched.profiler.devices.gpus import gpu_keys, gpu_named
from iosched.runtime.cpu.backend import CpuBackend
from iosched.scheduler.baselines import greedy, sequential
from iosched.scheduler.pruning import Pruning
from iosched.scheduler.search import SearchResult, search


@cache
def squeezenet(batch_size: int) -> Model:
    return zoo_model("squeezenet", batch_size)


def batches(*sizes: int) -> list[tuple[int, Model]]:
    return [(size, squeezenet(size)) for size in sizes]


def cost_of(result: MatrixResult, index: int, model: Model) -> AnalyticCost:
    gpu = gpu_named(result.targets[index].device)
    assert gpu is not None
    return AnalyticCost(model.graph, gpu)


@pytest.mark.slow
@settings(max_examples=12)
@given(
    devices=st.sets(st.sampled_from(gpu_keys()), min_size=2, max_size=4).map(sorted),
    sizes=st.sets(st.sampled_from((1, 3, 32)), min_size=1, max_size=2).map(sorted),
    pruning=st.sampled_from(((1, 2), (3, 8), (None, None))),
    strategy=st.sampled_from(("both", "concurrent", "merge")),
)
def test_no_schedule_loses_to_another_on_its_own_target(devices, sizes, pruning, strategy) -> None:
    models = [(size, fire(size)) for size in sizes]
    result = matrix(models, MatrixSettings(tuple(devices), strategy=strategy, r=pruning[0], s=pruning[1]))
    assert len(result.targets) == len(devices) * len(sizes)
    for own, row in enumerate(result.latency_us):
        assert all(row[own] <= latency_us * (1 + 1e-9) for latency_us in row)
        assert result.targets[own].taken_from is None


@pytest.mark.slow
def test_the_diagonal_is_the_best_for_all_gpus_on_a_network_where_they_disagree() -> None:
    result = matrix(batches(1), MatrixSettings(gpu_keys()))
    for own, row in enumerate(result.latency_us):
        assert row[own] == pytest.approx(min(row), rel=1e-9)
    assert max(max(row) / min(row) for row in result.latency_us) > 1.01
    assert {target.proven for target in result.targets} == {"whole"}


def test_targets_are_ordered_by_device_and_then_by_batch_size() -> None:
    result = matrix(batches(1, 8), MatrixSettings(("V100", "k80", "v100")))
    assert [(t.device, t.batch_size) for t in result.targets] == [("v100", 1), ("v100", 8), ("k80", 1), ("k80", 8)]
    assert {target.cost for target in result.targets} == {result.cost} == {"analytic"}


def test_rows_are_execution_targets_and_columns_are_optimization_targets() -> None:
    result = matrix(batches(1, 8), MatrixSettings(("v100",)))
    for executed, model in enumerate((squeezenet(1), squeezenet(8))):
        cost = cost_of(result, executed, model)
        for optimized, target in enumerate(result.targets):
            assert result.latency_us[executed][optimized] == cost.schedule_latency_us(target.schedule)
        assert result.targets[executed].sequential_us == cost.schedule_latency_us(sequential(model.graph))
    assert result.slowdown(0, 1) == result.latency_us[0][1] / result.latency_us[0][0]
    known = result.intervals[0][1]
    assert known is not None
    assert known.slowdown.value == pytest.approx(result.slowdown(0, 1))
    assert known.slowdown.value > 1.001


def test_computed_latencies_have_intervals_and_measured_ones_have_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script_stages(monkeypatch)
    result = matrix([(1, fire(1))], MatrixSettings(("cpu", "v100"), threads=2, profile_db=tmp_path / "p.db"))
    assert result.intervals[0] == (None, None)
    assert result.targets[0].speedup is None
    assert not result.is_equal(0, 1)
    v100 = result.targets[1]
    for column, known in enumerate(result.intervals[1]):
        assert known is not None
        assert known.latency_us.value == pytest.approx(result.latency_us[1][column])
        assert known.slowdown.value == pytest.approx(result.slowdown(1, column))
    assert result.is_equal(1, 1)
    assert v100.speedup is not None
    assert v100.speedup.value == pytest.approx(v100.sequential_us / result.latency_us[1][1])


def test_the_schedule_of_a_target_is_the_one_that_the_search_finds() -> None:
    result = matrix(batches(8), MatrixSettings(("k80", "v100"), r=1, s=3))
    cost = cost_of(result, 1, squeezenet(8))
    assert result.targets[1].schedule == search(squeezenet(8).graph, cost, pruning=Pruning(1, 3)).schedule


def test_gpus_are_costed_in_the_given_precision() -> None:
    plain, half = (matrix(batches(32), MatrixSettings(("h100",), precision=p)) for p in ("fp32", "fp16"))
    assert half.latency_us[0][0] < plain.latency_us[0][0]


def test_a_worse_search_result_is_replaced_by_that_of_another_target(monkeypatch: pytest.MonkeyPatch) -> None:
    def poor_on_v100(graph, cost, **options) -> SearchResult:
        if cost.gpu.key != "v100":
            return search(graph, cost, **options)
        worse = max((sequential(graph), greedy(graph)), key=cost.schedule_latency_us)
        return SearchResult(worse, 0, 0, 0, 0, 0.0)

    monkeypatch.setattr(schedules, "search", poor_on_v100)
    result = matrix(batches(1), MatrixSettings(("v100", "h100")))
    v100, h100 = result.targets
    assert (v100.taken_from, h100.taken_from) == (1, None)
    assert v100.schedule == h100.schedule
    assert not v100.optimal
    assert result.latency_us[0][0] == result.latency_us[0][1]
    assert result.latency_us[1][0] == result.latency_us[1][1]


def test_the_cpu_is_measured_and_its_schedules_are_costed_on_gpus_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = script_stages(monkeypatch)
    wanted = MatrixSettings(("cpu", "v100"), threads=2, profile_db=tmp_path / "p.db")
    models = [(1, fire(1)), (2, fire(2))]
    result = matrix(models, wanted)
    assert result.cost == "mixed"
    assert [target.cost for target in result.targets] == ["measured", "measured", "analytic", "analytic"]
    names = sorted(operator.name for operator in models[0][1].graph.operators)
    for own, target in enumerate(result.targets):
        assert sorted(name for stage in target.schedule.stages for name in stage.operators) == names
        assert result.latency_us[own][own] == min(result.latency_us[own])
    count = len(measured)
    assert count > 0
    assert matrix(models, wanted) == result
    assert len(measured) == count


def test_interference_with_measurements_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script_stages(monkeypatch)
    monkeypatch.setattr(CpuStageCost, "remarks", ("Other processes interfered.",))
    result = matrix([(1, fire())], MatrixSettings(("cpu", "v100"), threads=2, profile_db=tmp_path / "p.db"))
    assert [target.notes for target in result.targets] == [("Other processes interfered.",), ()]


def test_schedules_of_the_cpu_name_single_operators_even_if_it_fuses_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script_stages(monkeypatch)
    nodes = [
        helper.make_node("Mul", ["x", "k"], ["s"]),
        helper.make_node("Sigmoid", ["s"], ["g"]),
        helper.make_node("Mul", ["x", "g"], ["y"]),
    ]
    quick_gelu = proto_of(nodes, {"x": [4, 4]}, ["y"], {"k": np.float32([1.702])})
    model = load_model(quick_gelu.SerializeToString(), name="quick_gelu")
    result = matrix([(1, model)], MatrixSettings(("cpu", "v100"), threads=2, profile_db=tmp_path / "p.db"))
    with CpuBackend(model, lanes=2) as backend:
        assert len(backend.graph.operators) < len(model.graph.operators)
    for target in result.targets:
        assert [name for stage in target.schedule.stages for name in stage.operators] == ["s", "g", "y"]


@needs_compiler
def test_an_attached_gpu_is_measured_alongside_simulated_devices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attach_host(monkeypatch)
    time_by_size(monkeypatch)
    models = [(size, fire(size)) for size in (1, 2)]
    result = matrix(models, MatrixSettings(("cuda", "v100"), profile_db=tmp_path / "p.db"))
    names = [(target.device, target.name, target.batch_size, target.cost) for target in result.targets]
    assert names[:2] == [("cuda:0", "Host 1000", 1, "measured"), ("cuda:0", "Host 1000", 2, "measured")]
    assert [target.cost for target in result.targets[2:]] == ["analytic", "analytic"]
    here = result.targets[0]
    assert 0 < result.latency_us[0][0] == result.latency_us[0][1] < here.sequential_us
    assert all(min(row) == row[own] for own, row in enumerate(result.latency_us))


def test_unknown_devices_and_unsuitable_models_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="v100"):
        matrix(batches(1), MatrixSettings(("v10",)))
    with pytest.raises(DeviceError, match="iosched"):
        matrix(batches(1), MatrixSettings(("cuda:7",)))
    with pytest.raises(UsageError, match="other operators"):
        matrix([(1, squeezenet(1)), (2, fire(2))], MatrixSettings(("v100",)))
    text = model_with([helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT)], TensorProto.STRING)
    with pytest.raises(UsageError, match="without a fixed size"):
        matrix([(1, text)], MatrixSettings(("cpu",), profile_db=tmp_path / "p.db"))
