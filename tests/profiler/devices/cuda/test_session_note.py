"""`optimize`, `run` and `bench` name the operators without a CUDA kernel and report their time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gpu_plans import expected_outputs
from host_cuda import needs_compiler
from host_gpu import OnDevice, attach_host, on_host
from scripted import fire
from small_models import sliced

from iosched.jobs import run as run_module
from iosched.jobs.bench import bench
from iosched.jobs.optimize import optimize
from iosched.jobs.settings import OptimizeSettings
from iosched.models.errors import UsageError
from iosched.runtime.cuda.execute.executor import CudaExecutor
from iosched.runtime.inputs import random_inputs

pytestmark = needs_compiler

SENTENCE = "Outside the CUDA graph: LpNormalization 'n', TopK 'top' in onnxruntime on the CPU, 30 of 200 µs (15%)."


@pytest.fixture(autouse=True)
def attached(monkeypatch: pytest.MonkeyPatch) -> None:
    attach_host(monkeypatch)
    samples = iter([(30.0, 200.0), (31.0, 210.0), (29.0, 190.0), (900.0, 1000.0), (1.0, 100.0)] * 9)
    monkeypatch.setattr(CudaExecutor, "time_sessions", lambda self: next(samples))


@pytest.mark.slow
def test_optimize_reports_the_time_outside_the_graph(tmp_path: Path) -> None:
    settings = OptimizeSettings(device="cuda", profile_db=tmp_path / "p.db", strategy="greedy", barriers="stage")
    assert SENTENCE in optimize(sliced(), settings).notes
    assert not any("Outside" in note for note in optimize(fire(), settings).notes)


def test_run_reports_the_time_outside_the_graph_and_reads_gpu_arrays() -> None:
    model = sliced()
    executor = run_module.open_executor(model, None, device="cuda")
    inputs = random_inputs(model.graph.inputs)
    executor.run(inputs)
    assert executor.notes == (SENTENCE,)
    found = executor.run_on_device({name: OnDevice(array) for name, array in inputs.items()})
    np.testing.assert_allclose(on_host(found["t"]), expected_outputs(model, inputs)["t"], rtol=1e-5)


def test_bench_reports_the_time_outside_the_graph(tmp_path: Path) -> None:
    found = bench(sliced(), None, names=["sequential"], device="cuda", rounds=2, profile_db=tmp_path / "p.db")
    assert SENTENCE in found.notes


def test_on_the_cpu_there_are_no_notes_and_gpu_arrays_are_refused() -> None:
    executor = run_module.open_executor(fire(), None, device="cpu")
    assert executor.notes == ()
    with pytest.raises(UsageError, match="device='cuda'"):
        executor.run_on_device({})
    executor.close()
