"""A check that fails is itself a finding, and the others still run; a report names neither user nor hosts."""

from __future__ import annotations

from pathlib import Path

import pytest
from scripted import fire

from iosched.jobs.doctor import diagnosis, installation, machine
from iosched.jobs.doctor.diagnosis import CHECKS, DoctorRequest, Section, diagnose, discreet_text, home
from iosched.models.errors import ExecutionError
from iosched.profiler.devices.facts import Finding


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (RuntimeError("what nobody\nthought of"), "RuntimeError: what nobody"),
        (ImportError("numpy is broken", name="numpy"), "numpy"),
        (AssertionError(), "AssertionError"),
    ],
)
def test_a_check_that_raises_is_a_finding_and_the_next_one_is_run(
    monkeypatch: pytest.MonkeyPatch, error: Exception, words: str
) -> None:
    def look(asked: object) -> Section:
        raise error

    monkeypatch.setattr(machine, "check_machine", look)
    found = diagnose(checks=("machine", "environment"))
    (broken,) = found.broken
    assert words in broken.what
    assert broken.where == "check of machine"
    assert broken.way
    assert found.sections["environment"].rows


def test_a_check_whose_module_cannot_be_imported_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(diagnosis.CHECKS, "machine", "no_such_module")
    (broken,) = diagnose(checks=("machine",)).broken
    assert "ModuleNotFoundError" in broken.what


@pytest.mark.parametrize("check", CHECKS)
def test_each_check_completes_on_this_machine(check: str, tmp_path: Path) -> None:
    found = diagnose(DoctorRequest(tmp_path / "profile.sqlite", fire()), checks=(check,))
    assert not [each for each in found.broken if each.where == f"check of {check}"]
    assert found.sections[check].values
    assert found.sections[check].rows


def test_broken_findings_come_first_and_cause_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    remark, broken = Finding("slow", "a", "wait", is_broken=False), Finding("gone", "b", "bring it back")
    monkeypatch.setattr(machine, "check_machine", lambda asked: Section(findings=(remark,)))
    only_remarks = diagnose(checks=("machine",))
    assert only_remarks.failure is None
    monkeypatch.setattr(machine, "check_environment", lambda asked: Section(findings=(broken,)))
    found = diagnose(checks=("machine", "environment"))
    assert found.findings == (("environment", broken), ("machine", remark))
    assert isinstance(found.failure, ExecutionError)
    assert "1 problem found" in str(found.failure)


def test_the_whole_report_is_anonymized(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    secret = "/home/ada/x https://ada:pass@pypi.example.org/simple"
    section = Section({"a": [{"b": secret}]}, (("label", secret),), (Finding(secret, secret, secret),))
    monkeypatch.setattr(machine, "check_machine", lambda asked: section)
    told = repr(diagnose(checks=("machine",)))
    assert told.count("~/x https://...") == 5
    assert "ada" not in told
    assert "example.org" not in told


def test_every_check_function_is_registered() -> None:
    found = {(name, module.__name__.rpartition(".")[2]) for module in (installation, machine) for name in vars(module)}
    assert {(f"check_{name}", module) for name, module in CHECKS.items()} == {
        (name, module) for name, module in found if name.startswith("check_")
    }


def test_checks_create_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    diagnose(DoctorRequest(tmp_path / "folder" / "profile.sqlite"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/home/ada/models/a.onnx", "~/models/a.onnx"),
        ("in /home/ada: no space", "in ~: no space"),
        ("/home/ada2/x", "/home/ada2/x"),
        ("/home/ada:/home/ada/b", "~:~/b"),
        ("get https://u:p@host.example:8080/simple, or not", "get https://..., or not"),
        ("ray://10.0.0.1:10001", "ray://..."),
        ("nothing to hide", "nothing to hide"),
    ],
)
def test_homes_and_hosts_are_left_out(text: str, expected: str) -> None:
    assert discreet_text(text, "/home/ada") == expected


def test_without_a_home_folder_paths_are_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "home", lambda: Path("/"))
    assert home() == ""
    assert discreet_text("/data/x", home()) == "/data/x"
