"""A kernel that runs alone is compared with its numpy reference: it writes all of its outputs and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from host_cuda import needs_compiler
from host_driver import HostChoice, HostDriver
from onnx import helper
from small_models import loaded, proto_of, sliced

from iosched.models.errors import ExecutionError
from iosched.models.model import Model
from iosched.runtime.compare import Check
from iosched.runtime.cuda.backend import CudaBackend
from iosched.runtime.cuda.kernel import CudaCall, Kernel, Pointer, Precision
from iosched.runtime.cuda.kernels.add import AddN
from iosched.runtime.cuda.samples import CUDNN_SAMPLES, SAMPLES, sample
from iosched.runtime.plan import View
from iosched.scheduler.baselines import sequential

pytestmark = needs_compiler


def checks(model: Model, kind: str, stand_in: Kernel | None = None) -> list[Check]:
    """Checks each task of one kind, optionally with another kernel."""
    driver = HostDriver()
    backend = CudaBackend(model, driver, HostChoice(driver), Precision("fp32"))
    lowering = backend.lower(sequential(backend.graph))
    numbers = [number for number, kernel in enumerate(lowering.kernels) if type(kernel).__name__ == kind]
    if stand_in is not None:
        kernels = [stand_in if number in numbers else kernel for number, kernel in enumerate(lowering.kernels)]
        lowering = replace(lowering, kernels=tuple(kernels))
    tasks = [task for task in lowering.plan.tasks if task.kernel in numbers]
    found = [backend.check_kernel(lowering, task, rtol=1e-4) for task in tasks]
    assert driver.mistakes == []
    assert driver.pending == []
    return found


@pytest.mark.parametrize("name", ["Copy", "Where", "Resize"])
def test_a_correct_kernel_passes(name: str) -> None:
    (check,) = checks(sample(SAMPLES[name]), name)
    assert check.passed, check.reasons


@pytest.mark.parametrize("name", ["Conv", "Dense"])
def test_a_cudnn_plan_passes(name: str) -> None:
    (check,) = checks(sample(CUDNN_SAMPLES[name]), name)
    assert check.passed, check.reasons


def test_a_kernel_that_computes_wrong_values_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    right = AddN.call

    def call(self: AddN, reads: Sequence[View], writes: Sequence[View]) -> CudaCall:
        found = right(self, reads, writes)
        assert "x0 + x1" in found.source
        return replace(found, source=found.source.replace("x0 + x1", "x0 - x1"))

    monkeypatch.setattr(AddN, "call", call)
    (check,) = checks(sample(SAMPLES["AddN"]), "AddN")
    assert not check.passed
    assert "'y' differs by" in check.reasons[0]


@dataclass(frozen=True)
class Ones:
    """Writes ones into the first `count` floats of its result, as if it were contiguous."""

    count: int

    def interpret(self, reads: Sequence[Any], writes: Sequence[np.ndarray]) -> None:
        writes[0][...] = 1

    def call(self, reads: Sequence[View], writes: Sequence[View]) -> CudaCall:
        source = 'extern "C" __global__ void ones(float* y) { y[blockIdx.x] = 1; }'
        return CudaCall(source, "ones", (self.count, 1, 1), (1, 1, 1), (Pointer(len(reads)),))


def test_unwritten_outputs_are_detected() -> None:
    (whole,), (half,) = (checks(sample(SAMPLES["Unary"]), "Unary", Ones(count)) for count in (6864, 3432))
    assert whole.passed
    assert not half.passed
    assert "NaN" in half.reasons[0]


def test_writes_outside_the_output_are_detected() -> None:
    """The result is half of the channels of a tensor, so it is not contiguous."""
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Sum", ["v", "v"], ["b"]),
        helper.make_node("Concat", ["a", "b"], ["y"], axis=1),
    ]
    shape = (1, 4, 2, 2)
    (check,) = checks(loaded(proto_of(nodes, {"x": shape, "v": shape}, ["y"])), "Unary", Ones(32))
    assert check.max_rel == 0
    assert not check.passed
    assert "wrote bytes outside it" in check.reasons[0]


def test_an_operator_that_onnxruntime_runs_is_refused() -> None:
    with pytest.raises(ExecutionError, match="onnxruntime"):
        checks(sliced(), "Session")
