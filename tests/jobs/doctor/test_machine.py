"""The machine: what is short there is said, and what it does not tell is not known."""

from __future__ import annotations

from pathlib import Path

import pytest

from iosched.jobs.doctor import machine
from iosched.jobs.doctor.diagnosis import DoctorRequest
from iosched.profiler.devices.facts import Finding


def findings() -> tuple[Finding, ...]:
    return machine.check_machine(DoctorRequest()).findings


@pytest.fixture(autouse=True)
def _idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    monkeypatch.setattr(machine, "_lines", lambda file: ["MemTotal: 4194304 kB", "MemAvailable: 2097152 kB"])
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda folder: type("", (), {"free": 2**40}))
    monkeypatch.setattr(machine.platform, "system", lambda: "Linux")


def test_memory_is_in_bytes() -> None:
    found = machine.check_machine(DoctorRequest())
    assert (found.values["memory_nbytes"], found.values["memory_available_nbytes"]) == (2**32, 2**31)
    assert dict(found.rows)["memory"] == "4.0 GiB, 2.0 GiB available"
    assert found.findings == ()


def test_other_programs_on_the_cores_are_worth_a_remark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.os, "getloadavg", lambda: (1e3, 0.0, 0.0))
    (finding,) = findings()
    assert "load of 1000.0" in finding.what
    assert not finding.is_broken


def test_so_is_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_lines", lambda file: ["MemAvailable: 102400 kB"])
    (finding,) = findings()
    assert (finding.what, finding.is_broken) == ("only 0.1 GiB of memory is available", False)


def test_so_is_little_room_for_temporary_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda folder: type("", (), {"free": 2**20}))
    (finding,) = findings()
    assert "TMPDIR" in finding.way
    assert not finding.is_broken


def test_no_folder_for_temporary_files_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> str:
        raise FileNotFoundError

    monkeypatch.setattr(machine.tempfile, "gettempdir", none)
    (finding,) = findings()
    assert (finding.where, finding.is_broken) == ("TMPDIR", True)


def test_another_system_is_broken_and_what_it_does_not_tell_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.platform, "system", lambda: "Darwin")
    monkeypatch.setattr(machine, "_lines", lambda file: [])
    monkeypatch.delattr(machine.os, "getloadavg")
    found = machine.check_machine(DoctorRequest())
    (finding,) = found.findings
    assert "this is macOS" in finding.what
    assert finding.is_broken
    assert dict(found.rows)["load"] == "unknown"
    assert found.values["memory_nbytes"] is None


@pytest.mark.parametrize(("text", "limit"), [("1073741824", 2**30), ("max", None), (str(2**63 - 4096), None)])
def test_the_limit_of_a_container(monkeypatch: pytest.MonkeyPatch, text: str, limit: int | None) -> None:
    monkeypatch.setattr(machine, "_lines", lambda file: [text] if Path(file).name == "memory.max" else [])
    assert machine.check_machine(DoctorRequest()).values["memory_limit_nbytes"] == limit
