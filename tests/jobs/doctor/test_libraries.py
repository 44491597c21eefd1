"""Which packages are here, which do not load, and which extra brings those that are missing."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from iosched.jobs.doctor import installation
from iosched.jobs.doctor.diagnosis import DoctorRequest, Section
from iosched.jobs.doctor.installation import Requirement

ASKED = (
    Requirement("numpy", ">=1.26", None),
    Requirement("onnxruntime", ">=1.22", "cpu"),
    Requirement("onnxruntime-gpu", ">=1.27", "cuda"),
    Requirement("optuna", ">=5", "explore"),
    Requirement("mypy", ">=2", "lint"),
)


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch):
    """What is found where these versions are installed, and these modules do not load."""

    def look(versions: Mapping[str, str], troubles: Mapping[str, str] | None = None) -> Section:
        monkeypatch.setattr(installation, "requirements", lambda: ASKED)
        monkeypatch.setattr(installation, "package_version", versions.get)
        monkeypatch.setattr(installation, "why_not", (troubles or {}).get)
        return installation.check_libraries(DoctorRequest())

    return look


def test_what_is_missing_is_shown_with_the_extra_that_brings_it_and_is_no_finding(looked) -> None:
    found = looked({"numpy": "2.0", "onnxruntime": "1.30"})
    assert ("numpy", "2.0") in found.rows
    assert ("[explore]", "not installed: optuna; run in a clone of iosched: pip install '.[explore]'") in found.rows
    assert "mypy" not in repr(found.rows)
    assert found.findings == ()


def test_what_iosched_cannot_do_without_is_broken_where_it_is_missing(looked) -> None:
    (finding,) = looked({}).findings
    assert (finding.what, finding.way, finding.is_broken) == (
        "numpy is not installed",
        "run in a clone of iosched: pip install .",
        True,
    )


def test_a_version_that_is_too_old_names_the_one_wanted(looked) -> None:
    (finding,) = looked({"numpy": "2.0", "optuna": "4.1"}).findings
    assert finding.where == "optuna 4.1"
    assert ">=5" in finding.what
    assert "'.[explore]'" in finding.way
    assert finding.is_broken


def test_a_package_that_does_not_load_is_broken_and_says_why(looked) -> None:
    found = looked({"numpy": "2.0"}, {"numpy": "ImportError: libblas.so.3"})
    (finding,) = found.findings
    assert "ImportError: libblas.so.3" in finding.what
    assert finding.where == "numpy 2.0"
    assert "fails to load" in dict(found.rows)["numpy"]
    assert found.values["packages"][0]["trouble"] == "ImportError: libblas.so.3"


def test_the_module_of_a_package_that_is_called_otherwise_is_tried(looked) -> None:
    (finding,) = looked({"numpy": "2.0", "onnxruntime-gpu": "1.30"}, {"onnxruntime": "no CUDA"}).findings
    assert finding.where == "onnxruntime-gpu 1.30"


@pytest.mark.parametrize(
    ("one", "other"), [("onnxruntime", "onnxruntime-gpu"), ("nvidia-cudnn-cu12", "nvidia-cudnn-cu13")]
)
def test_two_packages_that_own_the_same_files_are_broken(looked, one: str, other: str) -> None:
    (finding,) = looked({"numpy": "2.0", one: "1.30", other: "1.30"}).findings
    assert finding.where == f"{one}, {other}"
    assert "overwrite" in finding.what
    assert f"pip uninstall {one} {other}" in finding.way


def test_where_the_metadata_does_not_tell_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "requirements", lambda: ())
    (finding,) = installation.check_libraries(DoctorRequest()).findings
    assert not finding.is_broken
