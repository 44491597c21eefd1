"""On a GPU every network computes what onnxruntime computes, under every strategy, and again the same bits."""

from __future__ import annotations

import numpy as np
import pytest
from gpu_plans import expected_outputs, random_schedule, relative_error
from light import NAMES, light_model

from iosched.models import zoo
from iosched.models.load import load_model
from iosched.models.model import Model
from iosched.profiler.cuda_device import AttachedGpu
from iosched.runtime.inputs import random_inputs
from iosched.scheduler.baselines import greedy, sequential
from iosched.scheduler.schedule import Schedule

TOLERANCE = {"fp32": 1e-4, "tf32": 2e-2, "fp16": 2e-2}
REPETITIONS = 100


def schedules(model: Model) -> dict[str, Schedule]:
    graph = model.graph
    return {"sequential": sequential(graph), "greedy": greedy(graph), "random": random_schedule(graph, 7)}


def check(gpu: AttachedGpu, model: Model, precision: str) -> None:
    """Every schedule, with and without barriers, on fresh numbers and poisoned memory."""
    backend = gpu.backend(model, precision)
    for number, (name, schedule) in enumerate(schedules(model).items()):
        for barriers in (True, False):
            compiled = backend.compile(schedule, barriers=barriers)
            inputs = random_inputs(model.graph.inputs, seed=2 * number + barriers)
            compiled.executor.poison()
            found = compiled.run(inputs)
            error = relative_error(found, expected_outputs(model, inputs))
            assert error < TOLERANCE[precision], f"{name}, barriers {barriers}: {error}"


@pytest.mark.parametrize("precision", ["fp32", "tf32", "fp16"])
@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("name", zoo.names())
def test_bundled_networks(gpu: AttachedGpu, name: str, batch: int, precision: str) -> None:
    check(gpu, load_model(zoo.build(name).SerializeToString(), name=name, batch_size=batch), precision)


@pytest.mark.parametrize("name", NAMES)
def test_light_models(gpu: AttachedGpu, name: str) -> None:
    check(gpu, load_model(light_model(name).SerializeToString(), name=name), "fp32")


@pytest.mark.parametrize("barriers", [True, False])
@pytest.mark.parametrize("name", ["squeezenet", "inception_v3", "randwire", "nasnet_a"])
def test_repetitions_are_equal_to_the_bit(gpu: AttachedGpu, name: str, barriers: bool) -> None:
    """An error that moves is a race."""
    model = load_model(zoo.build(name).SerializeToString(), name=name, batch_size=1)
    compiled = gpu.backend(model, "fp32").compile(greedy(model.graph), barriers=barriers)
    inputs = random_inputs(model.graph.inputs, seed=1)
    first = compiled.run(inputs)
    for _ in range(REPETITIONS):
        compiled.executor.poison()
        for key, array in compiled.run(inputs).items():
            np.testing.assert_array_equal(array, first[key])
