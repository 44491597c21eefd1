"""Problems of running on this CPU, as `iosched doctor` reports them."""

from __future__ import annotations

import pytest

from iosched.profiler.devices.cpu import facts
from iosched.profiler.devices.cpu.facts import cpu_facts
from iosched.profiler.devices.facts import Finding


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch):
    """The findings where the compiled executor and OpenVINO are missing for these reasons."""

    def look(slow: str | None = None, was_built: bool = True, openvino: str | None = None) -> tuple[Finding, ...]:
        monkeypatch.setattr(facts.library, "missing", lambda: slow)
        monkeypatch.setattr(facts.library, "was_built", lambda: was_built)
        monkeypatch.setattr(facts.openvino, "missing", lambda: openvino)
        return cpu_facts().findings

    return look


def test_without_problems_there_are_no_findings(found) -> None:
    assert found() == ()


def test_an_executor_that_does_not_load_is_broken(found) -> None:
    (finding,) = found("it does not load; build it again")
    assert finding.what.startswith("it does not load")
    assert (finding.where, finding.way, finding.is_broken) == ("compiled executor", "build it again", True)


def test_an_executor_that_was_never_built_is_only_slower(found) -> None:
    (finding,) = found("it was not built; install a compiler", was_built=False)
    assert not finding.is_broken
    assert "slower" in finding.what


def test_missing_onnxruntime_is_the_only_finding(found, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "package_version", lambda package: None)
    monkeypatch.setattr(facts.library, "compiled", object)
    monkeypatch.setattr(facts.library, "version", lambda: "5")
    (finding,) = found("onnxruntime's shared library was not found; run in a clone of iosched: pip install '.[cpu]'")
    assert (finding.where, finding.way, finding.is_broken) == (
        "onnxruntime",
        "run in a clone of iosched: pip install '.[cpu]'",
        True,
    )


def test_an_unusable_openvino_is_broken_and_a_missing_openvino_is_no_finding(
    found, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(facts.openvino, "installed_version", lambda: "2024.1")
    (finding,) = found(openvino="OpenVINO 2024.1 is too old; install 2026.0 or newer")
    assert (finding.where, finding.is_broken) == ("openvino", True)
    monkeypatch.setattr(facts.openvino, "installed_version", lambda: None)
    assert found(openvino="OpenVINO is not installed; install it") == ()
