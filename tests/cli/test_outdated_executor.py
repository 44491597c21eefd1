"""A compiled executor of another version is ignored, and every command that measures or runs warns once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from scripted import LATENCIES_US, script_models, script_stages

from iosched.jobs.doctor import installation
from iosched.runtime.cpu import library

pytestmark = pytest.mark.skipif(not library.available(), reason=f"no compiled executor: {library.missing()}")
REASON = "built for another version of iosched; rebuild it with 'pip install -e .'"


def forget() -> None:
    library.missing.cache_clear()
    library._found.cache_clear()


@pytest.fixture(autouse=True)
def _outdated(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(library, "_ABI_VERSION", -1)
    forget()
    yield
    forget()


def test_devices_names_the_reason_and_the_fix(invoke) -> None:
    assert REASON in " ".join(invoke("devices").stdout.split())
    cpu = json.loads(invoke("devices", "--json").stdout)["devices"][0]
    assert not cpu["compiled_executor"]
    assert REASON in cpu["compiled_executor_missing"]


def test_doctor_calls_it_broken(invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "why_not", lambda module: None)
    result = invoke("doctor")
    assert result.exit_code == 1
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("problem: compiled executor")]
    assert "Fix: rebuild it with 'pip install -e .'" in line


def test_commands_warn_once(invoke, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as scripted:
        script_stages(scripted)
        script_models(scripted, LATENCIES_US)
        found = [invoke("optimize", model, "--threads", 2)]
    found.append(invoke("run", "branches.iosched.onnx"))
    found.append(invoke("bench", "branches.iosched.onnx", "--with", "iosched", "--with", "sequential", "--rounds", 3))
    for each in found:
        assert each.exit_code == 0
        assert each.output.count(REASON) == 1
        assert "slower Python executor" in each.output
