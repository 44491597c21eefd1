"""Variables that matter are shown; of those that may name a host or hold a secret, only that they are set."""

from __future__ import annotations

import pytest

from iosched.jobs.doctor import machine
from iosched.jobs.doctor.diagnosis import DoctorRequest, Section


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch):
    """What is found in an environment of these variables."""

    def look(**variables: str) -> Section:
        monkeypatch.setattr(machine.os, "environ", variables)
        return machine.check_environment(DoctorRequest())

    return look


def test_values_are_shown_of_those_that_are_known(looked) -> None:
    found = looked(IOSCHED_PROFILE_DB="/data/p.sqlite", OMP_NUM_THREADS="2", NO_COLOR="", EDITOR="vi")
    assert found.values["shown"] == {"IOSCHED_PROFILE_DB": "/data/p.sqlite", "OMP_NUM_THREADS": "2", "NO_COLOR": ""}
    assert ("NO_COLOR", "set, empty") in found.rows
    assert "EDITOR" not in repr(found)


def test_addresses_and_unknown_variables_of_ours_are_not(looked) -> None:
    found = looked(IOSCHED_TOKEN="hush", RAY_ADDRESS="head.example.org:6379", PIP_INDEX_URL="https://me:pw@host/")
    assert found.values == {"shown": {}, "hidden": ["IOSCHED_TOKEN", "RAY_ADDRESS"]}
    assert not any(word in repr(found) for word in ("hush", "example", "host/"))


def test_nothing_set_is_said(looked) -> None:
    assert looked().rows == (("variables", "none that affects iosched is set"),)


@pytest.mark.parametrize(
    "variables", [{"LD_PRELOAD": "/x.so"}, {"CUDA_VISIBLE_DEVICES": ""}, {"IOSCHED_SHARE_CORES": "1"}]
)
def test_what_changes_measurements_or_hides_devices_is_worth_a_remark(looked, variables: dict[str, str]) -> None:
    (finding,) = looked(**variables).findings
    assert [finding.where] == list(variables)
    assert not finding.is_broken


def test_a_gpu_that_is_chosen_is_not(looked) -> None:
    assert looked(CUDA_VISIBLE_DEVICES="0", LD_PRELOAD="").findings == ()
