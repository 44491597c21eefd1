"""An attached GPU made of host memory, for tests that search and measure on one or pass arrays to it."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pytest
from host_driver import Event, Graph, HostChoice, HostDriver, Stream
from scripted import fire

from iosched.models.model import Model
from iosched.profiler.baselines.gpu_openers import GpuSetup
from iosched.profiler.devices.cuda import device as cuda_device
from iosched.profiler.devices.cuda.attached import AttachedGpu
from iosched.runtime.cuda.backend import CudaBackend
from iosched.runtime.cuda.cudnn.fastest import CudnnPlanStore
from iosched.runtime.cuda.execute.executor import CudaExecutor
from iosched.runtime.cuda.gpu.exchange import DeviceArray, ImportedArray, SupportsDLPack
from iosched.runtime.cuda.kernel import Precision
from iosched.runtime.cuda.layout import Layout
from iosched.runtime.cuda.onnxruntime.provider import Provider
from iosched.runtime.cuda.onnxruntime.tensorrt import Engine
from iosched.runtime.inputs import random_inputs
from iosched.runtime.plan import View
from iosched.scheduler.unit_graph import Unit

HOST = Provider("CPUExecutionProvider", "cpu", takes_stream=False)


HERE = (2, 0)


class OnDevice:
    """An array of another library; remembers which streams it was asked to be ready for."""

    def __init__(self, array: np.ndarray, device: tuple[int, int] = HERE) -> None:
        self.array, self.device = array, device
        self.asked: list[Any] = []

    def __dlpack__(self, *, stream: Any = None) -> Any:
        self.asked.append(stream)
        return self.array.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device


class _Capsule:
    """A capsule that numpy accepts as an array on the host."""

    def __init__(self, capsule: Any) -> None:
        self.capsule = capsule

    def __dlpack__(self, **_: Any) -> Any:
        return self.capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


class HostExchange:
    """The `Exchange` of tests."""

    def __init__(self, driver: HostDriver, streams: Mapping[int, Stream] | None = None) -> None:
        self.driver, self.streams, self.index = driver, dict(streams or {}), 0

    def import_array(self, given: SupportsDLPack, stream: Stream) -> ImportedArray:
        array = np.from_dlpack(_Capsule(given.__dlpack__(stream=stream)))  # type: ignore[arg-type]
        contiguous = bool(array.flags.c_contiguous)
        return ImportedArray(array.ctypes.data, array.shape, str(array.dtype), contiguous, array)

    def export_array(self, address: int, view: View, owner: Any, stream: Stream) -> DeviceArray:
        data = (ctypes.c_uint8 * view.nbytes).from_address(address)
        array = np.ndarray(view.shape or (), view.dtype, data)

        def export(**_: Any) -> Any:
            assert owner.ptr == address
            self.driver.synchronize(stream)
            return array.__dlpack__()

        return DeviceArray(view.shape or (), view.dtype, HERE, export)

    def stream_of(self, handle: int) -> Stream:
        return self.streams[handle]


def on_host(array: DeviceArray) -> np.ndarray:
    """The array's current contents."""
    return np.array(np.from_dlpack(_Capsule(array.__dlpack__())))  # type: ignore[arg-type]


class LaunchGap(HostDriver):
    """The host takes `gap_us` for the launch of a graph, and the GPU `each_us` for each of its kernels, in order."""

    def __init__(self, gap_us: float, each_us: float = 10.0) -> None:
        super().__init__()
        self.gap_us, self.each_us = gap_us, each_us
        self.host_us = self.gpu_us = 0.0
        self.at_us: dict[int, float] = {}

    def record(self, event: Event, stream: Stream) -> None:
        asked_us = self.host_us

        def stamp() -> None:
            self.at_us[id(event)] = self._reached(asked_us)

        event.recorded = self._add(stream, stamp)

    def launch_graph(self, graph: Graph, stream: Stream) -> None:
        self.host_us += self.gap_us
        asked_us = self.host_us
        kernels = sum(bool(each.touches) for each in graph.operations)
        self._add(stream, lambda: self._reached(asked_us, kernels * self.each_us))
        super().launch_graph(graph, stream)

    def elapsed_us(self, start: Event, end: Event) -> float:
        super().elapsed_us(start, end)
        self.host_us = max(self.host_us, self.gpu_us)
        return self.at_us[id(end)] - self.at_us[id(start)]

    def _reached(self, asked_us: float, spent_us: float = 0.0) -> float:
        """When the GPU is done with what the host asked for at `asked_us`."""
        self.gpu_us = max(self.gpu_us, asked_us) + spent_us
        return self.gpu_us


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
        choose, exchange = HostChoice(self.driver, plans), HostExchange(self.driver)
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
    inputs, engine = random_inputs(model.graph.inputs), Engine(0, precision, "host")
    return GpuSetup(model, inputs, Precision(precision), HostDriver(), provider, engine)
