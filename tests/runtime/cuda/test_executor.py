"""The executor's launches, events and captures make the plan's order, whatever order they leave open."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from host_cuda import needs_compiler
from host_driver import HostDriver, chooser
from scripted import fire

from iosched.models.model import Model
from iosched.runtime.cuda.executor import CudaExecutor
from iosched.runtime.cuda.kernel import Precision
from iosched.runtime.cuda.lower import LoweringSettings, Network, lower
from iosched.runtime.inputs import random_inputs
from iosched.scheduler.baselines import greedy, sequential

pytestmark = needs_compiler


def expected(model: Model, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    assert isinstance(model.original, bytes)
    session = onnxruntime.InferenceSession(model.original)
    names = [value.name for value in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs), strict=True))


def callers(model: Model, inputs: dict[str, np.ndarray], executor: CudaExecutor) -> dict[str, np.ndarray]:
    del model
    return {view.buffer: inputs[view.buffer.removesuffix("@caller")] for view in executor.inputs}


@pytest.mark.parametrize("barriers", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_every_order_gives_the_same_numbers(seed: int, barriers: bool) -> None:
    model = fire(batch=2)
    inputs = random_inputs(model.graph.inputs)
    network = Network(model, Precision("fp32"))
    for schedule in (sequential(model.graph), greedy(model.graph)):
        driver = HostDriver(seed)
        executor = CudaExecutor(lower(network, schedule, LoweringSettings(barriers=barriers)), driver, chooser(driver))
        executor.poison()
        found = executor.run(callers(model, inputs, executor))
        for name, array in expected(model, inputs).items():
            np.testing.assert_allclose(found.get(name, found.get(f"{name}@caller")), array, rtol=1e-4, atol=1e-5)
