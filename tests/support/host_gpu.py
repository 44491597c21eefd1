"""An attached GPU made of host memory, for what searches and measures on one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import ClassVar

import pytest
from host_driver import HostDriver, chooser
from host_exchange import HostExchange
from scripted import fire

from iosched.models.model import Model
from iosched.profiler.baselines.gpu_openers import GpuSetup
from iosched.profiler.devices.cuda import device as cuda_device
from iosched.profiler.devices.cuda.attached import AttachedGpu
from iosched.runtime.cuda.backend import CudaBackend
from iosched.runtime.cuda.cudnn.fastest import CudnnPlanStore
from iosched.runtime.cuda.execute.executor import CudaExecutor
from iosched.runtime.cuda.kernel import Precision
from iosched.runtime.cuda.layout import Layout
from iosched.runtime.cuda.onnxruntime.provider import Provider
from iosched.runtime.inputs import random_inputs
from iosched.scheduler.unit_graph import Unit

HOST = Provider("CPUExecutionProvider", "cpu", takes_stream=False)


class HostGpu(AttachedGpu):
    """An attached GPU without cuDNN; remembers what it was given to choose plans by."""

    given: ClassVar[list[object]] = []

    def backend(
        self,
        model: Model,
        precision: str,
        plans: CudnnPlanStore | None = None,
        layout: Layout | None = None,
        units: Sequence[Unit] = (),
    ) -> CudaBackend:
        assert isinstance(self.driver, HostDriver)
        self.given.append(plans)
        choose, exchange = chooser(self.driver, plans), HostExchange(self.driver)
        computed = Precision(precision)
        return CudaBackend(
            model, self.driver, choose, computed, layout=layout, exchange=exchange, choices=plans, units=units
        )


def attach_host(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Makes it the GPU that is found; returns what backends will be given to choose plans by."""
    HostGpu.given.clear()
    monkeypatch.setattr(cuda_device, "attach", lambda index: HostGpu(index, "Host 1000", {"cudnn": "90"}, HostDriver()))
    return HostGpu.given


def time_by_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """A launch takes as long as it has groups' longest chains: side by side is faster."""

    def timed(self: CudaExecutor, repeats: int) -> tuple[float, ...]:
        return tuple([10.0 * max(map(len, self._plan.lanes), default=0)] * repeats)

    monkeypatch.setattr(CudaExecutor, "repeated", lambda self, copies: partial(timed, self))
    monkeypatch.setattr(CudaExecutor, "time_launches", timed)


def host_place(precision: str = "fp32", provider: Provider = HOST) -> GpuSetup:
    """`fire` and inputs of it on a GPU made of host memory, where another runtime is to run it."""
    model = fire(batch=2)
    return GpuSetup(model, random_inputs(model.graph.inputs), Precision(precision), HostDriver(), provider)
