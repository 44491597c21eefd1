"""The profile database: measurements by device, kept between runs and shared by processes.

SQLite in WAL mode; one transaction for each measurement, so a killed search loses at most the current one. A foreign,
damaged or newer file is refused and not changed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from iosched.models.errors import UsageError
from iosched.profiler.measuring.statistics import Measurement
from iosched.profiler.store.errors import ENVIRONMENT_VARIABLE, IN_MEMORY, explained
from iosched.profiler.store.process import is_alive, this_process
from iosched.profiler.store.schema import connected, transaction
from iosched.profiler.store.tables import (
    ROW_TYPES,
    CalibrationRow,
    ChoiceRow,
    ComparisonRow,
    Row,
    StageRow,
    Turn,
    WholeRow,
    clock_of,
    columns_of,
    measurement_of,
    row_of,
    samples_of,
    sqlite_value,
    table_of,
    unpacked,
    values_of,
)

LONGEST_LINE = 2**24
"""Characters of a line at most; a row with a thousand samples has some twenty thousand."""

LONGEST_TRIAL = timedelta(minutes=1)
"""A cuDNN plan is tried in milliseconds, or seconds if its code is loaded."""

_LONGEST_STAGE = timedelta(seconds=2)  # between two measurements; a longer time is a pause between searches
_FEWEST_TIMED = 10


@dataclass(frozen=True)
class DeviceStats:
    """Content of a database for one device.

    Attributes:
        measurements: of stages and of the calibration kernel; interleaved rounds of whole models count as two, one in a
            row and one after idle, and onnxruntime's fastest setting as one.
        samples: of these measurements.
        stages: different measured stages, by all strategies and numbers of lanes.
        disturbed: how many of them were only measured with interference.
    """

    device: str
    measurements: int
    samples: int
    oldest: datetime
    newest: datetime
    stages: int
    disturbed: int


@dataclass(frozen=True)
class DatabaseStats:
    """Content of a database; `path` is None in memory, `nbytes` is its size."""

    path: Path | None
    nbytes: int
    devices: tuple[DeviceStats, ...]

    @property
    def measurements(self) -> int:
        """Measurements of all devices."""
        return sum(device.measurements for device in self.devices)

    @property
    def stages(self) -> int:
        """Stages of all devices."""
        return sum(device.stages for device in self.devices)

    @property
    def disturbed(self) -> int:
        """Number of them that were only measured with interference."""
        return sum(device.disturbed for device in self.devices)


# One row for each counted measurement.
_COUNTED = """(
    SELECT device, measured_at, LENGTH(samples_us) AS nbytes FROM stage
    UNION ALL SELECT device, measured_at, LENGTH(samples_us) FROM yardstick
    UNION ALL SELECT device, measured_at, SUM(LENGTH(samples_us)) FROM comparison GROUP BY device, key, measured_at
    UNION ALL SELECT device, measured_at, SUM(LENGTH(rested_us)) FROM comparison WHERE rested_us != x''
        GROUP BY device, key, measured_at
    UNION ALL SELECT device, MIN(measured_at), 0 FROM comparison WHERE setting IS NOT NULL GROUP BY device, key
)"""


def default_path(environ: Mapping[str, str] | None = None) -> Path | None:
    """The default path of the database; None if the environment requests one in memory."""
    chosen = (os.environ if environ is None else environ).get(ENVIRONMENT_VARIABLE)
    if chosen == IN_MEMORY:
        return None
    if chosen:
        return Path(chosen).expanduser()
    from platformdirs import user_cache_dir

    return Path(user_cache_dir("iosched", appauthor=False)) / "profile.sqlite"


def path_exists(path: Path) -> bool:
    """Whether a file is visible; `Path.exists` raises if a folder on the path is not searchable."""
    return os.access(path, os.F_OK)


def device_key(
    kind: str,
    name: str,
    *,
    precision: str,
    threads: int,
    versions: Mapping[str, str],
    design: Mapping[str, str] | None = None,
) -> str:
    """A canonical text of everything but the stage that affects a latency.

    `precision` is numpy's name of the arithmetic, `threads` are worker threads or streams, and `design` distinguishes
    devices of one name.
    """
    fields = {"kind": kind, "name": name, "precision": precision, "threads": threads, "versions": dict(versions)}
    also = {} if design is None else {"design": dict(design)}
    return json.dumps(fields | also, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


class ProfileDatabase:
    """A profile database, for one thread and process; others open the same path.

    Written data are on disk when a method returns (short of a power cut). Methods raise `UsageError` if the file is
    damaged or not writable, `ExecutionError` if the disk is full or fails, and `DeviceError` if another process locks
    the file.
    """

    def __init__(
        self,
        path: Path | str | None,
        *,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        on_kept: Callable[[Sequence[Row]], None] = lambda rows: None,
    ) -> None:
        """Opens or creates the database at `path`; None or ":memory:" keeps it in memory.

        `clock` dates measurements; `on_kept` receives the rows of each stored measurement and choice, not merged ones.
        Raises as the methods do.
        """
        self.path = None if path is None or str(path) == IN_MEMORY else Path(path).expanduser()
        self._clock = clock
        self._on_kept = on_kept
        with explained(self.path):
            self._connection = connected(self.path)

    def __enter__(self) -> ProfileDatabase:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the file; nothing is lost without it."""
        self._connection.close()

    def stage(self, signature: str, device: str, turn: Turn = "first") -> Measurement | None:
        """The measurement of a stage in that turn, or None."""
        with explained(self.path):
            row = self._connection.execute(
                "SELECT samples_us, clock_mhz, throttled_by, disturbed_by FROM stage"
                " WHERE device = ? AND signature = ? AND turn = ?",
                (device, signature, turn),
            ).fetchone()
            return None if row is None else measurement_of(None if row[0] is None else unpacked(row[0]), *row[1:])

    def stage_medians(self, device: str) -> dict[str, float]:
        """The latest thorough median of every stage of `device`, in microseconds by signature; O(rows of the device).

        Infinite if the device cannot run the stage. Measurements with interference are omitted.
        """
        rows = self._found(StageRow, device=device)
        thorough = sorted((row for row in rows if row.turn != "rough" and not row.disturbed_by), key=_is_again)
        return {row.signature: measurement_of(row.samples_us, None, "").median_us for row in thorough}

    def seconds_per_stage(self, device: str) -> float | None:
        """Approximate seconds per measured stage of `device`, with all its measurements and without pauses.

        None with fewer than `_FEWEST_TIMED` measurements. O(rows of the device)
        """
        with explained(self.path):
            rows = self._connection.execute(
                "SELECT measured_at, signature FROM stage WHERE device = ? ORDER BY measured_at", (device,)
            ).fetchall()
            times = [datetime.fromisoformat(when) for when, _ in rows]
        if len(rows) < _FEWEST_TIMED:
            return None
        between = (min(after - before, _LONGEST_STAGE) for before, after in pairwise(times))
        return sum(between, timedelta()).total_seconds() / len({signature for _, signature in rows})

    def keep_stage(self, signature: str, device: str, found: Measurement, turn: Turn = "first") -> None:
        """Stores a measurement of a stage, replacing an earlier one of the same turn."""
        row = StageRow(device, signature, turn, self._clock(), samples_of(found), **clock_of(found))
        self._keep([msgspec.structs.replace(row, disturbed_by=", ".join(found.disturbed_by))])

    def forget_stage(self, signature: str, device: str) -> None:
        """Deletes the measurements of a stage in all turns."""
        with explained(self.path):
            self._connection.execute("DELETE FROM stage WHERE device = ? AND signature = ?", (device, signature))

    def calibration(self, device: str) -> Measurement | None:
        """The reference latency of the calibration kernel on this device, or None."""
        found = self._found(CalibrationRow, device=device)
        return measurement_of(found[0].samples_us, None, "") if found and found[0].samples_us else None

    def keep_calibration(self, device: str, found: Measurement) -> None:
        """Stores the reference latency of the calibration kernel."""
        self._keep([CalibrationRow(device, self._clock(), found.samples_us)])

    def rounds(self, key: str, device: str) -> tuple[ComparisonRow, ...]:
        """All rounds of ways to run a whole model, earliest first; O(rows of the key)."""
        return tuple(sorted(self._found(ComparisonRow, device=device, key=key), key=lambda row: row.measured_at))

    def keep_rounds(self, rows: Sequence[ComparisonRow]) -> None:
        """Adds the rounds of one comparison."""
        self._keep(rows)

    @property
    def now(self) -> datetime:
        """The present time, by the clock that dates all rows."""
        return self._clock()

    def wholes(self, device: str) -> tuple[WholeRow, ...]:
        """All whole models measured on `device`, see `WholeRow`; O(rows of the device)."""
        return tuple(self._found(WholeRow, device=device))

    def whole(self, key: str, device: str) -> WholeRow | None:
        """A whole model measured on `device`, or None."""
        found = self._found(WholeRow, device=device, key=key)
        return found[0] if found else None

    def keep_whole(self, row: WholeRow) -> None:
        """Stores the latency of a whole model, replacing an earlier one."""
        self._keep([row])

    def choice(self, key: str, device: str) -> str | None:
        """The choice under this key that measurements on `device` used, or None."""
        found = self._found(ChoiceRow, device=device, key=key)
        return found[0].value if found else None

    def choose(self, key: str, device: str, value: str) -> str:
        """Stores `value` unless there is a choice, perhaps of another process; returns the present choice."""
        is_new = bool(self.merge([ChoiceRow(device, key, value)]))
        held = self.choice(key, device)
        if is_new:
            self._on_kept([ChoiceRow(device, key, value)])
        return value if held is None else held

    def cudnn_plan(self, key: str, name: str, device: str) -> bytes | None:
        """The serialized cuDNN plan `name` for `key` on `device`, or None."""
        with explained(self.path):
            row = self._connection.execute(
                "SELECT content FROM cudnn_plan WHERE device = ? AND key = ? AND name = ?", (device, key, name)
            ).fetchone()
        return None if row is None else bytes(row[0])

    def keep_cudnn_plan(self, key: str, name: str, device: str, content: bytes) -> None:
        """Stores a serialized cuDNN plan; `rows` omits it, since it can be rebuilt."""
        with explained(self.path):
            self._connection.execute(
                "INSERT OR REPLACE INTO cudnn_plan VALUES (?, ?, ?, ?)", (device, key, name, content)
            )

    def begin_cudnn_trial(self, key: str, name: str, device: str) -> None:
        """Records that this process is about to run a cuDNN plan, which may crash it."""
        with explained(self.path):
            self._connection.execute(
                "INSERT OR REPLACE INTO cudnn_trial VALUES (?, ?, ?, ?, ?)",
                (device, key, name, this_process(), sqlite_value(self._clock())),
            )

    def end_cudnn_trial(self, key: str, name: str, device: str, *, fatal: bool) -> None:
        """Records that this process survived the plan; with `fatal`, that the GPU did not."""
        own = (device, key, name, this_process())
        change = "UPDATE OR REPLACE cudnn_trial SET process = ''" if fatal else "DELETE FROM cudnn_trial"
        with explained(self.path):
            self._connection.execute(f"{change} WHERE device = ? AND key = ? AND name = ? AND process = ?", own)

    def fatal_cudnn_plans(self, key: str, device: str) -> frozenset[str]:
        """The cuDNN plans for `key` that stopped the GPU or crashed a process.

        Plans that a living process is trying are excluded. A process of unknown state, as in another container, counts
        as living for a minute, longer than a trial takes.
        """
        with explained(self.path):
            rows = self._connection.execute(
                "SELECT name, process, began_at FROM cudnn_trial WHERE device = ? AND key = ?", (device, key)
            ).fetchall()
        now = self._clock()
        return frozenset(
            name for name, process, began in rows if _has_ended(process, datetime.fromisoformat(began), now)
        )

    def stats(self) -> DatabaseStats:
        """Counts for each device, sorted by device; O(rows)."""
        with explained(self.path):
            rows = self._connection.execute(
                "SELECT device, COUNT(*), SUM(COALESCE(nbytes, 0)) / 8, MIN(measured_at), MAX(measured_at)"
                f" FROM {_COUNTED} GROUP BY device ORDER BY device"
            ).fetchall()
            ((nbytes,),) = self._connection.execute(
                "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()"
            ).fetchall()
            stages = {
                device: (count, disturbed)
                for device, count, disturbed in self._connection.execute(
                    "SELECT device, COUNT(*), SUM(is_disturbed) FROM (SELECT device, MIN(disturbed_by != '') AS"
                    " is_disturbed FROM stage GROUP BY device, signature) GROUP BY device"
                )
            }
            devices = tuple(
                DeviceStats(
                    *(device, count, samples, datetime.fromisoformat(oldest), datetime.fromisoformat(newest)),
                    *stages.get(device, (0, 0)),
                )
                for device, count, samples, oldest, newest in rows
            )
        return DatabaseStats(self.path, nbytes, devices)

    def clear(self, device: str | None = None) -> int:
        """Deletes the measurements of `device`, or all; returns how many, and frees their space."""
        where, values = ("", ()) if device is None else (" WHERE device = ?", (device,))
        with explained(self.path):
            with transaction(self._connection):
                ((removed,),) = self._connection.execute(f"SELECT COUNT(*) FROM {_COUNTED}{where}", values).fetchall()
                for table in (*map(table_of, ROW_TYPES), "cudnn_plan", "cudnn_trial"):
                    self._connection.execute(f"DELETE FROM {table}{where}", values)
            self._connection.execute("VACUUM")
        return int(removed)

    def rows(self) -> Iterator[Row]:
        """All portable rows, table by table, sorted by device and key."""
        with explained(self.path):
            for row_type in ROW_TYPES:
                query = f"SELECT {', '.join(columns_of(row_type))} FROM {table_of(row_type)} ORDER BY 1, 2, 3"
                for values in self._connection.execute(query):
                    yield row_of(row_type, values)

    def merge(self, rows: Sequence[Row]) -> int:
        """Adds rows, all or none; returns how many were added or replaced an older one.

        Of two measurements the newer one stays. Of two choices the local one stays, since local measurements used it.
        """
        with explained(self.path), transaction(self._connection):
            before = self._connection.total_changes
            for row_type in ROW_TYPES:
                if values := [values_of(row) for row in rows if isinstance(row, row_type)]:
                    self._connection.executemany(f"{_insertion(row_type)} {_on_conflict(row_type)}", values)
            return self._connection.total_changes - before

    def _found(self, row_type: type[Any], **key: str) -> list[Any]:
        where = " AND ".join(f"{name} = ?" for name in key)
        query = f"SELECT {', '.join(columns_of(row_type))} FROM {table_of(row_type)} WHERE {where}"
        with explained(self.path):
            return [row_of(row_type, values) for values in self._connection.execute(query, tuple(key.values()))]

    def _keep(self, rows: Sequence[Row]) -> None:
        with explained(self.path), transaction(self._connection):
            self._connection.executemany(_insertion(type(rows[0]), "OR REPLACE"), [values_of(row) for row in rows])
        self._on_kept(rows)


