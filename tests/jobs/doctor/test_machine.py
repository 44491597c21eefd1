"""The machine, environment variables, settings files, profile database and kernels, as `doctor` reports them."""

from __future__ import annotations

from pathlib import Path

import pytest
from onnx import helper
from small_models import loaded, proto_of

from iosched.jobs.doctor import machine
from iosched.jobs.doctor.diagnosis import DoctorRequest, Section, SettingsFile
from iosched.jobs.doctor.machine import check_kernels, check_settings
from iosched.profiler.devices.facts import Finding
from iosched.profiler.store.database import ProfileDatabase
from iosched.profiler.store.schema import VERSION
from iosched.runtime.cpu.library import available


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


def test_a_high_load_is_a_remark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.os, "getloadavg", lambda: (1e3, 0.0, 0.0))
    (finding,) = findings()
    assert "load of 1000.0" in finding.what
    assert not finding.is_broken


def test_little_available_memory_is_a_remark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_lines", lambda file: ["MemAvailable: 102400 kB"])
    (finding,) = findings()
    assert (finding.what, finding.is_broken) == ("only 0.1 GiB of memory is available", False)


def test_little_space_for_temporary_files_is_a_remark(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_another_system_is_broken_and_its_load_and_memory_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_the_memory_limit_of_a_container_is_read(monkeypatch: pytest.MonkeyPatch, text: str, limit: int | None) -> None:
    monkeypatch.setattr(machine, "_lines", lambda file: [text] if Path(file).name == "memory.max" else [])
    assert machine.check_machine(DoctorRequest()).values["memory_limit_nbytes"] == limit


def test_an_intact_database_is_no_finding(tmp_path: Path) -> None:
    path = tmp_path / "profile.sqlite"
    ProfileDatabase(path).close()
    found = machine.check_database(DoctorRequest(path))
    assert found.findings == ()
    assert found.values == {
        "path": str(path),
        "exists": True,
        "nbytes": path.stat().st_size,
        "readable": True,
        "writable": True,
        "schema": VERSION,
        "newest_schema": VERSION,
        "intact": True,
    }
    known = VERSION
    size = f"{path.stat().st_size / 2**20:.1f} MiB"
    assert dict(found.rows)["state"] == f"{size}, readable, writable, intact, schema {known} of {known}"


def test_a_database_that_does_not_exist_yet_is_no_finding(tmp_path: Path) -> None:
    found = machine.check_database(DoctorRequest(tmp_path / "a" / "b.sqlite"))
    assert found.findings == ()
    assert "does not exist yet" in dict(found.rows)["state"]


def test_a_database_in_memory_has_no_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IOSCHED_PROFILE_DB", ":memory:")
    assert machine.check_database(DoctorRequest()).values == {"path": None}
    assert machine.check_database(DoctorRequest(Path(":memory:"))).values == {"path": None}


def test_a_damaged_database_is_broken_with_a_way_out(tmp_path: Path) -> None:
    path = tmp_path / "profile.sqlite"
    path.write_bytes(b"SQLite format 3\0" + b"x" * 5000)
    (finding,) = machine.check_database(DoctorRequest(path)).findings
    assert finding.is_broken
    assert finding.where == str(path)
    assert "damaged" in finding.what
    assert "--profile-db" in finding.way


def test_little_space_for_the_database_is_a_remark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda folder: type("", (), {"free": 2**20}))
    (finding,) = machine.check_database(DoctorRequest(tmp_path / "b.sqlite")).findings
    assert "only 1 MiB" in finding.what
    assert not finding.is_broken


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch):
    """Checks an environment of these variables."""

    def look(**variables: str) -> Section:
        monkeypatch.setattr(machine.os, "environ", variables)
        return machine.check_environment(DoctorRequest())

    return look


def test_values_of_known_variables_are_shown(checked) -> None:
    found = checked(IOSCHED_PROFILE_DB="/data/p.sqlite", OMP_NUM_THREADS="2", NO_COLOR="", EDITOR="vi")
    assert found.values["shown"] == {"IOSCHED_PROFILE_DB": "/data/p.sqlite", "OMP_NUM_THREADS": "2", "NO_COLOR": ""}
    assert ("NO_COLOR", "set, empty") in found.rows
    assert "EDITOR" not in repr(found)


def test_values_of_addresses_and_unknown_iosched_variables_are_hidden(checked) -> None:
    found = checked(IOSCHED_TOKEN="hush", RAY_ADDRESS="head.example.org:6379", PIP_INDEX_URL="https://me:pw@host/")
    assert found.values == {"shown": {}, "hidden": ["IOSCHED_TOKEN", "RAY_ADDRESS"]}
    assert not any(word in repr(found) for word in ("hush", "example", "host/"))


def test_an_environment_without_relevant_variables_is_reported(checked) -> None:
    assert checked().rows == (("variables", "none that affects iosched is set"),)


@pytest.mark.parametrize(
    "variables", [{"LD_PRELOAD": "/x.so"}, {"CUDA_VISIBLE_DEVICES": ""}, {"IOSCHED_SHARE_CORES": "1"}]
)
def test_variables_that_affect_measurements_or_devices_are_remarks(checked, variables: dict[str, str]) -> None:
    (finding,) = checked(**variables).findings
    assert [finding.where] == list(variables)
    assert not finding.is_broken


def test_selecting_a_gpu_is_no_finding(checked) -> None:
    assert checked(CUDA_VISIBLE_DEVICES="0", LD_PRELOAD="").findings == ()


def test_without_a_model_nothing_is_opened() -> None:
    assert check_kernels(DoctorRequest()) == Section()


@pytest.mark.skipif(not available(), reason="there is no compiled executor")
def test_operators_and_sessions_are_counted_apart() -> None:
    nodes = [helper.make_node("Relu", ["x"], ["r"]), helper.make_node("MatMul", ["r", "r"], ["y"])]
    found = check_kernels(DoctorRequest(model=loaded(proto_of(nodes, {"x": [4, 4]}, ["y"]))))
    assert found.values == {"invoked": {"Relu": 1}, "sessions": {"MatMul": 1}}
    assert dict(found.rows) == {"called without a session": "1: 1 Relu", "sessions": "1: 1 MatMul"}


def test_missing_settings_files_are_reported() -> None:
    found = check_settings(DoctorRequest())
    assert found.values == {"files": [], "set": {}}
    assert found.rows == (("files", "none"),)
    assert found.findings == ()


def test_each_settings_file_is_listed_with_its_values_and_whether_they_count() -> None:
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


def test_an_invalid_settings_file_is_broken_unless_it_is_ignored() -> None:
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
def test_a_value_that_commands_accept_is_no_finding(key: str, value: str) -> None:
    assert check_settings(DoctorRequest(set_to={key: (value, "IOSCHED_X")})).findings == ()
