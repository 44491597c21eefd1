"""On a GPU the kernel that does a depthwise and a pointwise convolution computes in networks what two kernels do."""

from __future__ import annotations

from typing import ClassVar

import pytest
from attached import IS_DESK
from gpu_plans import expected_outputs, relative_error
from separables import separables

from iosched.models import zoo
from iosched.models.load import load_model
from iosched.profiler.cuda_device import AttachedGpu
from iosched.runtime.inputs import random_inputs
from iosched.scheduler.baselines import greedy

TOLERANCE = {"fp32": 1e-4, "tf32": 2e-2, "fp16": 2e-2}


class OneKernel:
    """Says so wherever it is asked; cuDNN's first guesses will do."""

    times: ClassVar[bool] = False

    def choice(self, key: str) -> str | None:
        return "one kernel, variant 0" if key.startswith("fused ") else None

    def choose(self, key: str, value: str) -> str:
        del key
        return value

    def plan(self, key: str, name: str) -> bytes | None:
        del key, name
        return None

    def keep_plan(self, key: str, name: str, content: bytes) -> None:
        pass


@pytest.mark.parametrize("precision", ["fp32", "tf32", "fp16"])
@pytest.mark.parametrize("name", ["randwire", "nasnet_a"])
def test_one_kernel_for_two(gpu: AttachedGpu, name: str, precision: str) -> None:
    model = separables() if IS_DESK else load_model(zoo.build(name).SerializeToString(), name=name)
    compiled = gpu.backend(model, precision, OneKernel()).compile(greedy(model.graph))
    assert any(key.startswith("fused ") for key in compiled.cudnn_plans)
    for seed in (1, 2):
        inputs = random_inputs(model.graph.inputs, seed=seed)
        compiled.executor.poison()
        assert relative_error(compiled.run(inputs), expected_outputs(model, inputs)) < TOLERANCE[precision]
    compiled.close()
