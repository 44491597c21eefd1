"""Packages that are missing, do not load or conflict, and the extra that installs them."""

from __future__ import annotations

import platform
import sys
import tomllib
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from iosched.jobs.doctor import installation
from iosched.jobs.doctor.diagnosis import DoctorRequest, Section
from iosched.jobs.doctor.installation import Requirement, is_met, meets, requirements, why_not
from iosched.models.version import iosched_version

ASKED = (
    Requirement("numpy", ">=1.26", None),
    Requirement("onnxruntime", ">=1.22", "cpu"),
    Requirement("onnxruntime-gpu", ">=1.27", "cuda"),
    Requirement("optuna", ">=5", "explore"),
    Requirement("mypy", ">=2", "lint"),
)


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch):
    """Checks libraries with these versions installed, where these modules do not load."""

    def look(versions: Mapping[str, str], troubles: Mapping[str, str] | None = None) -> Section:
        monkeypatch.setattr(installation, "requirements", lambda: ASKED)
        monkeypatch.setattr(installation, "package_version", versions.get)
        monkeypatch.setattr(installation, "why_not", (troubles or {}).get)
        return installation.check_libraries(DoctorRequest())

    return look


def test_a_missing_extra_is_shown_with_its_command_and_is_no_finding(checked) -> None:
    found = checked({"numpy": "2.0", "onnxruntime": "1.30"})
    assert ("numpy", "2.0") in found.rows
    assert ("[explore]", "not installed: optuna; run in a clone of iosched: pip install '.[explore]'") in found.rows
    assert "mypy" not in repr(found.rows)
    assert found.findings == ()


def test_a_missing_required_package_is_broken(checked) -> None:
    (finding,) = checked({}).findings
    assert (finding.what, finding.way, finding.is_broken) == (
        "numpy is not installed",
        "run in a clone of iosched: pip install .",
        True,
    )


def test_a_version_that_is_too_old_is_reported_with_the_required_one(checked) -> None:
    (finding,) = checked({"numpy": "2.0", "optuna": "4.1"}).findings
    assert finding.where == "optuna 4.1"
    assert ">=5" in finding.what
    assert "'.[explore]'" in finding.way
    assert finding.is_broken


def test_a_package_that_does_not_load_is_broken_with_the_reason(checked) -> None:
    found = checked({"numpy": "2.0"}, {"numpy": "ImportError: libblas.so.3"})
    (finding,) = found.findings
    assert "ImportError: libblas.so.3" in finding.what
    assert finding.where == "numpy 2.0"
    assert "fails to load" in dict(found.rows)["numpy"]
    assert found.values["packages"][0]["trouble"] == "ImportError: libblas.so.3"


def test_a_module_with_another_name_than_its_package_is_imported(checked) -> None:
    (finding,) = checked({"numpy": "2.0", "onnxruntime-gpu": "1.30"}, {"onnxruntime": "no CUDA"}).findings
    assert finding.where == "onnxruntime-gpu 1.30"


@pytest.mark.parametrize(
    ("one", "other"), [("onnxruntime", "onnxruntime-gpu"), ("nvidia-cudnn-cu12", "nvidia-cudnn-cu13")]
)
def test_two_packages_that_own_the_same_files_are_broken(checked, one: str, other: str) -> None:
    (finding,) = checked({"numpy": "2.0", one: "1.30", other: "1.30"}).findings
    assert finding.where == f"{one}, {other}"
    assert "overwrite" in finding.what
    assert f"pip uninstall {one} {other}" in finding.way