def _is_again(row: StageRow) -> bool:
    return row.turn == "again"


def _has_ended(process: str, began: datetime, now: datetime) -> bool:
    lives = is_alive(process)
    return now - began > LONGEST_TRIAL if lives is None else not lives


def _insertion(row_type: type[Row], how: str = "") -> str:
    columns = columns_of(row_type)
    slots = ", ".join("?" * len(columns))
    return f"INSERT {how} INTO {table_of(row_type)} ({', '.join(columns)}) VALUES ({slots})"


def _on_conflict(row_type: type[Row]) -> str:
    if "measured_at" not in columns_of(row_type):
        return "ON CONFLICT DO NOTHING"
    newer = ", ".join(f"{name} = excluded.{name}" for name in columns_of(row_type))
    return f"ON CONFLICT DO UPDATE SET {newer} WHERE excluded.measured_at > measured_at"


def export_lines(database: ProfileDatabase) -> Iterator[str]:
    """Every row of the database but cuDNN plans, as one line of JSON, in the order of `ProfileDatabase.rows`.

    "table" names the row's table; the rest are its columns (`tables.py`).
    """
    return (msgspec.json.encode(row).decode() for row in database.rows())


def import_lines(database: ProfileDatabase, lines: Iterable[str]) -> int:
    """Adds the rows of `export_lines`, all or none; returns how many were added or replaced an older one.

    Of two measurements the newer one stays; of two choices the local one. Raises a UsageError for a line that is no
    row.
    """
    return database.merge([_parsed(number, line) for number, line in enumerate(lines, 1) if line.strip()])


def _parsed(number: int, line: str) -> Row:
    try:
        if len(line) > LONGEST_LINE:
            raise ValueError(f"it is longer than {LONGEST_LINE:,} characters")
        row: Row = msgspec.json.decode(line, type=Row)
        values_of(row)  # refuses values that SQLite cannot store, such as a time in no year of UTC
        return row
    except (ValueError, OverflowError, RecursionError) as error:
        raise UsageError(
            f"line {number} is not a row of an iosched profile ({error}); nothing was imported.\n"
            "Use a file that 'iosched profile export' wrote."
        ) from error
