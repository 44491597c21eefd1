"""The samples have a call of each kernel, in each precision that has a different one."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pkgutil import iter_modules

import numpy as np
import pytest
from host_driver import HostChoice, HostDriver

from iosched.models.model import Model
from iosched.runtime.cuda import kernels
from iosched.runtime.cuda.backend import CudaBackend
from iosched.runtime.cuda.kernel import CudnnKernel, JoinNode, Precision, SessionKernel, SourceKernel
from iosched.runtime.cuda.lower.lowering import Lowering
from iosched.runtime.cuda.samples import CUDNN_SAMPLES, SAMPLES, THREE_GROUPS, sample
from iosched.runtime.plan import PlanTask
from iosched.scheduler.baselines import greedy, sequential
from iosched.scheduler.precision import PRECISIONS

ALL = {**SAMPLES, **CUDNN_SAMPLES}


def lowered(model: Model, precision: str) -> Lowering:
    driver = HostDriver()
    backend = CudaBackend(model, driver, HostChoice(driver), Precision(precision))  # type: ignore[arg-type]
    return backend.lower_fused(sequential(backend.graph))


def tasks_of(lowering: Lowering, kernel: str) -> list[PlanTask]:
    return [task for task in lowering.plan.tasks if type(lowering.kernels[task.kernel]).__name__ == kernel]


def kernel_classes(member: str) -> Iterator[str]:
    """Classes of the kernels' files that have such a method, besides `interpret`."""
    for found in iter_modules(kernels.__path__):
        for name, each in vars(import_module(f"{kernels.__name__}.{found.name}")).items():
            if isinstance(each, type) and not name.startswith("_") and {"interpret", member} <= set(dir(each)):
                yield name


def test_every_kernel_has_a_sample() -> None:
    assert set(kernel_classes("call")) - {"SourceKernel"} == set(SAMPLES)
    assert set(kernel_classes("build")) - {"CudnnKernel"} == set(CUDNN_SAMPLES)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", ALL)
def test_a_sample_is_lowered_to_its_kernel(name: str, precision: str) -> None:
    lowering = lowered(sample(ALL[name]), precision)
    assert not any(isinstance(kernel, SessionKernel) for kernel in lowering.kernels)
    tasks = tasks_of(lowering, name)
    # cuDNN has no engine for the one, and a slow one for the other.
    only = {"MatMul": ("tf32", "fp16"), "DenseRow": ("fp32",)}
    assert bool(tasks) == (precision in only.get(name, PRECISIONS))
    kind = SourceKernel if name in SAMPLES else CudnnKernel
    assert all(isinstance(lowering.kernels[task.kernel], kind) for task in tasks)


def test_weights_are_the_same_each_time() -> None:
    first, second = (sample(SAMPLES["ScaleShift"]) for _ in range(2))
    assert set(first.weights) == {"w", "wb", "wm", "wv"}
    for name, array in first.weights.items():
        np.testing.assert_array_equal(array, second.weights[name])
        assert (array > 0).all()


def test_three_groups_run_side_by_side_in_kernels_of_our_own() -> None:
    driver = HostDriver()
    backend = CudaBackend(sample(THREE_GROUPS), driver, HostChoice(driver), Precision("fp32"))
    lowering = backend.lower(greedy(backend.graph))
    assert len(lowering.plan.lanes) == 3
    assert all(len(lane) >= 2 for lane in lowering.plan.lanes)
    assert all(isinstance(kernel, SourceKernel | JoinNode) for kernel in lowering.kernels)
