"""Nodes of captured graphs are counted: cuDNN adds kernels to those of the plan."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import desk_cudnn
import desk_cupy
import pytest
from scripted import fire

from iosched.profiler.devices.cuda.attached import attach
from iosched.profiler.devices.cuda.cudnn_plans import KnownCudnnPlans
from iosched.scheduler.baselines import greedy

_MISSING = desk_cupy.missing()
if _MISSING is None:
    desk_cupy.install()  # before CuPy is imported
    _MISSING = desk_cudnn.missing()
pytestmark = pytest.mark.skipif(_MISSING is not None, reason=_MISSING or "")


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_kernels_that_cudnn_adds_are_counted(
    script: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    model = fire(batch=2)
    with desk_cupy.one_gpu() as desk:
        desk_cudnn.install(monkeypatch, desk)
        backend = attach().backend(model, precision, KnownCudnnPlans({}))
        executor = backend.compile(greedy(model.graph)).executor
        added = sum(plan.workspace_nbytes > 0 for _, plan in executor.cudnn_plans)
        counts = script("gpu_networks").node_counts(executor.graphs)
        assert counts == {"kernel": executor.kernel_count + added}
        executor.close()
    assert (added > 0) == (precision == "fp16")