def test_missing_requirements_in_the_metadata_are_a_remark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "requirements", lambda: ())
    (finding,) = installation.check_libraries(DoctorRequest()).findings
    assert not finding.is_broken


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A module that runs this code when it is imported."""

    def write(text: str) -> str:
        (tmp_path / "ailing.py").write_text(text)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        return "ailing"

    return write


def test_a_module_that_loads_has_no_reason(module) -> None:
    assert why_not(module("print('words')")) is None


def test_the_last_line_of_a_failed_import_is_the_reason(module) -> None:
    assert why_not(module("import no_such_library")) == "ModuleNotFoundError: No module named 'no_such_library'"


def test_a_module_that_kills_its_process_does_not_end_this_one(module) -> None:
    why = why_not(module("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"))
    assert why is not None
    assert "SIGSEGV" in why


def test_a_module_that_exits_silently_is_reported_with_its_exit_code(module) -> None:
    assert why_not(module("raise SystemExit(3)")) == "exit code 3"


def test_a_module_that_hangs_times_out(module, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "_IMPORT_SECONDS", 0.2)
    why = why_not(module("import time; time.sleep(60)"))
    assert why is not None
    assert "more than" in why


def test_a_file_in_the_working_folder_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "json.py").write_text("raise RuntimeError")
    monkeypatch.chdir(tmp_path)
    assert why_not("json") is None


PROJECT = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]


def test_all_packages_of_pyproject_are_found_with_their_extras() -> None:
    found = {(each.package, each.extra) for each in requirements()}
    lists = {None: PROJECT["dependencies"], **PROJECT["optional-dependencies"]}
    wanted = {(_name(text), extra) for extra, texts in lists.items() for text in texts}
    assert found == wanted


def _name(text: str) -> str:
    return text.partition(">")[0].partition("=")[0].partition("[")[0]


def test_forms_of_requirements(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["click>=8.1", 'ray[client]>=2.60; extra == "fleet"', "cupy-cuda13x<15,>=14; extra == 'cuda'", "onnx"]
    monkeypatch.setattr(installation, "requires", lambda name: texts)
    assert requirements() == (
        Requirement("click", ">=8.1", None),
        Requirement("ray", ">=2.60", "fleet"),
        Requirement("cupy-cuda13x", "<15,>=14", "cuda"),
        Requirement("onnx", "", None),
    )


@pytest.mark.parametrize(
    ("version", "wanted", "expected"),
    [
        ("1.22.0", ">=1.22", True),
        ("1.9", ">=1.22", False),
        ("1.32.0rc1", ">=1.22", True),
        ("15", "<15,>=14", False),
        ("15.0.0", "<15", False),
        ("14.2", "<15,>=14", True),
        ("0.17.5", "==0.17.5", True),
        ("0.17", "==0.17.5", False),
        ("1.0", "~=2.0", True),
        ("unknown", ">=2", True),
        ("1.0", "", True),
    ],
)
def test_versions_are_compared_as_numbers(version: str, wanted: str, expected: bool) -> None:
    assert meets(version, wanted) is expected


def test_a_version_that_suffices_for_one_extra_is_accepted() -> None:
    both = [Requirement("onnxruntime-gpu", ">=1.27", "cuda"), Requirement("onnxruntime-gpu", "<1.27,>=1.26", "cuda12")]
    assert is_met("1.26.1", both)
    assert is_met("1.30", both)
    assert not is_met("1.20", both)


@pytest.fixture(autouse=True)
def _no_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation.shutil, "which", lambda name: None)


def test_the_versions_of_iosched_and_python_are_reported() -> None:
    found = installation.check_software(DoctorRequest())
    assert (found.values["iosched"], found.values["python"]) == (iosched_version(), platform.python_version())
    assert found.findings == ()


@pytest.mark.parametrize(("version", "is_broken"), [((3, 9, 1), True), ((3, 99, 0), False)])
def test_an_untested_python_is_a_finding(
    monkeypatch: pytest.MonkeyPatch, version: tuple[int, ...], is_broken: bool
) -> None:
    monkeypatch.setattr(installation.sys, "version_info", version)
    (finding,) = installation.check_software(DoctorRequest()).findings
    assert f"Python 3.{version[1]}" in finding.what
    assert finding.is_broken is is_broken


def test_a_later_patch_of_the_newest_tested_python_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation.sys, "version_info", (*max(installation._tried_pythons()), 99))
    assert installation.check_software(DoctorRequest()).findings == ()


def test_without_metadata_iosched_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> str:
        raise PackageNotFoundError

    monkeypatch.setattr(installation, "iosched_version", missing)
    found = installation.check_software(DoctorRequest())
    assert found.values["iosched"] is None
    (finding,) = found.findings
    assert "not installed" in finding.what


def test_the_command_of_another_python_is_a_remark(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(installation.shutil, "which", lambda name: str(tmp_path / name))
    (finding,) = installation.check_software(DoctorRequest()).findings
    assert finding.where == str(tmp_path / "iosched")
    assert not finding.is_broken


def test_the_command_of_this_python_is_no_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation.shutil, "which", lambda name: str(Path(sys.executable).parent / name))
    assert installation.check_software(DoctorRequest()).findings == ()
