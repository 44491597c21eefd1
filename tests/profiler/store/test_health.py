"""The health check of a profile database does not change it."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import pytest

from iosched.profiler.measuring.statistics import summarize
from iosched.profiler.store.database import ProfileDatabase
from iosched.profiler.store.health import health
from iosched.profiler.store.schema import VERSION


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A database with 200 measurements."""
    path = tmp_path / "profile.sqlite"
    with ProfileDatabase(path) as database:
        for number in range(200):
            database.keep_stage(f"stage {number}", "device", summarize([1.0, 2.0, 3.0]))
    return path


def test_an_intact_file_has_no_problem(path: Path) -> None:
    found = health(path)
    assert (found.exists, found.readable, found.writable, found.intact) == (True, True, True, True)
    assert (found.schema, found.newest_schema) == (VERSION, VERSION)
    assert found.nbytes == path.stat().st_size
    assert found.problem is None


def test_looking_changes_nothing(path: Path) -> None:
    before = path.read_bytes()
    health(path)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 3")
    assert health(path).schema == 3


def test_a_file_in_use_is_read_with_its_log(path: Path) -> None:
    with ProfileDatabase(path) as database:
        database.keep_stage("one more", "device", summarize([1.0, 2.0, 3.0]))
        found = health(path)
    assert found.intact
    assert found.nbytes > path.stat().st_size


def test_damaged_pages_are_found_after_an_intact_first_one(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-2 * 4096 :] = b"damaged!" * 1024
    path.write_bytes(data)
    found = health(path)
    assert found.problem is not None
    assert "damaged" in found.problem
    assert not found.intact


@pytest.mark.parametrize(
    ("statement", "words"),
    [("PRAGMA application_id = 7", "another program"), ("PRAGMA user_version = 999", "newer iosched")],
)
def test_foreign_and_newer_files_are_reported(path: Path, statement: str, words: str) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute(statement)
    found = health(path)
    assert found.problem is not None
    assert words in found.problem
    assert found.intact is None


def test_a_folder_is_no_database(tmp_path: Path) -> None:
    assert health(tmp_path).problem is not None


def test_a_missing_file_can_be_created(tmp_path: Path) -> None:
    found = health(tmp_path / "a" / "b" / "profile.sqlite")
    assert (found.exists, found.writable, found.nbytes, found.problem) == (False, True, 0, None)
    assert list(tmp_path.iterdir()) == []


def test_a_database_below_a_file_cannot_be_created(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    found = health(tmp_path / "file" / "profile.sqlite")
    assert not found.writable
    assert found.problem is not None


def test_a_database_in_an_unsearchable_folder_cannot_be_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked, access, stat = tmp_path / "locked", os.access, Path.stat
    (locked / "below").mkdir(parents=True)

    def searched(path: Path, **words: bool) -> os.stat_result:
        if locked in path.parents:
            raise PermissionError(13, "Permission denied", str(path))
        return stat(path, **words)

    monkeypatch.setattr(Path, "stat", searched)

    def allowed(path: Path, mode: int) -> bool:
        return mode == os.F_OK if path == locked else locked not in path.parents and access(path, mode)

    monkeypatch.setattr(os, "access", allowed)
    found = health(locked / "below" / "profile.sqlite")
    assert (found.exists, found.writable) == (False, False)
    assert found.problem is not None
    assert "cannot create" in found.problem


@pytest.mark.parametrize("kept", ["file", "folder"])
def test_a_read_only_database_is_read_and_refused(path: Path, monkeypatch: pytest.MonkeyPatch, kept: str) -> None:
    locked = path if kept == "file" else path.parent
    access = os.access
    monkeypatch.setattr(os, "access", lambda each, mode: access(each, mode) and not (each == locked and mode & os.W_OK))
    found = health(path)
    assert (found.readable, found.writable, found.intact) == (True, False, True)
    assert found.problem is not None
    assert "is not writable" in found.problem
