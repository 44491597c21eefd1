"""The profile database: keeps everything, shares between processes, never destroys a file that is not ours."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import sqlite3
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from iosched.models.errors import DeviceError, ResourceError, UsageError
from iosched.profiler.measuring.statistics import UNRUNNABLE, Measurement, summarize
from iosched.profiler.store import database, schema
from iosched.profiler.store.database import ProfileDatabase, default_path, device_key, export_lines, import_lines
from iosched.profiler.store.errors import explained
from iosched.profiler.store.tables import ComparisonRow

CPU = device_key("cpu", "Some CPU", precision="float32", threads=2, versions={"onnxruntime": "1.31.1"})
GPU = device_key("cuda", "Some GPU", precision="float16", threads=4, versions={"cudnn": "9"})
FOUND = summarize([10.5, 9.25, 11.0, 10.0, 10.125, 9.5, 30.0])
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def test_a_stored_measurement_is_read_back_bit_for_bit(tmp_path: Path) -> None:
    with ProfileDatabase(tmp_path / "new" / "folder" / "profile.sqlite") as profile:
        assert profile.stage("s", CPU) is None
        profile.keep_stage("s", CPU, FOUND)
        assert profile.stage("s", CPU) == FOUND
        assert profile.stage("s", GPU) is None
    with ProfileDatabase(tmp_path / "new" / "folder" / "profile.sqlite") as profile:
        assert profile.stage("s", CPU) == FOUND


def test_a_later_measurement_replaces_an_earlier_one() -> None:
    with ProfileDatabase(None) as profile:
        profile.keep_stage("s", CPU, FOUND)
        profile.keep_stage("s", CPU, summarize([1.0]))
        assert profile.stage("s", CPU) == summarize([1.0])
        assert profile.stats().measurements == 1


def test_an_unrunnable_stage_is_stored_and_exported() -> None:
    with ProfileDatabase(":memory:") as profile:
        profile.keep_stage("s", CPU, UNRUNNABLE)
        assert profile.stage("s", CPU) == UNRUNNABLE
        (line,) = export_lines(profile)
        profile.clear()
        import_lines(profile, [line])
        assert profile.stage("s", CPU) == Measurement(math.inf, math.inf, math.inf, ())


def test_the_device_key_is_canonical_and_differs_in_every_part() -> None:
    def key(**changed: object) -> str:
        parts = {"kind": "cpu", "name": "A", "precision": "float32", "threads": 2, "versions": {"a": "1", "b": "2"}}
        parts |= changed
        return device_key(parts.pop("kind"), parts.pop("name"), **parts)  # type: ignore[arg-type]

    assert key() == key(versions={"b": "2", "a": "1"})
    assert key(design={"a": "1", "b": "2"}) == key(design={"b": "2", "a": "1"}) != key(design={"a": "1", "b": "3"})
    assert "design" not in key()
    changes = ({"kind": "cuda"}, {"name": "B"}, {"precision": "float16"}, {"threads": 1}, {"versions": {"a": "1"}})
    assert len({key(), *(key(**change) for change in changes)}) == 6


def test_stats_report_counts_and_age_by_device(tmp_path: Path) -> None:
    times = iter([NOON, NOON + timedelta(hours=1), NOON + timedelta(hours=2)])
    with ProfileDatabase(tmp_path / "p.sqlite", clock=lambda: next(times)) as profile:
        assert profile.stats().devices == ()
        profile.keep_stage("a", CPU, FOUND)
        profile.keep_stage("b", CPU, summarize([1.0, 2.0]))
        profile.keep_stage("a", GPU, FOUND)
        stats = profile.stats()
    assert stats.path == tmp_path / "p.sqlite"
    assert stats.nbytes >= 4096
    assert stats.measurements == 3
    cpu, gpu = stats.devices
    assert (cpu.device, cpu.measurements, cpu.samples) == (CPU, 2, 9)
    assert (cpu.oldest, cpu.newest) == (NOON, NOON + timedelta(hours=1))
    assert (gpu.device, gpu.measurements, gpu.samples) == (GPU, 1, 7)


def test_clear_forgets_one_device_or_all(tmp_path: Path) -> None:
    with ProfileDatabase(tmp_path / "p.sqlite") as profile:
        for index in range(500):
            profile.keep_stage(f"s{index}", CPU, FOUND)
        profile.keep_stage("s", GPU, FOUND)
        full = profile.stats().nbytes
        assert profile.clear("no such device") == 0
        assert profile.clear(CPU) == 500
        assert profile.stage("s", GPU) == FOUND
        assert profile.stats().nbytes < full
        assert profile.clear() == 1
        assert profile.stats().measurements == 0


def test_where_the_database_lives() -> None:
    path = default_path({})
    assert path is not None
    assert path.name == "profile.sqlite"
    assert path.parent.name == "iosched"
    assert default_path({"IOSCHED_PROFILE_DB": "/else/where.sqlite"}) == Path("/else/where.sqlite")
    assert default_path({"IOSCHED_PROFILE_DB": ":memory:"}) is None


@pytest.mark.parametrize("content", [b"not a database at all, but text" * 99, b"SQLite format 3\x00" + b"\xff" * 5000])
def test_a_file_that_is_no_database_is_named_and_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "p.sqlite"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=r"p\.sqlite is damaged or not a profile database[\s\S]*--profile-db"):
        ProfileDatabase(path)
    assert path.read_bytes() == content


@pytest.mark.parametrize("damage", [f"samples_us = x'{struct.pack('d', math.nan).hex()}'", "measured_at = 'noon'"])
def test_a_damaged_row_is_reported_when_it_is_read(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "p.sqlite"
    with ProfileDatabase(path) as profile:
        profile.keep_stage("s", CPU, FOUND)
        with sqlite3.connect(path) as raw:
            raw.execute(f"UPDATE stage SET {damage}")
        raw.close()
        with pytest.raises(UsageError, match=r"p\.sqlite is damaged"):
            profile.stage("s", CPU), list(profile.rows())


def test_a_full_disk_is_reported_and_stored_rows_remain(tmp_path: Path) -> None:
    path = tmp_path / "p.sqlite"
    with ProfileDatabase(path) as profile:
        profile.keep_stage("s", CPU, FOUND)
        profile._connection.execute("PRAGMA max_page_count = 1")  # SQLite raises it to the number of existing pages
        with pytest.raises(ResourceError, match=r"no space left for the profile database[\s\S]*Free some space"):
            profile.keep_stage("t" * 10**6, CPU, FOUND)
        assert profile.stage("s", CPU) is not None


def test_a_disk_error_is_reported(tmp_path: Path) -> None:
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR_SHMSIZE
    with pytest.raises(ResourceError, match="disk error or disk full"), explained(tmp_path):
        raise error


def test_a_row_without_a_required_value_is_reported_when_rows_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "p.sqlite"
    with ProfileDatabase(path) as profile:
        profile.keep_stage("s", CPU, FOUND)
    with closing(sqlite3.connect(path)) as raw:
        raw.execute("PRAGMA writable_schema = ON")
        raw.execute("UPDATE sqlite_master SET sql = replace(sql, 'measured_at TEXT NOT NULL', 'measured_at TEXT')")
        raw.commit()
    with closing(sqlite3.connect(path)) as raw:
        raw.execute("UPDATE stage SET measured_at = NULL")
        raw.commit()
    with ProfileDatabase(path) as profile, pytest.raises(UsageError, match=r"p\.sqlite is damaged"):
        profile.stats()


def test_a_damaged_page_is_reported_when_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "p.sqlite"
    with ProfileDatabase(path) as profile:
        for index in range(200):
            profile.keep_stage(f"s{index}", CPU, FOUND)
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xa5" * (len(content) - 4096)
    path.write_bytes(content)
    with pytest.raises(UsageError, match=r"p\.sqlite is damaged"), ProfileDatabase(path) as profile:
        profile.stage("s7", CPU)


def test_a_database_of_another_program_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "p.sqlite"
    with sqlite3.connect(path) as foreign:
        foreign.execute("CREATE TABLE bookmarks (url TEXT)")
    foreign.close()
    before = path.read_bytes()
    with pytest.raises(UsageError, match=r"p\.sqlite is a database of another program"):
        ProfileDatabase(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("place", ["file/p.sqlite", "folder"])
def test_an_unusable_path_is_a_usage_error_with_a_hint(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("a file where a folder should be")
    (tmp_path / "folder").mkdir()
    with pytest.raises(UsageError, match=r"profile database[\s\S]*--profile-db :memory:"):
        ProfileDatabase(tmp_path / place)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_is_a_usage_error_with_a_hint(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(UsageError, match="--profile-db :memory:"):
        ProfileDatabase(tmp_path / "p.sqlite")


def test_a_locked_file_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "BUSY_TIMEOUT_SECONDS", 0.05)
    path = tmp_path / "p.sqlite"
    with ProfileDatabase(path) as profile:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(DeviceError, match="another process has locked"):
            profile.keep_stage("s", CPU, FOUND)
        other.execute("ROLLBACK")
        other.close()
        profile.keep_stage("s", CPU, FOUND)


def _write(path: Path, worker: int, count: int) -> None:
    with ProfileDatabase(path) as profile:
        for index in range(count):
            profile.keep_stage(f"{worker}/{index}", CPU, FOUND)


def test_several_processes_open_and_write_at_once(tmp_path: Path) -> None:
    path = tmp_path / "p.sqlite"
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_write, args=(path, worker, 100)) for worker in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0, 0, 0, 0]
    with ProfileDatabase(path) as profile:
        assert profile.stats().measurements == 400


def test_a_new_file_is_opened_by_many_at_once(tmp_path: Path) -> None:
    def open_it(path: Path, together: threading.Barrier) -> None:
        together.wait(60)
        ProfileDatabase(path).close()

    with ThreadPoolExecutor(8) as pool:
        for number in range(12):
            together = threading.Barrier(8)
            opened = [pool.submit(open_it, tmp_path / f"{number}.sqlite", together) for _ in range(8)]
            assert [one.exception() for one in opened] == [None] * 8


def _write_until_killed(path: Path, counter: multiprocessing.sharedctypes.Synchronized[int]) -> None:
    with ProfileDatabase(path) as profile:
        while True:
            profile.keep_stage(f"s{counter.value}", CPU, FOUND)
            counter.value += 1


def test_a_killed_process_loses_no_stored_rows(tmp_path: Path) -> None:
    path = tmp_path / "p.sqlite"
    context = multiprocessing.get_context("fork")
    counter = context.Value("i", 0)
    worker = context.Process(target=_write_until_killed, args=(path, counter))
    worker.start()
    deadline = time.monotonic() + 60
    while counter.value < 50 and time.monotonic() < deadline:
        time.sleep(0.002)
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGKILL)
    worker.join()
    put = counter.value
    assert put >= 50
    with ProfileDatabase(path) as profile:
        assert all(profile.stage(f"s{index}", CPU) == FOUND for index in range(put))
        assert profile.stats().measurements <= put + 1


def test_rows_are_reported_when_kept_but_not_when_merged(tmp_path: Path) -> None:
    reported: list[object] = []
    with ProfileDatabase(None, on_kept=reported.extend) as profile:
        profile.keep_stage("s", CPU, FOUND)
        profile.keep_calibration(CPU, FOUND)
        profile.keep_rounds([ComparisonRow(CPU, "k", name, NOON, FOUND.samples_us) for name in "ab"])
        profile.choose("k", CPU, "this")
        profile.choose("k", CPU, "that")
        kept = sorted(map(repr, profile.rows()))
        assert sorted(map(repr, reported)) == kept
        assert len(kept) == 5
        with ProfileDatabase(None, on_kept=reported.extend) as other:
            other.merge(list(profile.rows()))
            assert other.choose("k", CPU, "that") == "this"
        assert len(reported) == 5


def test_a_choice_holds_once_it_is_made(tmp_path: Path) -> None:
    """Stored latencies were measured with it, so a later choice does not replace it."""
    with ProfileDatabase(tmp_path / "p.db") as one, ProfileDatabase(tmp_path / "p.db") as two:
        assert one.choice("conv", "gpu") is None
        assert one.choose("conv", "gpu", "7") == "7"
        assert two.choose("conv", "gpu", "8") == "7"
        assert (two.choice("conv", "gpu"), two.choice("conv", "other")) == ("7", None)
        assert (one.choose("none", "gpu", ""), two.choose("none", "gpu", "7")) == ("", "")


def test_plans_are_kept_by_device_key_and_name_and_forgotten_with_the_measurements(tmp_path: Path) -> None:
    with ProfileDatabase(tmp_path / "p.sqlite") as profile:
        for device, key, name in [(GPU, "k", "eng1"), (GPU, "k", "eng2"), (GPU, "l", "eng1"), (CPU, "k", "eng1")]:
            profile.keep_cudnn_plan(key, name, device, f"{device} {key} {name}".encode())
        profile.keep_cudnn_plan("k", "eng2", GPU, b"\0newer")
    with ProfileDatabase(tmp_path / "p.sqlite") as profile:
        assert profile.cudnn_plan("k", "eng1", GPU) == f"{GPU} k eng1".encode()
        assert profile.cudnn_plan("k", "eng2", GPU) == b"\0newer"
        assert profile.cudnn_plan("l", "eng2", GPU) is None
        assert list(export_lines(profile)) == [], "they can be built again"
        profile.clear(GPU)
        assert profile.cudnn_plan("k", "eng1", GPU) is None
        assert profile.cudnn_plan("k", "eng1", CPU) is not None
        profile.clear()
        assert profile.cudnn_plan("k", "eng1", CPU) is None


def _dies_in_a_trial(path: Path) -> None:
    with ProfileDatabase(path) as profile:
        profile.begin_cudnn_trial("k", "eng1", GPU)
        profile.begin_cudnn_trial("k", "eng2", GPU)
        profile.end_cudnn_trial("k", "eng2", GPU, fatal=False)
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_plan_is_fatal_once_the_process_that_tried_it_is_dead(tmp_path: Path) -> None:
    path = tmp_path / "p.db"
    worker = multiprocessing.get_context("fork").Process(target=_dies_in_a_trial, args=(path,))
    worker.start()
    worker.join(60)
    assert worker.exitcode == -signal.SIGKILL
    with ProfileDatabase(path) as profile:
        assert profile.fatal_cudnn_plans("k", GPU) == {"eng1"}
        assert profile.fatal_cudnn_plans("k", CPU) == profile.fatal_cudnn_plans("l", GPU) == frozenset()
        assert list(export_lines(profile)) == [], "another machine may run them"
        profile.clear(GPU)
        assert profile.fatal_cudnn_plans("k", GPU) == frozenset()


def test_a_plan_that_a_living_process_is_trying_is_not_fatal_to_others(tmp_path: Path) -> None:
    with ProfileDatabase(tmp_path / "p.db") as one, ProfileDatabase(tmp_path / "p.db") as two:
        one.begin_cudnn_trial("k", "eng1", GPU)
        assert two.fatal_cudnn_plans("k", GPU) == frozenset()
        one.end_cudnn_trial("k", "eng1", GPU, fatal=False)
        assert two.fatal_cudnn_plans("k", GPU) == frozenset()


def test_a_plan_that_stopped_the_gpu_is_fatal_while_the_process_still_lives(tmp_path: Path) -> None:
    with ProfileDatabase(tmp_path / "p.db") as one, ProfileDatabase(tmp_path / "p.db") as two:
        one.begin_cudnn_trial("k", "eng1", GPU)
        one.end_cudnn_trial("k", "eng1", GPU, fatal=True)
        two.begin_cudnn_trial("k", "eng1", GPU)
        two.end_cudnn_trial("k", "eng1", GPU, fatal=False)
        assert one.fatal_cudnn_plans("k", GPU) == two.fatal_cudnn_plans("k", GPU) == {"eng1"}


def test_a_process_of_unknown_state_counts_as_living_for_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    times = [NOON, NOON + timedelta(seconds=59), NOON + timedelta(seconds=61)]
    monkeypatch.setattr(database, "is_alive", lambda process: None)
    with ProfileDatabase(None, clock=lambda: times.pop(0)) as profile:
        profile.begin_cudnn_trial("k", "eng1", GPU)
        assert profile.fatal_cudnn_plans("k", GPU) == frozenset()
        assert profile.fatal_cudnn_plans("k", GPU) == {"eng1"}


def test_medians_of_stages_are_the_latest_thorough_ones_of_a_quiet_machine() -> None:
    with ProfileDatabase(None) as profile:
        for signature, turn, latency_us, disturbances in (
            ("rough alone", "rough", 1.0, ()),
            ("disturbed", "first", 2.0, ("other processes",)),
            ("once", "first", 3.0, ()),
            ("again", "first", 4.0, ()),
            ("again", "again", 5.0, ()),
            ("disturbed again", "first", 6.0, ()),
            ("disturbed again", "again", 7.0, ("other processes",)),
        ):
            found = replace(summarize([latency_us] * 7), disturbed_by=disturbances)
            profile.keep_stage(signature, CPU, found, turn)  # type: ignore[arg-type]
        assert profile.stage_medians(CPU) == {"once": 3.0, "again": 5.0, "disturbed again": 6.0}
