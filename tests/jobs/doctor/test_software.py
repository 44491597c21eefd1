"""iosched and its Python: whether they go together."""

from __future__ import annotations

import platform
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from iosched.jobs.doctor import installation
from iosched.jobs.doctor.diagnosis import DoctorRequest
from iosched.models.version import iosched_version


@pytest.fixture(autouse=True)
def _no_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation.shutil, "which", lambda name: None)


def test_both_versions() -> None:
    found = installation.check_software(DoctorRequest())
    assert (found.values["iosched"], found.values["python"]) == (iosched_version(), platform.python_version())
    assert found.findings == ()


@pytest.mark.parametrize(("version", "is_broken"), [((3, 9, 1), True), ((3, 99, 0), False)])
def test_pythons_that_were_not_tried(
    monkeypatch: pytest.MonkeyPatch, version: tuple[int, ...], is_broken: bool
) -> None:
    monkeypatch.setattr(installation.sys, "version_info", version)
    (finding,) = installation.check_software(DoctorRequest()).findings
    assert f"Python 3.{version[1]}" in finding.what
    assert finding.is_broken is is_broken


def test_a_later_patch_of_the_newest_one_that_was_tried_is_that_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation.sys, "version_info", (*max(installation._tried_pythons()), 99))
    assert installation.check_software(DoctorRequest()).findings == ()


def test_without_metadata_it_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> str:
        raise PackageNotFoundError

    monkeypatch.setattr(installation, "iosched_version", missing)
    found = installation.check_software(DoctorRequest())
    assert found.values["iosched"] is None
    (finding,) = found.findings
    assert "not installed" in finding.what


def test_the_command_of_another_python_is_worth_a_remark(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(installation.shutil, "which", lambda name: str(tmp_path / name))
    (finding,) = installation.check_software(DoctorRequest()).findings
    assert finding.where == str(tmp_path / "iosched")
    assert not finding.is_broken


def test_the_command_of_this_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation.shutil, "which", lambda name: str(Path(sys.executable).parent / name))
    assert installation.check_software(DoctorRequest()).findings == ()
