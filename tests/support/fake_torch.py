"""A PyTorch whose networks take as long as a table says for the way and the layout that they run in."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

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
    """Knows how it lies."""

    def __init__(self, array: np.ndarray, layout: str = FIRST) -> None:
        self.array, self.layout, self.ndim = array, layout, array.ndim

    def to(self, *_: Any) -> Tensor:
        return self

    def is_floating_point(self) -> bool:
        return self.array.dtype.kind == "f"

    def contiguous(self, memory_format: str) -> Tensor:
        return Tensor(self.array, memory_format)


class Network:
    """Takes `latency_us` of the layout, if image and weights have one."""

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
    """Makes it the PyTorch that is imported; returns its clock, and the layouts of what will be compiled."""
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
