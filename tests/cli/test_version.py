"""`iosched --version`: a line for people and for bug reports, whose second word scripts may take."""

from __future__ import annotations

import platform

import pytest

from iosched.cli.main import version_text
from iosched.models.version import iosched_version
from iosched.runtime.cpu import library


def test_it_names_package_executor_python_and_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "version", lambda: "5 (_executor.so)")
    system = f"{platform.system()} {platform.machine()}"
    expected = f"iosched {iosched_version()} (compiled executor 5; Python {platform.python_version()}; {system})"
    assert version_text() == expected


def test_it_reports_a_missing_compiled_executor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "version", lambda: None)
    assert "(executor in Python;" in version_text()


def test_it_is_one_line_and_nothing_else_runs(invoke) -> None:
    result = invoke("--version", "optimize", "missing.onnx")
    assert (result.exit_code, result.stdout, result.stderr) == (0, version_text() + "\n", "")
