"""PyTorch as a baseline: not installed, unable to run the model, and in the faster layout."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from host_gpu import host_place

from iosched.models.errors import DeviceError
from iosched.profiler.baselines.gpu_openers import GPU_OPENERS
from iosched.runtime.cuda.kernel import Precision

LAST, FIRST = "last", "first"
_IMPORTS_IT = "iosched.profiler.baselines.torch_runs"


class Clock:
    """The GPU's time."""

    def __init__(self) -> None:
        self.now_us = 0.0
        self.capturing: list[float] | None = None

    def spend(self, spent_us: float) -> None:
        if self.capturing is None:
            self.now_us += spent_us
        else:
            self.capturing.append(spent_us)


class Tensor:
    """An array and its memory layout."""

    def __init__(self, array: np.ndarray, layout: str = FIRST) -> None:
        self.array, self.layout, self.ndim = array, layout, array.ndim

    def to(self, *_: Any) -> Tensor:
        return self

    def is_floating_point(self) -> bool:
        return self.array.dtype.kind == "f"

    def contiguous(self, memory_format: str) -> Tensor:
        return Tensor(self.array, memory_format)


class Network:
    """Takes `latency_us` of the layout that image and weights share."""

    def __init__(self, clock: Clock, latency_us: Mapping[str, float], host_us: float = 0.0) -> None:
        self.clock, self.latency_us, self.host_us, self.layout = clock, latency_us, host_us, FIRST

    def __deepcopy__(self, memo: object) -> Network:
        return Network(self.clock, self.latency_us, self.host_us)

    def to(self, *_: Any, memory_format: str | None = None) -> Network:
        self.layout = memory_format or self.layout
        return self

    def eval(self) -> Network:
        return self

    def __call__(self, image: Tensor) -> Tensor:
        assert image.layout == self.layout, "converted in every run"
        self.clock.spend(self.latency_us[self.layout])
        if self.clock.capturing is None:
            self.clock.spend(self.host_us)
        return image


def install(monkeypatch: pytest.MonkeyPatch) -> tuple[Clock, list[str]]:
    """Installs a fake PyTorch; returns its clock and the layouts of the networks that are compiled."""
    clock = Clock()
    compiled: list[str] = []

    class Event:
        def __init__(self, **_: Any) -> None:
            self.at_us = 0.0

        def record(self) -> None:
            self.at_us = clock.now_us

        def synchronize(self) -> None:
            pass

        def elapsed_time(self, end: Event) -> float:
            return (end.at_us - self.at_us) / 1e3

    class Graph:
        spent_us = 0.0

        def replay(self) -> None:
            clock.spend(self.spent_us)

    @contextmanager
    def graph(into: Graph) -> Iterator[None]:
        clock.capturing = []
        yield
        into.spent_us = sum(clock.capturing)
        clock.capturing = None

    def compiled_network(network: Network, **_: Any) -> Network:
        compiled.append(network.layout)
        return network

    stream = SimpleNamespace(wait_stream=lambda other: None)
    found: Any = ModuleType("torch")
    found.backends = SimpleNamespace(
        cudnn=SimpleNamespace(), cuda=SimpleNamespace(matmul=SimpleNamespace(allow_tf32=False))
    )
    found.cuda = SimpleNamespace(
        Event=Event, CUDAGraph=Graph, graph=graph, Stream=lambda: stream, current_stream=lambda: stream,
        stream=lambda each: nullcontext(), synchronize=lambda: None,
    )  # fmt: skip
    found._dynamo = SimpleNamespace(reset=lambda: None)
    found.channels_last, found.contiguous_format = LAST, FIRST
    found.float16, found.float32 = np.float16, np.float32
    found.inference_mode, found.from_numpy, found.compile = nullcontext, Tensor, compiled_network
    found.nn = ModuleType("torch.nn")
    monkeypatch.setitem(sys.modules, "torch", found)
    monkeypatch.setitem(sys.modules, "torch.nn", found.nn)
    monkeypatch.setitem(sys.modules, _IMPORTS_IT, ModuleType("to be imported again, also when this is over"))
    del sys.modules[_IMPORTS_IT]
    return clock, compiled


@pytest.mark.parametrize("name", ["torch", "torch-cudagraph", "torch-compile"])
def test_pytorch_that_is_not_installed_is_reported(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setitem(sys.modules, "onnx2torch", None)
    with pytest.raises(DeviceError, match="onnx2torch is not installed; install it with"):
        GPU_OPENERS[name](host_place())


def test_pytorch_that_cannot_run_the_model_is_reported() -> None:
    """PyTorch reports in one line that there is no GPU."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("onnx2torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(DeviceError) as error:
        GPU_OPENERS["torch"](host_place())
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize("faster", [FIRST, LAST])
@pytest.mark.parametrize("way", ["torch", "torch-cudagraph", "torch-compile"])
def test_pytorch_runs_in_the_layout_that_is_faster(monkeypatch: pytest.MonkeyPatch, way: str, faster: str) -> None:
    clock, compiled = install(monkeypatch)
    open_way = importlib.import_module("iosched.profiler.baselines.torch_runs").open_way
    latency_us = {FIRST: 20.0, LAST: 20.0, faster: 10.0}
    network = Network(clock, latency_us, host_us=100.0)
    run = open_way(way, network, [np.zeros((1, 3, 8, 8), np.float32)], Precision("fp32"))
    assert run.layout == f"channels {faster}"
    each_us = 10.0 if way == "torch-cudagraph" else 110.0
    assert run.time(3) == pytest.approx((each_us,) * 3)
    assert compiled == ([faster] if way == "torch-compile" else []), "compiling takes minutes"
