"""With the objective throughput, a GPU runs several requests at a time; the model or measurements set how many."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from host_cuda import needs_compiler
from host_driver import HostDriver, HostMemory
from host_gpu import HostGpu, attach_host, time_by_size
from hypothesis import given
from hypothesis import strategies as st
from scripted import fire

from iosched.jobs.bench import bench
from iosched.jobs.difference.schedule_difference import compare_schedules
from iosched.jobs.explain import explain_operator
from iosched.jobs.known_stages import known_stages
from iosched.jobs.loading.loaded_model import load
from iosched.jobs.optimize import optimize
from iosched.jobs.optimizing import in_flight
from iosched.jobs.optimizing.in_flight import COUNTS, fewest_near_best
from iosched.jobs.optimizing.result import OptimizeResult
from iosched.jobs.run import open_executor
from iosched.jobs.settings import OptimizeSettings
from iosched.jobs.time_budget import TimeBudget
from iosched.models.errors import DeviceError
from iosched.profiler.devices.analytic.analytic_cost import AnalyticCost
from iosched.profiler.devices.cuda import device as cuda_device
from iosched.profiler.measuring import interleaved_models
from iosched.profiler.measuring.interleaved_models import Budget, measure_rates
from iosched.profiler.measuring.statistics import Measurement, summarize
from iosched.runtime.cuda.backend import CudaBackend
from iosched.runtime.executor import Candidate
from iosched.runtime.inputs import Arrays, random_inputs
from iosched.scheduler.baselines import greedy, sequential
from iosched.scheduler.document import ScheduleDocument
from iosched.scheduler.schedule import Schedule
from iosched.scheduler.teams import Teams

SCHEMA = json.loads((Path(__file__).parents[3] / "docs" / "schedule.schema.json").read_text())


@pytest.fixture
def profile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("IOSCHED_PROFILE_DB", str(tmp_path / "profile.db"))
    return tmp_path / "profile.db"


def optimized(device: str, batch: int = 1, **settings: object) -> OptimizeResult:
    result = optimize(fire(batch), OptimizeSettings(device=device, objective="throughput", **settings))
    jsonschema.validate(json.loads(result.document.to_json()), SCHEMA)
    return replace(result, document=ScheduleDocument.from_json(result.document.to_json()))


def inputs_of(seed: int) -> Arrays:
    return random_inputs(fire().graph.inputs, seed=seed)


def script(monkeypatch: pytest.MonkeyPatch, gain_up_to: int, ours: float = 1.0) -> None:
    """A run takes 100 us, or `ours` times that by the schedule found, divided by the requests up to a limit."""

    def measured(candidates: Mapping[str, Candidate], *_: object, **__: object) -> dict[str, Measurement]:
        rates = {name: 100.0 / min(each.in_flight, gain_up_to) for name, each in candidates.items()}
        return {name: summarize([us * (ours if name == "iosched" else 1.0)] * 8) for name, us in rates.items()}

    monkeypatch.setattr(in_flight, "measure_rates", measured)


@given(
    rates=st.dictionaries(
        st.tuples(st.sampled_from(("sequential", "iosched")), st.sampled_from(COUNTS)), st.floats(1, 100), min_size=1
    )
)
def test_more_requests_are_taken_only_for_a_gain(rates: Mapping[tuple[str, int], float]) -> None:
    chosen, best_us = fewest_near_best(rates), min(rates.values())
    assert rates[chosen] <= best_us / 0.95
    assert all(rates[each] > best_us / 0.95 for each in rates if each[1] < chosen[1])
    assert all(rates[chosen] <= us for each, us in rates.items() if each[1] == chosen[1])


def test_the_analytic_model_sets_the_requests_of_a_simulated_gpu(profile: Path) -> None:
    result = optimized("v100")
    document, teams = result.document, result.document.teams
    assert teams is not None
    assert (result.cost, result.shipped, document.objective) == ("analytic", "iosched", "throughput")
    assert (teams.count, teams.images) == (1, 1)
    assert teams.requests in COUNTS[1:]
    cost = AnalyticCost(fire().graph, result_gpu("v100"))
    ways = {"sequential": sequential(fire().graph), "iosched": document.schedule}
    rates = {(name, count): cost.in_flight_us(way, count) for name, way in ways.items() for count in COUNTS}
    assert teams.requests == fewest_near_best(rates)[1]
    assert result.sequential_us == pytest.approx(rates["sequential", 1])
    assert result.predicted_us == pytest.approx(min(rates[name, teams.requests] for name in ways))
    assert f"is {result.sequential_us / (result.predicted_us or 1):.2f}x as fast" in result.reason
    assert any("never run" in note for note in result.notes)
    assert any(f"{teams.requests} concurrent callers" in note for note in result.notes)
    assert (result.intervals, result.document.proven) == (None, None)


def result_gpu(name: str):
    from iosched.profiler.devices.gpus import gpu_named

    found = gpu_named(name)
    assert found is not None
    return found


def test_a_large_batch_fills_the_gpu_alone(profile: Path) -> None:
    few, many = optimized("v100", 1).document.teams, optimized("v100", 4096).document.teams
    assert few is not None
    assert many is None or many.requests < few.requests


def test_one_request_ships_where_more_gain_nothing(profile: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AnalyticCost, "in_flight_us", lambda cost, schedule, count: 100.0)
    result, plain = optimized("v100"), optimize(fire(), OptimizeSettings(device="v100"))
    assert replace(result.document, objective="latency").to_json() == plain.document.to_json()
    assert (result.reason, result.intervals, result.notes) == (plain.reason, plain.intervals, plain.notes)


def test_its_file_is_shown_explained_compared_and_runs_on_a_cpu(profile: Path) -> None:
    document = optimized("v100").document
    plain = optimize(fire(), OptimizeSettings(device="v100")).document
    explanation = explain_operator(fire(), document, "f1")
    assert explanation.teams == document.teams
    assert known_stages(fire(), document).stages
    remarks = compare_schedules((document, None), (plain, None)).remarks
    assert any(f"Different teams: {document.teams} and None" in remark for remark in remarks)
    with closing(open_executor(fire(), document, device="cpu", threads=2)) as executor:
        assert executor.in_flight == 2
        assert executor.run(inputs_of(0)).keys() == {"gc"}


@needs_compiler
@pytest.mark.parametrize(("gain_up_to", "requests"), [(1, None), (3, 4), (4, 4), (64, 16)])
def test_the_fastest_number_of_requests_ships_on_an_attached_gpu(
    profile: Path, monkeypatch: pytest.MonkeyPatch, gain_up_to: int, requests: int | None
) -> None:
    attach_host(monkeypatch)
    time_by_size(monkeypatch)
    script(monkeypatch, gain_up_to)
    result = optimized("cuda")
    document = result.document
    assert result.shipped == "iosched"
    assert document.teams == (None if requests is None else Teams(requests, 1, 1))
    assert result.check is not None
    assert result.check.passed
    if requests is None:
        plain = optimize(fire(), OptimizeSettings(device="cuda"))
        assert replace(document, objective="latency").to_json() == plain.document.to_json()
        return
    assert result.ratio is not None
    assert result.ratio.of == "sequential/iosched"
    assert result.ratio.value == pytest.approx(min(gain_up_to, requests))
    assert (result.measured_us, result.sequential_us) == (100.0 / min(gain_up_to, requests), 100.0)
    with load(fire(), schedule=document, device="cuda") as model:
        assert model.in_flight == requests
        assert f"{requests} requests at a time" in model.description
        with ThreadPoolExecutor(6) as callers:
            found = list(callers.map(lambda seed: model.run(inputs_of(seed)), range(12)))
    with load(fire(), schedule=replace(document, teams=None), device="cuda") as alone:
        assert alone.in_flight == 1
        for seed, outputs in enumerate(found):
            np.testing.assert_array_equal(outputs["gc"], alone.run(inputs_of(seed))["gc"])


@needs_compiler
def test_requests_that_are_slower_when_compared_do_not_ship(profile: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attach_host(monkeypatch)
    time_by_size(monkeypatch)
    script(monkeypatch, 4, ours=4.1)  # the sequential schedule has another name when it is compared
    result = optimized("cuda")
    assert (result.shipped, result.document.teams) == ("iosched", None)


@needs_compiler
def test_bench_counts_all_requests(profile: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attach_host(monkeypatch)
    time_by_size(monkeypatch)
    script(monkeypatch, 4)
    document = optimized("cuda").document
    result = bench(fire(), document, names=["iosched"], device="cuda", rounds=6)
    assert [(row.name, row.in_flight) for row in result.rows] == [("sequential", 1), ("iosched", 4)]


@needs_compiler
def test_requests_are_measured_and_the_faster_ships(profile: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real measurements on a GPU made of host memory, where several requests gain nothing."""
    attach_host(monkeypatch)
    monkeypatch.setattr(interleaved_models, "RATE_SECONDS", 2e-5)
    seen: list[tuple[str, int]] = []

    def few(candidates: Mapping[str, Candidate], budget: Budget, **named: Callable[[], None]):
        seen.extend((name, each.in_flight) for name, each in candidates.items())
        return measure_rates(candidates, replace(budget, rounds=6, least_rounds=6), **named)

    monkeypatch.setattr(in_flight, "measure_rates", few)
    result = optimized("cuda", barriers="stage", strategy="greedy")
    assert seen[:10] == [(name, count) for name in ("sequential", "iosched") for count in COUNTS]
    assert [name for name, _ in seen[10:]] in ([], ["sequential", "iosched"])
    assert set(result.wholes) >= {"sequential", "iosched"}


