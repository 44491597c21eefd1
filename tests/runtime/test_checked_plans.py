"""Only checked plans run: whole models and single stages, on every executor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType

import numpy as np
import pytest
from host_driver import HostChoice, HostDriver
from scripted import fire
from small_models import branches, loaded

from iosched.runtime import arena
from iosched.runtime.cpu import library
from iosched.runtime.cpu import lower as cpu_lower
from iosched.runtime.cpu.backend import CompiledModel, CompiledStage, CpuBackend
from iosched.runtime.cpu.native import NativeExecutor
from iosched.runtime.cpu.python_executor import PythonExecutor
from iosched.runtime.cuda.backend import CudaBackend, CudaModel
from iosched.runtime.cuda.execute.executor import CudaExecutor
from iosched.runtime.cuda.kernel import Precision
from iosched.runtime.cuda.lower import lowering as cuda_lower
from iosched.runtime.hazards import HazardError
from iosched.runtime.plan import MemorySpace
from iosched.scheduler.baselines import greedy
from iosched.scheduler.schedule import Stage, Strategy

needs_native = pytest.mark.skipif(not library.available(), reason=f"no compiled executor: {library.missing()}")
Compiled = CompiledModel | CompiledStage | CudaModel | CudaExecutor | None
HALF = Stage(Strategy.CONCURRENT, (("f3", "fc", "gs"),))
"""Computes one operand of a Concat, and reads all of it."""


def on_cpu(is_native: bool, lanes: int = 2) -> CpuBackend:
    return CpuBackend(fire(), lanes=lanes, native=is_native)


def on_gpu() -> CudaBackend:
    driver = HostDriver()
    return CudaBackend(fire(), driver, HostChoice(driver), Precision("fp32"))


BACKENDS = [
    pytest.param(lambda: on_cpu(True), cpu_lower, marks=needs_native, id="native"),
    pytest.param(lambda: on_cpu(False), cpu_lower, id="python"),
    pytest.param(on_gpu, cuda_lower, id="cuda"),
]
everywhere = pytest.mark.parametrize(("opened", "lowering"), BACKENDS)
AnyBackend = Callable[[], CpuBackend | CudaBackend]


def whole(backend: CpuBackend | CudaBackend) -> Compiled:
    return backend.compile(greedy(backend.graph))


def alone(backend: CpuBackend | CudaBackend) -> Compiled:
    return backend.compile_stage(Stage(Strategy.CONCURRENT, (("fs", "f1"), ("f3",), ("gs", "g1", "g3"))))


@everywhere
@pytest.mark.parametrize("compiled", [whole, alone])
def test_buffers_that_overwrite_each_other_are_refused(
    opened: AnyBackend,
    lowering: ModuleType,
    compiled: Callable[[CpuBackend | CudaBackend], Compiled],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with opened() as backend:
        monkeypatch.setattr(arena, "_smaller_or_warm", lambda accesses, nbytes: 0 * nbytes)
        with pytest.raises(HazardError, match=r"not ordered|last written|second time"):
            compiled(backend)


@everywhere
def test_lanes_that_do_not_wait_are_refused(
    opened: AnyBackend, lowering: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_waits(steps: Sequence[object], lanes: int, *, barriers: bool) -> list[tuple[()]]:
        return [()] * len(steps)

    with opened() as backend:
        monkeypatch.setattr(lowering, "find_waits", without_waits)
        with pytest.raises(HazardError, match="not ordered"):
            whole(backend)


@pytest.mark.parametrize("executor", [pytest.param(NativeExecutor, marks=needs_native), PythonExecutor])
def test_executors_accept_only_checked_plans(executor: Callable[..., object]) -> None:
    with CpuBackend(loaded(branches()), lanes=2) as backend:
        lowering = backend.lower(greedy(backend.graph))
    executor(lowering.checked, lowering.kernels)
    with pytest.raises(AttributeError):
        executor(lowering.plan, lowering.kernels)


@pytest.mark.parametrize("is_native", [pytest.param(True, marks=needs_native), False])
def test_stage_alone_gets_operands_of_a_concat_as_inputs(is_native: bool) -> None:
    with on_cpu(is_native) as backend:
        stage = backend.compile_stage(HALF)
        assert stage is not None
        shared = [array for array in stage.inputs.values() if array.shape[1] == 32]
        before = [array.copy() for array in shared]
        assert len(stage.time(2)) == 2
        for array, old in zip(shared, before, strict=True):
            assert np.array_equal(array[:, :16], old[:, :16]), "results of earlier stages stay"
            assert not np.array_equal(array[:, 16:], old[:, 16:]), "results of this stage are written next to them"


def test_stage_alone_gets_slices_of_a_table_as_inputs() -> None:
    backend = on_gpu()
    executor = backend.compile_stage(HALF)
    assert executor is not None
    assert {view.buffer: view.shape for view in executor.inputs}["fc"] == (1, 32, 6, 6)
    plan = cuda_lower.lower_stage(backend._lowered, HALF)
    assert plan is not None
    assert {buffer.name: buffer.space for buffer in plan.plan.buffers}["fc"] is MemorySpace.INOUT
