"""On two sockets, a schedule uses the cores of one, and the baselines use all."""

from __future__ import annotations

from contextlib import closing

import pytest
from scripted import fire
from shipped import document

from iosched.profiler.devices.cpu import device as device_module
from iosched.profiler.devices.cpu import open as open_module
from iosched.profiler.devices.cpu.device import CpuDevice
from iosched.profiler.devices.open_settings import OpenSettings
from iosched.profiler.store.database import ProfileDatabase
from iosched.runtime.cpu import backend as backend_module
from iosched.scheduler.teams import Objective


@pytest.fixture
def two_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with two sockets of one core each."""
    for module in (device_module, backend_module):
        monkeypatch.setattr(module, "default_threads", lambda: 1)
    for module in (device_module, open_module):
        monkeypatch.setattr(module, "cpu_count", lambda: 2)


@pytest.mark.usefixtures("two_sockets")
@pytest.mark.parametrize(
    ("shipped", "threads", "words"),
    [
        ("iosched", None, "iosched, 1 threads"),
        ("iosched", 2, "iosched, 2 threads"),
        ("reference", None, "onnxruntime, sequential mode, 2 threads"),
        ("reference", 1, "onnxruntime, sequential mode, 1 thread"),
    ],
)
def test_threads_of_the_shipped_executor(shipped: str, threads: int | None, words: str) -> None:
    model = fire()
    with closing(CpuDevice().executor(model, document(model, shipped=shipped), threads)) as executor:
        assert executor.description.startswith(words)


@pytest.mark.usefixtures("two_sockets")
@pytest.mark.parametrize(
    ("objective", "threads", "lanes", "plain"),
    [("latency", None, 1, 2), ("latency", 2, 2, 2), ("throughput", None, 2, 2), ("throughput", 1, 1, 1)],
)
def test_threads_during_a_measurement(objective: Objective, threads: int | None, lanes: int, plain: int) -> None:
    settings = OpenSettings(threads=threads, objective=objective)
    with ProfileDatabase(None) as database, closing(CpuDevice().open(fire(), settings, database)) as opened:
        assert opened.cost.backend.lanes == lanes
        assert opened.baselines.onnxruntime is not None
        assert opened.baselines.onnxruntime.threads == plain
