"""A file of the current schema is used, an older one of iosched's is set aside, and any other is refused."""

from __future__ import annotations

import multiprocessing
import sqlite3
import warnings
from contextlib import closing
from pathlib import Path

import pytest

from iosched.models.errors import SetAsideWarning, UsageError
from iosched.profiler.measuring.statistics import summarize
from iosched.profiler.store import schema
from iosched.profiler.store.database import ProfileDatabase, device_key
from iosched.profiler.store.schema import APPLICATION_ID, VERSION

CPU = device_key("cpu", "Some CPU", precision="mixed", threads=2, versions={"onnxruntime": "1.31.1"})
FOUND = summarize([10.5, 9.25, 11.0, 10.0, 10.125, 9.5, 30.0])


def old_database(path: Path, version: int = VERSION - 1) -> None:
    """A file that carries our mark and an earlier schema, whose row is still in its log alone."""
    with closing(sqlite3.connect(path)) as raw:
        raw.executescript(
            f"PRAGMA journal_mode = WAL; PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {version};"
            "CREATE TABLE measurement (signature TEXT); INSERT INTO measurement VALUES ('s')"
        )


def rows_of(path: Path) -> list[tuple[str]]:
    with closing(sqlite3.connect(path)) as raw:
        return raw.execute("SELECT signature FROM measurement").fetchall()


@pytest.mark.parametrize("version", [1, VERSION - 1])
def test_an_older_file_is_renamed_and_a_new_one_made(tmp_path: Path, version: int) -> None:
    path = tmp_path / "p.sqlite"
    old_database(path, version)
    with (
        pytest.warns(SetAsideWarning, match=rf"renamed to .*p\.sqlite\.schema-{version},"),
        ProfileDatabase(path) as profile,
    ):
        profile.keep_stage("s", CPU, FOUND)
    assert rows_of(tmp_path / f"p.sqlite.schema-{version}") == [("s",)]
    with ProfileDatabase(path) as profile:
        assert profile.stage("s", CPU) == FOUND


def test_a_name_that_is_taken_is_not_written_over(tmp_path: Path) -> None:
    path, taken = tmp_path / "p.sqlite", tmp_path / f"p.sqlite.schema-{VERSION - 1}"
    taken.write_text("mine")
    for _ in range(2):
        old_database(path)
        with pytest.warns(SetAsideWarning):
            ProfileDatabase(path).close()
        path.unlink()
    assert taken.read_text() == "mine"
    assert [rows_of(tmp_path / f"{taken.name}.{number}") for number in (2, 3)] == [[("s",)]] * 2


def test_rows_in_the_log_of_a_process_that_was_killed_are_renamed_too(tmp_path: Path) -> None:
    path = tmp_path / "p.sqlite"
    old_database(path)
    process = multiprocessing.get_context("fork").Process(target=_write_and_die, args=(path,))
    process.start()
    process.join(60)
    assert path.with_name("p.sqlite-wal").stat().st_size > 0
    with pytest.warns(SetAsideWarning):
        ProfileDatabase(path).close()
    assert rows_of(tmp_path / f"p.sqlite.schema-{VERSION - 1}") == [("s",), ("late",)]


def _write_and_die(path: Path) -> None:
    raw = sqlite3.connect(path, isolation_level=None)
    raw.execute("INSERT INTO measurement VALUES ('late')")
    multiprocessing.current_process().kill()  # type: ignore[attr-defined]


def test_a_link_leads_to_the_new_file(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    link = tmp_path / "p.sqlite"
    link.symlink_to(tmp_path / "there" / "q.sqlite")
    old_database(link)
    with pytest.warns(SetAsideWarning):
        ProfileDatabase(link).close()
    assert link.is_symlink()
    assert rows_of(tmp_path / "there" / f"q.sqlite.schema-{VERSION - 1}") == [("s",)]


def test_an_older_file_that_another_process_has_open_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "p.sqlite"
    old_database(path)
    with closing(sqlite3.connect(path)) as other:
        other.execute("SELECT * FROM measurement").fetchall()
        with pytest.raises(UsageError, match="earlier iosched, but another process has it open"):
            ProfileDatabase(path)
    assert rows_of(path) == [("s",)]
    assert not list(tmp_path.glob("*.schema-*"))


def _open(path: Path) -> None:
    warnings.simplefilter("ignore", SetAsideWarning)
    with ProfileDatabase(path) as profile:
        profile.keep_stage(multiprocessing.current_process().name, CPU, FOUND)


def test_several_processes_set_one_file_aside_once(tmp_path: Path) -> None:
    for number in range(5):
        path = tmp_path / str(number) / "p.sqlite"
        path.parent.mkdir()
        old_database(path)
        context = multiprocessing.get_context("fork")
        workers = [context.Process(target=_open, args=(path,), name=f"w{index}") for index in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(60)
        ended_well = [worker.name for worker in workers if worker.exitcode == 0]
        assert ended_well, "at least one sets the file aside"  # the others may find it open, and refuse it
        assert [each.name for each in path.parent.glob("*.schema-*")] == [f"p.sqlite.schema-{VERSION - 1}"]
        with ProfileDatabase(path) as profile:
            assert all(profile.stage(name, CPU) == FOUND for name in ended_well)


@pytest.mark.parametrize("is_old", [False, True])
def test_an_unreadable_folder_allows_only_a_file_of_the_current_schema(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_old: bool
) -> None:
    path = tmp_path / "p.sqlite"
    if is_old:
        old_database(path)

    def refused(name: Path, flags: int) -> int:
        raise PermissionError(13, "Permission denied", str(name))

    monkeypatch.setattr(schema.os, "open", refused)
    if is_old:
        with pytest.raises(UsageError, match="cannot be renamed: Permission denied"):
            ProfileDatabase(path)
        return
    with ProfileDatabase(path) as profile:
        profile.keep_stage("s", CPU, FOUND)
        assert profile.stage("s", CPU) == FOUND


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "p.sqlite"
    ProfileDatabase(path).close()
    with closing(sqlite3.connect(path)) as newer:
        newer.execute(f"PRAGMA user_version = {VERSION + 1}")
    with pytest.raises(UsageError, match="written by a newer iosched"):
        ProfileDatabase(path)


def test_a_file_of_another_program_is_refused_whatever_its_version(tmp_path: Path) -> None:
    path = tmp_path / "p.sqlite"
    with closing(sqlite3.connect(path)) as other:
        other.executescript("PRAGMA user_version = 3; CREATE TABLE t (x)")
    before = path.read_bytes()
    with pytest.raises(UsageError, match="another program"):
        ProfileDatabase(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TRIGGER evil AFTER INSERT ON stage BEGIN DELETE FROM stage; END",
        "CREATE VIEW evil AS WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM r) SELECT x FROM r",
        "CREATE TABLE evil (x, y GENERATED ALWAYS AS (hex(zeroblob(100000000))) VIRTUAL)",
        "CREATE TABLE evil (x, y AS (hex(zeroblob(100000000))))",
        "CREATE VIRTUAL TABLE evil USING fts5(x)",
    ],
)
def test_a_database_with_foreign_schema_objects_is_refused(tmp_path: Path, statement: str) -> None:
    path = tmp_path / "p.sqlite"
    ProfileDatabase(path).close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(statement)
    before = path.read_bytes()
    with pytest.raises(UsageError, match=r"p\.sqlite contains 'evil', which does not belong"):
        ProfileDatabase(path)
    assert path.read_bytes() == before
