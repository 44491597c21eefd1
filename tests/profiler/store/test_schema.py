"""Files of every earlier schema are brought to the newest one, and keep all that they had."""

from __future__ import annotations

import multiprocessing
import sqlite3
import struct
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest
from old_profiles import CPU, GPU, check_old_profile, old_database

from iosched.models.errors import UsageError
from iosched.profiler.measuring.statistics import summarize
from iosched.profiler.store import schema
from iosched.profiler.store.database import ProfileDatabase, device_key
from iosched.profiler.store.legacy import OldMeasurement, named
from iosched.profiler.store.schema import MIGRATIONS
from iosched.runtime.reference import candidates

FOUND = summarize([10.5, 9.25, 11.0, 10.0, 10.125, 9.5, 30.0])
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def test_rows_from_before_clocks_were_read_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "old.sqlite"
    monkeypatch.setattr(schema, "MIGRATIONS", MIGRATIONS[:2])
    ProfileDatabase(path).close()
    columns = "device, signature, median, low, high, samples, unit, measured_at"
    with sqlite3.connect(path) as raw:
        row = (GPU, "s", 1.0, 1.0, 1.0, struct.pack("d", 1.0), "us", NOON.isoformat())
        raw.execute(f"INSERT INTO measurement ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
    monkeypatch.undo()
    with ProfileDatabase(path) as profile:
        assert profile.stage("s", GPU) == summarize([1.0])


def test_rows_from_before_disturbances_were_noticed_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "old.sqlite"
    monkeypatch.setattr(schema, "MIGRATIONS", MIGRATIONS[:-1])
    ProfileDatabase(path).close()
    columns = "device, signature, turn, measured_at, samples_us, clock_mhz, throttled_by"
    with sqlite3.connect(path) as raw:
        row = (CPU, "s", "first", NOON.isoformat(), struct.pack("d", 1.0), None, "")
        raw.execute(f"INSERT INTO stage ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?)", row)
    monkeypatch.undo()
    with ProfileDatabase(path) as profile:
        assert profile.stage("s", CPU) == summarize([1.0])


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "p.sqlite"
    ProfileDatabase(path).close()
    with sqlite3.connect(path) as newer:
        newer.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    newer.close()
    with pytest.raises(UsageError, match="written by a newer iosched"):
        ProfileDatabase(path)


def test_an_older_schema_is_migrated_and_keeps_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "p.sqlite"
    with ProfileDatabase(path) as profile:
        profile.keep_stage("s", CPU, FOUND)
    monkeypatch.setattr(schema, "MIGRATIONS", (*MIGRATIONS, "CREATE TABLE added (x INTEGER) STRICT"))
    with ProfileDatabase(path) as profile:
        assert profile.stage("s", CPU) == FOUND
    with sqlite3.connect(path) as raw:
        assert raw.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS) + 1,)
        assert raw.execute("SELECT COUNT(*) FROM added").fetchone() == (0,)
    raw.close()


@pytest.mark.parametrize("version", [1, 2, 3, 4, 5])
def test_what_one_table_held_is_found_in_the_tables_that_it_belongs_to(tmp_path: Path, version: int) -> None:
    path = tmp_path / "old.sqlite"
    old_database(path, version)
    for _ in range(2):
        with ProfileDatabase(path) as profile:
            check_old_profile(profile, version)
            assert profile.cudnn_plan("conv:1", "eng7", GPU) == (b"\0plan" if version >= 5 else None)
    with sqlite3.connect(path) as raw:
        names = {name for (name,) in raw.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    raw.close()
    assert names == {"choice", "comparison", "cudnn_plan", "cudnn_trial", "stage", "undivided", "whole", "yardstick"}


def test_a_migration_that_fails_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "old.sqlite"
    old_database(path, 5)
    with monkeypatch.context() as patch:
        patch.setattr(schema, "MIGRATIONS", (*MIGRATIONS, "this is no SQL"))
        with pytest.raises(UsageError, match="syntax error"):
            ProfileDatabase(path)
    with ProfileDatabase(path) as profile:
        check_old_profile(profile)


def _open(path: Path) -> None:
    with ProfileDatabase(path) as profile:
        check_old_profile(profile)


def test_several_processes_migrate_one_file_at_once(tmp_path: Path) -> None:
    path = tmp_path / "old.sqlite"
    old_database(path, 5)
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_open, args=(path,)) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0, 0, 0, 0]


@pytest.mark.parametrize("threads", range(1, 10))
def test_an_index_names_the_setting_of_onnxruntime_that_it_counted(threads: int) -> None:
    device = device_key("cpu", "Some CPU", precision="mixed", threads=threads, versions={})
    known = candidates(threads)
    found = [named(_old_setting(device, index)) for index in range(len(known) + 1)]
    assert [row["setting"] for row in found] == [*(setting.description for setting in known), None]
    assert [row["samples_us"] for row in found] == [()] * len(known) + [(float(len(known)),)]


@pytest.mark.parametrize(
    "device", ["no JSON", "[]", "7", "{}", '{"threads": "2"}', '{"threads": -1}', '{"threads": null}']
)
def test_an_index_on_a_device_of_unknown_threads_stays_what_it_is(device: str) -> None:
    row = named(_old_setting(device, 3))
    assert (row["setting"], row["samples_us"]) == (None, (3.0,))


def _old_setting(device: str, index: int) -> OldMeasurement:
    return OldMeasurement(device, "model:key", float(index), (float(index),), NOON)


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
def test_a_database_that_computes_something_is_refused(tmp_path: Path, statement: str) -> None:
    path = tmp_path / "p.sqlite"
    ProfileDatabase(path).close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(statement)
    before = path.read_bytes()
    with pytest.raises(UsageError, match=r"p\.sqlite has 'evil', which no profile database"):
        ProfileDatabase(path)
    assert path.read_bytes() == before
