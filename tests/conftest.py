"""Fixtures and options of all tests."""

from __future__ import annotations

import gc
from collections.abc import Generator
from zlib import crc32

import pytest
from few_samples import FewSamples
from hypothesis import settings

from iosched.cli.common.options import CLUSTER_VARIABLE, DEVICE_VARIABLE, THREADS_VARIABLE
from iosched.jobs import time_budget
from iosched.profiler.devices.cpu import open as cpu_open
from iosched.profiler.devices.cuda import device as cuda_device
from iosched.profiler.measuring import disturbance, idle
from iosched.profiler.measuring.disturbance import Interference
from iosched.profiler.store.errors import ENVIRONMENT_VARIABLE, IN_MEMORY
from iosched.runtime.cpu.lane_cpus import SHARE_VARIABLE

settings.register_profile("quick", max_examples=25, deadline=None, derandomize=True)
settings.register_profile("thorough", max_examples=150, deadline=None, derandomize=True)
settings.load_profile("quick")


@pytest.fixture(autouse=True)
def _no_automatic_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """`--device auto` means the CPU: tests of GPUs name theirs."""
    monkeypatch.setattr(cuda_device, "usable_names", lambda: ())


@pytest.fixture(autouse=True)
def _no_settings_of_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Ignores the device, threads and cluster that a user has set for all calls."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.getbasetemp() / "no-settings"))
    for variable in (DEVICE_VARIABLE, THREADS_VARIABLE, CLUSTER_VARIABLE):
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture(autouse=True)
def _no_profile_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ignores latencies that were measured on this machine or imported from another."""
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, IN_MEMORY)


@pytest.fixture(autouse=True)
def _no_cache_of_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Ignores proofs about operators from earlier runs; concurrent tests share theirs."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture(autouse=True)
def _no_warnings_of_shared_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests and the processes that they start run concurrently: none should warn that another uses its cores."""
    monkeypatch.setenv(SHARE_VARIABLE, "1")


@pytest.fixture(autouse=True)
def _no_interference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests run concurrently: all measurements count as undisturbed, so that their numbers are reproducible."""
    monkeypatch.setattr(disturbance, "disturbances", lambda *_: ())
    monkeypatch.setattr(disturbance, "interference", lambda *_: Interference())
    monkeypatch.setattr(disturbance, "doubts", lambda *_: ())


@pytest.fixture(autouse=True)
def _measurements_are_brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Next to other tests, neither more samples and rounds nor waiting for idle threads make latencies more certain."""
    monkeypatch.setattr(cpu_open, "CpuStageCost", FewSamples)
    monkeypatch.setattr(idle, "LONGEST_SECONDS", 0.0)
    monkeypatch.setattr(time_budget, "MOST_DECIDING_S", 0.1)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--twentieth", metavar="COMMIT", help="run the selected tests that the commit chooses")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keeps the twentieth of the tests that the commit chooses: commits of all remainders run all of them."""
    commit = config.getoption("--twentieth")
    if commit is None:
        return
    left_out = {item for item in items if crc32(item.nodeid.encode()) % 20 != int(commit, 16) % 20}
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = [item for item in items if item not in left_out]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Thousands of tests are created and none is garbage: collecting garbage among them takes seconds."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Reports the cases that the backend suite leaves out, if it ran."""
    reports = [report for found in terminalreporter.stats.values() for report in found]
    if any("tests/onnx_backend/" in getattr(report, "nodeid", "") for report in reports):
        from backend_cases import refusals

        terminalreporter.write_line(f"tests/onnx_backend: {refusals()}")
