"""Files of settings: which count, what they set, and which are wrong."""

from __future__ import annotations

import pytest

from iosched.jobs.doctor.diagnosis import DoctorRequest, SettingsFile
from iosched.jobs.doctor.machine import check_settings


def test_nothing_set_is_said() -> None:
    found = check_settings(DoctorRequest())
    assert found.values == {"files": [], "set": {}}
    assert found.rows == (("files", "none"),)
    assert found.findings == ()


def test_each_file_is_told_with_what_it_sets_and_whether_that_counts() -> None:
    files = (
        SettingsFile("/a/iosched.toml", {"threads": 2}),
        SettingsFile("/iosched.toml", {"threads": 4}, counts=False),
    )
    found = check_settings(DoctorRequest(settings=files, set_to={"threads": (2, "/a/iosched.toml")}))
    assert found.rows == (
        ("/a/iosched.toml", "threads = 2"),
        ("/iosched.toml", "threads = 4; ignored: a nearer file takes precedence"),
        ("threads", "2, from /a/iosched.toml"),
    )
    assert found.values["set"] == {"threads": {"value": 2, "from": "/a/iosched.toml"}}
    assert found.findings == ()


def test_a_file_that_cannot_be_used_is_broken_with_the_way_out_unless_nobody_reads_it() -> None:
    wrong = SettingsFile("/a/iosched.toml", problem="device is not taken from here\nSet it in your own file")
    (finding,) = check_settings(DoctorRequest(settings=(wrong,))).findings
    assert finding.is_broken
    assert finding.where == "/a/iosched.toml"
    assert "device is not taken from here" in finding.what
    assert finding.way == "Set it in your own file"
    unread = SettingsFile("/iosched.toml", counts=False, problem="not valid TOML")
    assert check_settings(DoctorRequest(settings=(unread,))).findings == ()


@pytest.mark.parametrize(
    ("key", "value", "what"),
    [
        ("threads", "two", "not a positive integer"),
        ("threads", 0, "not a positive integer"),
        ("device", "cpu,v1000", "unknown device 'v1000'"),
    ],
)
def test_a_value_that_no_command_would_take_is_broken(key: str, value: str | int, what: str) -> None:
    (finding,) = check_settings(DoctorRequest(set_to={key: (value, "IOSCHED_X")})).findings
    assert (finding.where, what in finding.what) == ("IOSCHED_X", True)


@pytest.mark.parametrize(
    ("key", "value"), [("threads", "2"), ("device", "auto"), ("device", "cpu,v100"), ("cluster", "x")]
)
def test_what_commands_take_is_fine(key: str, value: str) -> None:
    assert check_settings(DoctorRequest(set_to={key: (value, "IOSCHED_X")})).findings == ()
