"""What holds for all tests."""

from __future__ import annotations

import pytest

from iosched.profiler.devices.cuda import device as cuda_device


@pytest.fixture(autouse=True)
def _no_gpu_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """`--device auto` means the CPU: tests of GPUs name theirs."""
    monkeypatch.setattr(cuda_device, "usable_names", lambda: ())


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What the backend suite leaves out, where it ran."""
    reports = [report for found in terminalreporter.stats.values() for report in found]
    if any("tests/onnx_backend/" in getattr(report, "nodeid", "") for report in reports):
        from backend_cases import refusals

        terminalreporter.write_line(f"tests/onnx_backend: {refusals()}")
