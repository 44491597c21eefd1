"""On a GPU every network computes the same as onnxruntime, under every strategy, and the same bits in every run.

onnxruntime runs once for each model and batch size; cuDNN's first guesses are used as its plans.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
import pytest
from gpu_kernels import IS_DESK
from gpu_plans import merged_schedule, relative_error
from lowering import random_schedule
from scripted import fire
from small_models import LINE, SOLID, conv_network

from iosched.jobs.optimize import optimize
from iosched.jobs.optimizing import in_flight
from iosched.jobs.run import open_executor
from iosched.jobs.settings import OptimizeSettings
from iosched.models import zoo
from iosched.models.load import load_model
from iosched.models.model import Model
from iosched.models.zoo.light import NAMES, light_model
from iosched.profiler.devices.analytic.analytic_cost import AnalyticCost
from iosched.profiler.devices.cuda.attached import AttachedGpu
from iosched.profiler.devices.cuda.cudnn_plans import KnownCudnnPlans
from iosched.profiler.devices.gpus import gpu_named
from iosched.profiler.measuring import interleaved_models
from iosched.runtime.cuda.backend import CudaModel
from iosched.runtime.cuda.layout import Layout
from iosched.runtime.executor import Requests
from iosched.runtime.inputs import random_inputs
from iosched.runtime.reference import Reference
from iosched.scheduler.baselines import greedy, sequential
from iosched.scheduler.effort import Effort
from iosched.scheduler.schedule import Schedule
from iosched.scheduler.search import search

TOLERANCE = {"fp32": 1e-4, "tf32": 2e-2, "fp16": 2e-2}
REPETITIONS = {} if IS_DESK else {"greedy": 100, "both": 20, "random": 20}  # greedy has most side by side
BARRIERS = (False,) if IS_DESK else (True, False)

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True, eq=False)
class Case:
    """A model, and pairs of inputs and the outputs of onnxruntime."""

    model: Model
    pairs: tuple[tuple[Arrays, Arrays], ...]

    @staticmethod
    def of(model: Model) -> Case:
        given = [random_inputs(model.graph.inputs, seed=seed) for seed in (1, 2)]
        with Reference(model) as reference:
            return Case(model, tuple((inputs, reference.run(inputs)) for inputs in given))

    @property
    def largest(self) -> float:
        """The largest number in an output."""
        return max(float(np.abs(array).max()) for _, expected in self.pairs for array in expected.values())

    @cached_property
    def schedules(self) -> dict[str, Schedule]:
        """Of every kind; the one of strategy `both` is found with the analytic model of an H100."""
        graph, spec = self.model.graph, gpu_named("h100")
        assert spec is not None
        return {
            "sequential": sequential(graph),
            "greedy": greedy(graph),
            "merge": merged_schedule(graph),
            "both": search(graph, AnalyticCost(graph, spec), effort=Effort(tolerance=0.05)).schedule,
            "random": random_schedule(graph, 7),
        }


@lru_cache(maxsize=1)
def bundled(name: str, batch: int) -> Case:
    return Case.of(load_model(zoo.build(name).SerializeToString(), name=name, batch_size=batch))


@lru_cache(maxsize=1)
def light(name: str) -> Case:
    return Case.of(load_model(light_model(name).SerializeToString(), name=name))


def check(gpu: AttachedGpu, case: Case, precision: str, layout: Layout | None = None) -> None:
    """Every schedule, with and without barriers, on different inputs and poisoned memory."""
    if precision == "fp16" and case.largest > np.finfo(np.float16).max:
        pytest.skip(f"an output is {case.largest:.0f}, more than fp16 can hold")
    backend = gpu.backend(case.model, precision, KnownCudnnPlans({}), layout)
    for name, schedule in case.schedules.items():
        for barriers in BARRIERS:
            compiled = backend.compile(schedule, barriers=barriers)
            for inputs, expected in case.pairs:
                compiled.executor.poison()
                error = relative_error(compiled.run(inputs), expected)
                assert error < TOLERANCE[precision], f"{name}, barriers {barriers}: {error}"
            repeat(compiled, case.pairs[-1][0], REPETITIONS.get(name, 1), f"{name}, barriers {barriers}")
            compiled.close()


def repeat(compiled: CudaModel, inputs: Arrays, times: int, what: str) -> None:
    """Outputs that change between runs are a race."""
    first = compiled.run(inputs)
    for _ in range(times):
        compiled.executor.poison()
        compiled.executor.launch()
        for key, array in compiled.executor.download().items():
            name = key.removesuffix("@caller")
            assert array.tobytes() == first[name].tobytes(), what


@pytest.mark.parametrize("precision", ["fp32", "tf32", "fp16"])
@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("name", zoo.names())
def test_bundled_networks(gpu: AttachedGpu, name: str, batch: int, precision: str) -> None:
    check(gpu, bundled(name, batch), precision)


@pytest.mark.parametrize("precision", ["fp32", "tf32", "fp16"])
@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("name", NAMES)
def test_light_models(gpu: AttachedGpu, name: str, layout: Layout, precision: str) -> None:
    check(gpu, light(name), precision, layout)


@pytest.mark.parametrize("precision", ["fp32", "tf32", "fp16"])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("space", [LINE, SOLID], ids=["line", "solid"])
def test_convolutions_of_lines_and_solids(gpu: AttachedGpu, space: tuple[int, ...], batch: int, precision: str) -> None:
    check(gpu, Case.of(conv_network(space, batch)), precision)


@pytest.mark.parametrize("strategy", ["concurrent", "merge", "both"])
def test_a_searched_schedule_runs_from_its_document(gpu: AttachedGpu, tmp_path: Path, strategy: str) -> None:
    """Measured, written, and run from the document alone."""
    case = Case.of(fire()) if IS_DESK else bundled("squeezenet", 1)
    settings = OptimizeSettings(device="cuda", strategy=strategy, profile_db=tmp_path / "p.db")
    found = optimize(case.model, settings)
    assert found.device_name == gpu.name
    executor = open_executor(case.model, found.document, device="cuda")
    for inputs, expected in case.pairs:
        assert relative_error(executor.run(inputs), expected) < TOLERANCE["fp32"]


@pytest.mark.parametrize("schedule", ["sequential", "greedy"])
def test_requests_in_flight(gpu: AttachedGpu, schedule: str) -> None:
    """Each of several threads gets the bits that its inputs give in a run alone."""
    case, at_once = light("squeezenet"), 2 if IS_DESK else 8
    given = [random_inputs(case.model.graph.inputs, seed=seed) for seed in range(2 * at_once)]
    backend = gpu.backend(case.model, "fp32", KnownCudnnPlans({}))
    alone = backend.compile(case.schedules[schedule])
    expected = [alone.run(inputs) for inputs in given]
    requests = Requests(backend.compile_in_flight(case.schedules[schedule], at_once))
    assert requests.in_flight == at_once
    with ThreadPoolExecutor(at_once) as callers:
        for _ in range(1 if IS_DESK else 50):
            for found, right in zip(callers.map(requests.run, given), expected, strict=True):
                assert {name: each.tobytes() for name, each in found.items()} == {
                    name: each.tobytes() for name, each in right.items()
                }
    requests.close()


def test_throughput_is_measured(gpu: AttachedGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case.of(fire()) if IS_DESK else bundled("squeezenet", 1)
    if IS_DESK:
        monkeypatch.setattr(interleaved_models, "RATE_SECONDS", 1e-6)
        monkeypatch.setattr(in_flight, "COUNTS", (1, 2))
    settings = OptimizeSettings(device="cuda", objective="throughput", strategy="greedy", profile_db=tmp_path / "p.db")
    found = optimize(case.model, settings)
    assert found.check is not None
    assert found.check.passed
    executor = open_executor(case.model, found.document, device="cuda")
    assert executor.in_flight == (1 if found.document.teams is None else found.document.teams.requests)
    for inputs, expected in case.pairs:
        assert relative_error(executor.run(inputs), expected) < TOLERANCE["fp32"]