class SmallGpu(HostDriver):
    """Its memory holds `most` allocations at a time."""

    most = 1_000_000

    def __init__(self) -> None:
        super().__init__()
        self.live = 0

    def allocate(self, nbytes: int) -> HostMemory:
        if self.live >= self.most:
            raise DeviceError("the GPU is out of memory")
        self.live += 1
        return super().allocate(nbytes)

    def _free(self, *args) -> None:
        self.live -= 1
        super()._free(*args)


@needs_compiler
def test_too_little_memory_gives_fewer_requests_with_one_note(profile: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = SmallGpu()
    monkeypatch.setattr(cuda_device, "attach", lambda index: HostGpu(index, "Host 1000", {"cudnn": "90"}, driver))
    time_by_size(monkeypatch)
    script(monkeypatch, 64)
    document = optimized("cuda").document
    assert document.teams == Teams(16, 1, 1)
    gpu = HostGpu(0, "Host 1000", {"cudnn": "90"}, driver)
    before = driver.live
    models = gpu.backend(fire(), "fp32").compile_in_flight(greedy(fire().graph), 2)
    needed = driver.live - before
    for each in models:
        each.close()
    driver.most = driver.live + needed
    with closing(open_executor(fire(), document, device="cuda")) as executor:
        assert 1 <= executor.in_flight < 16
        (note,) = [each for each in executor.notes if "no memory" in each]
        assert f"{executor.in_flight} of 16 requests" in note
        assert executor.run(inputs_of(0))["gc"].shape == (1, 32, 6, 6)
    driver.most = driver.live + 3 * needed
    result = optimized("cuda", barriers="stage", strategy="greedy")
    assert result.document.teams is None or result.document.teams.requests < 16
    assert len([note for note in result.notes if "no memory" in note]) == 1


@needs_compiler
def test_a_file_for_teams_of_cores_runs_one_request_on_a_gpu(profile: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attach_host(monkeypatch)
    document = replace(
        optimized("v100").document, teams=Teams(4, 1, 1), device={"kind": "cpu", "name": "a CPU"}, cost="measured"
    )
    with closing(open_executor(fire(), document, device="cuda")) as executor:
        assert executor.in_flight == 1


@needs_compiler
def test_a_plan_that_fails_is_left_out(profile: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attach_host(monkeypatch)
    time_by_size(monkeypatch)
    script(monkeypatch, 4)
    whole = CudaBackend.compile_in_flight

    def failing(backend: CudaBackend, schedule: Schedule, count: int, *, barriers: bool = True):
        if count > 1 and any(len(stage.groups) > 1 for stage in schedule.stages):
            raise RuntimeError("a bug in the plan")
        return whole(backend, schedule, count, barriers=barriers)

    monkeypatch.setattr(CudaBackend, "compile_in_flight", failing)
    result = optimized("cuda", strategy="greedy", barriers="stage")
    assert result.document.teams == Teams(4, 1, 1)
    assert all(len(stage.operators) == 1 for stage in result.document.schedule.stages)
    assert any("a bug in the plan" in note for note in result.notes)


@needs_compiler
def test_without_time_one_request_ships_with_a_note(profile: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attach_host(monkeypatch)
    time_by_size(monkeypatch)
    script(monkeypatch, 64)
    result = optimized("cuda", budget_s=1e-3)
    assert result.document.teams is None
    assert len([note for note in result.notes if "use a larger --budget" in note and "requests" in note]) == 1


@needs_compiler
def test_a_plan_that_fails_is_reported_if_the_time_runs_out(profile: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attach_host(monkeypatch)
    time_by_size(monkeypatch)
    script(monkeypatch, 4)
    whole = CudaBackend.compile_in_flight

    def failing(backend: CudaBackend, schedule: Schedule, count: int, *, barriers: bool = True):
        if count == 1:
            return whole(backend, schedule, count, barriers=barriers)
        monkeypatch.setattr(TimeBudget, "remaining_s", lambda *_: 0.0)
        raise RuntimeError("a bug in the plan")

    monkeypatch.setattr(CudaBackend, "compile_in_flight", failing)
    result = optimized("cuda")
    assert result.document.teams is None
    assert any("a bug in the plan" in note for note in result.notes)
    assert any("use a larger --budget" in note for note in result.notes)


@needs_compiler
def test_a_plan_that_fails_is_an_error_with_strict(profile: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attach_host(monkeypatch)
    time_by_size(monkeypatch)

    def failing(candidates: Mapping[str, Candidate], *_: object, **__: object) -> dict[str, Measurement]:
        raise RuntimeError("a bug in the plan")

    monkeypatch.setattr(in_flight, "measure_rates", failing)
    assert any("a bug in the plan" in note for note in optimized("cuda").notes)
    with pytest.raises(RuntimeError, match="a bug in the plan"):
        optimized("cuda", strict=True)
