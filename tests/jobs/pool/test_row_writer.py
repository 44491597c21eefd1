"""Rows are written to the database in order, however long it is locked, and no caller waits meanwhile."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from thread_cluster import PATIENCE_S, row

from iosched.jobs.pool import rows
from iosched.jobs.pool.rows import RowWriter
from iosched.models.errors import DeviceError, ExecutionError, UsageError
from iosched.profiler.store.database import ProfileDatabase
from iosched.profiler.store.tables import StageRow


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "_RETRY_S", 0.01)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "profile.sqlite"


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Another connection keeps the database locked."""
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


def steps(writer: RowWriter, until: Callable[[list[str]], Any]) -> list[str]:
    """Steps the writer until the condition holds, and returns the reasons for delays."""
    troubles: list[str] = []
    give_up = time.monotonic() + PATIENCE_S
    while not until(troubles):
        assert time.monotonic() < give_up
        troubles += filter(None, [writer.step()])
        time.sleep(0.001)
    return troubles


def stages(path: Path) -> set[str]:
    with ProfileDatabase(path) as database:
        return {found.signature for found in database.rows() if isinstance(found, StageRow)}


def test_rows_are_counted_once_they_are_in_the_database(path: Path) -> None:
    with closing(RowWriter(path)) as writer:
        writer.add((row("a"), row("b")))
        assert (writer.n_added, writer.n_written) == (2, 0)
        assert steps(writer, lambda _: writer.n_written == 2) == []
        assert stages(path) == {"a", "b"}
        assert {each.signature for each in writer.all_rows() if isinstance(each, StageRow)} == {"a", "b"}


def test_rows_that_come_while_others_are_written_are_written_next(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on, merge = threading.Event(), ProfileDatabase.merge
    monkeypatch.setattr(ProfileDatabase, "merge", lambda *asked: (goes_on.wait(PATIENCE_S), merge(*asked))[1])
    with closing(RowWriter(path)) as writer:
        writer.add((row("a"),))
        writer.step()
        writer.add((row("b"),))
        assert writer.step() is None
        goes_on.set()
        steps(writer, lambda _: writer.n_written == 2)
    assert stages(path) == {"a", "b"}


def test_a_locked_database_is_tried_again_and_loses_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("iosched.profiler.store.schema.BUSY_TIMEOUT_SECONDS", 0.01)
    with closing(RowWriter(path)) as writer:
        with locked(path):
            writer.add((row("a"),))
            for trouble in steps(writer, lambda troubles: len(troubles) == 2):
                assert "locked" in trouble
            assert writer.n_written == 0
        steps(writer, lambda _: writer.n_written == 1)
    assert stages(path) == {"a"}


def test_no_caller_waits_for_a_locked_database(path: Path) -> None:
    """SQLite waits 30 s; the rows of the database are available at once even while a write waits."""
    with closing(RowWriter(path)) as writer:
        with locked(path):
            began = time.monotonic()
            writer.add((row("a"),))
            writer.step()
            assert writer.all_rows() == ()
            assert writer.step() is None
            assert time.monotonic() - began < 10.0
        steps(writer, lambda _: writer.n_written == 1)


def test_closing_waits_for_the_remaining_rows(path: Path) -> None:
    writer = RowWriter(path)
    writer.add((row("a"),))
    writer.close()
    assert stages(path) == {"a"}


def test_closing_has_a_timeout(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("iosched.profiler.store.schema.BUSY_TIMEOUT_SECONDS", 0.01)
    writer = RowWriter(path)
    writer.add((row("a"),))
    with locked(path), pytest.raises(ExecutionError, match="locked"):
        writer.close(last_s=0.05)


@pytest.mark.parametrize("error", [UsageError("no profile database"), MemoryError("none left")])
def test_a_permanent_error_is_raised_at_once(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr(ProfileDatabase, "merge", fails)
    writer = RowWriter(None)
    writer.add((row("a"),))
    with pytest.raises(type(error), match=str(error)):
        steps(writer, lambda _: False)
    with pytest.raises(type(error)):
        writer.close()


def test_a_file_that_is_not_a_database_is_refused(path: Path) -> None:
    path.write_bytes(b"no database" * 100)
    with pytest.raises(UsageError, match="not a profile database"):
        RowWriter(path)


def test_a_database_that_is_locked_when_it_is_opened_is_an_error(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("iosched.profiler.store.schema.BUSY_TIMEOUT_SECONDS", 0.01)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(DeviceError, match="locked"):
            RowWriter(path)
