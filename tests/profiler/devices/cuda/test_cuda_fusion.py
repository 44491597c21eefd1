"""A search on a GPU finds out where a depthwise and a pointwise convolution are one kernel, and a schedule keeps it."""

from __future__ import annotations

from pathlib import Path

import pytest
from gpu_plans import expected_outputs, relative_error
from host_cuda import needs_compiler
from host_gpu import attach_host, time_by_size
from separables import separables

import iosched.jobs.run as run_module
from iosched.jobs.optimize import optimize
from iosched.jobs.settings import OptimizeSettings
from iosched.runtime.inputs import random_inputs
from iosched.scheduler.document import ScheduleDocument


@needs_compiler
def test_found_kept_and_run_without_timing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attach_host(monkeypatch)
    time_by_size(monkeypatch)
    model = separables()
    result = optimize(model, OptimizeSettings(device="cuda", profile_db=tmp_path / "p.db"))
    document = ScheduleDocument.from_json(result.document.to_json())
    plans = document.runtime["cudnn_plans"]
    assert isinstance(plans, dict)
    fused = {text for key, text in plans.items() if key.startswith("fused ")}
    assert fused == {"one kernel, variant 0"}
    executor = run_module.open_executor(model, document, device="cuda:0")
    assert f"{result.kernels_after} kernels" in executor.description
    inputs = random_inputs(model.graph.inputs)
    assert relative_error(executor.run(inputs), expected_outputs(model, inputs)) < 1e-4
