"""Latencies of stages on a GPU emulated in host memory; stages that cannot be run are infinitely slow."""

from __future__ import annotations

import numpy as np
import pytest
from host_cuda import needs_compiler
from host_driver import HostChoice, HostDriver
from scripted import fire

from iosched.models.errors import DeviceError, ExecutionError
from iosched.models.model import Model
from iosched.profiler.devices.cuda.gpu_cost import CudaStageCost
from iosched.profiler.store.database import ProfileDatabase
from iosched.runtime.cuda.backend import CudaBackend
from iosched.runtime.cuda.execute.executor import CudaExecutor
from iosched.runtime.cuda.kernel import Precision
from iosched.scheduler.schedule import Stage, Strategy

pytestmark = needs_compiler


def cost_of(model: Model, database: ProfileDatabase) -> CudaStageCost:
    driver = HostDriver()
    return CudaStageCost(CudaBackend(model, driver, HostChoice(driver), Precision("fp32")), database, "Host")


def test_a_stage_that_does_not_fit_is_no_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise DeviceError("the GPU has no memory left")

    with ProfileDatabase(":memory:") as database:
        cost = cost_of(fire(), database)
        monkeypatch.setattr(CudaBackend, "compile_stage", full)
        assert cost.stage_latency_us(Stage(Strategy.CONCURRENT, (("f1",), ("f3",)))) == np.inf
        assert cost.dropped == {"f1+f3": "the GPU has no memory left"}
        with pytest.raises(DeviceError, match="no memory"):
            cost.stage_latency_us(Stage(Strategy.CONCURRENT, (("f1",),)))


def test_a_failing_engine_makes_a_stage_infinitely_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object) -> None:
        raise ExecutionError("the GPU failed")

    with ProfileDatabase(":memory:") as database:
        cost = cost_of(fire(), database)
        monkeypatch.setattr(CudaExecutor, "time_many", failing)
        assert cost.stage_latency_us(Stage(Strategy.CONCURRENT, (("f1",), ("f3",)))) == np.inf


def test_stages_that_only_move_bytes_cost_nothing_and_stages_that_cannot_merge_are_infinite(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("iosched.runtime.cuda.lower.lowered_model.lower_merged", lambda *_: None)
    with ProfileDatabase(":memory:") as database:
        cost = cost_of(fire(), database)
        assert cost.stage_latency_us(Stage(Strategy.CONCURRENT, (("fc",),))) == 0
        assert cost.stage_latency_us(Stage(Strategy.MERGE, (("f1",), ("f3",)))) == np.inf


def test_identical_operators_have_one_key() -> None:
    """The operators f1 and g1 differ only in their names; f3 has another kernel."""
    with ProfileDatabase(":memory:") as database:
        cost = cost_of(fire(), database)
        assert cost.operator_key("f1") == cost.operator_key("g1")
        assert cost.operator_key("f1") != cost.operator_key("f3")
