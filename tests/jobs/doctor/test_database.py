"""The profile database that commands would take: where it is, and whether it can be used."""

from __future__ import annotations

from pathlib import Path

import pytest

from iosched.jobs.doctor import machine
from iosched.jobs.doctor.diagnosis import DoctorRequest
from iosched.profiler.store.database import ProfileDatabase
from iosched.profiler.store.schema import VERSION


def test_a_sound_one(tmp_path: Path) -> None:
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


def test_one_that_is_not_there_yet_is_no_finding(tmp_path: Path) -> None:
    found = machine.check_database(DoctorRequest(tmp_path / "a" / "b.sqlite"))
    assert found.findings == ()
    assert "does not exist yet" in dict(found.rows)["state"]


def test_one_in_memory_has_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IOSCHED_PROFILE_DB", ":memory:")
    assert machine.check_database(DoctorRequest()).values == {"path": None}
    assert machine.check_database(DoctorRequest(Path(":memory:"))).values == {"path": None}


def test_one_that_is_damaged_says_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "profile.sqlite"
    path.write_bytes(b"SQLite format 3\0" + b"x" * 5000)
    (finding,) = machine.check_database(DoctorRequest(path)).findings
    assert finding.is_broken
    assert finding.where == str(path)
    assert "damaged" in finding.what
    assert "--profile-db" in finding.way


def test_little_room_beside_it_is_worth_a_remark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda folder: type("", (), {"free": 2**20}))
    (finding,) = machine.check_database(DoctorRequest(tmp_path / "b.sqlite")).findings
    assert "only 1 MiB" in finding.what
    assert not finding.is_broken
