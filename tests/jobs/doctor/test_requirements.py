"""What iosched asks of other packages is read from its own metadata, so that a report says what pip would say."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from iosched.jobs.doctor import installation as module
from iosched.jobs.doctor.installation import Requirement, is_met, meets, requirements

PROJECT = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]


def test_all_that_pyproject_names_is_found_with_its_extra() -> None:
    found = {(each.package, each.extra) for each in requirements()}
    lists = {None: PROJECT["dependencies"], **PROJECT["optional-dependencies"]}
    wanted = {(_name(text), extra) for extra, texts in lists.items() for text in texts}
    assert found == wanted


def _name(text: str) -> str:
    return text.partition(">")[0].partition("=")[0].partition("[")[0]


def test_forms_of_requirements(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["click>=8.1", 'ray[client]>=2.60; extra == "fleet"', "cupy-cuda13x<15,>=14; extra == 'cuda'", "onnx"]
    monkeypatch.setattr(module, "requires", lambda name: texts)
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


def test_a_version_for_one_extra_is_right_though_another_extra_wants_a_newer_one() -> None:
    both = [Requirement("onnxruntime-gpu", ">=1.27", "cuda"), Requirement("onnxruntime-gpu", "<1.27,>=1.26", "cuda12")]
    assert is_met("1.26.1", both)
    assert is_met("1.30", both)
    assert not is_met("1.20", both)
