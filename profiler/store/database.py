"""The profile database: what was measured on which device, kept between runs and shared by processes.

SQLite in WAL mode; one transaction for each measurement, so a killed search loses at most the one it was writing.
A file that is not ours, is damaged or was written by a newer iosched is refused and left as it is.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

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

LONGEST_TRIAL = timedelta(minutes=1)
"""A cuDNN plan is tried in milliseconds, or seconds where its code is loaded."""

_LONGEST_STAGE = timedelta(seconds=2)  # between two measurements; what takes longer is a pause between two searches
_FEWEST_TIMED = 10


@dataclass(frozen=True)
class DeviceStats:
    """How much the database knows about one device.

    Attributes:
        measurements: of stages, and of the yardstick; rounds of whole models in turn count as one of runs in a row and
            one of runs after a rest, and the setting that onnxruntime is fastest in as one, as far as it has them.
        samples: that these measurements have together.
        stages: different stages that were measured, by all strategies and numbers of lanes.
        disturbed: how many of them have only measurements that something disturbed.
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
    """How much a database knows; `path` is None for one in memory, and `nbytes` is its size."""

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
        """How many of them have only disturbed measurements."""
        return sum(device.disturbed for device in self.devices)


# One row for each thing that counts as a measurement.
_COUNTED = """(
    SELECT device, measured_at, LENGTH(samples_us) AS nbytes FROM stage
    UNION ALL SELECT device, measured_at, LENGTH(samples_us) FROM yardstick
    UNION ALL SELECT device, measured_at, SUM(LENGTH(samples_us)) FROM comparison GROUP BY device, key, measured_at
    UNION ALL SELECT device, measured_at, SUM(LENGTH(rested_us)) FROM comparison WHERE rested_us != x''
        GROUP BY device, key, measured_at
    UNION ALL SELECT device, MIN(measured_at), 0 FROM comparison WHERE setting IS NOT NULL GROUP BY device, key
)"""


def default_path(environ: Mapping[str, str] | None = None) -> Path | None:
    """The path of the database where none is given; None where the environment asks for one in memory."""
    chosen = (os.environ if environ is None else environ).get(ENVIRONMENT_VARIABLE)
    if chosen == IN_MEMORY:
        return None
    if chosen:
        return Path(chosen).expanduser()
    from platformdirs import user_cache_dir

    return Path(user_cache_dir("iosched", appauthor=False)) / "profile.sqlite"


def is_there(path: Path) -> bool:
    """Whether a file is seen there; `Path.exists` raises where a folder on the way may not be searched."""
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
    """A canonical text of everything but the stage itself that changes a latency.

    Args:
        kind: "cpu" or "cuda".
        name: the device's own name ("NVIDIA H100").
        precision: numpy name of the arithmetic ("float32").
        threads: worker threads or streams that stages may use.
        versions: runtime and libraries ("onnxruntime": "1.31.1").
        design: what tells devices of one name apart ("model": "17"); None where the name says it all.
    """
    fields = {"kind": kind, "name": name, "precision": precision, "threads": threads, "versions": dict(versions)}
    also = {} if design is None else {"design": dict(design)}
    return json.dumps(fields | also, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


class ProfileDatabase:
    """A profile database; one object belongs to one thread and one process, and each further one opens the same path.

    What a method has written is on disk (short of a power cut) when it returns. Every method raises `UsageError` where
    the file is damaged or cannot be written, `ExecutionError` where the disk is full or fails, and `DeviceError` where
    another process keeps the file locked.
    """

    def __init__(
        self,
        path: Path | str | None,
        *,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        on_kept: Callable[[Sequence[Row]], None] = lambda rows: None,
    ) -> None:
        """Opens the database at `path`, made with its folder where missing; None or ":memory:" keeps it in memory.

        Args:
            clock: says when something was measured.
            on_kept: is called with the rows of each measurement and each choice when they are on disk; not with those
                that are merged.

        Raises:
            UsageError: where the file is damaged, foreign or newer than this iosched, or its folder cannot be written.
            ExecutionError: where the disk is full or fails.
            DeviceError: where another process keeps the file locked.
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
        """The measurement of a stage that was taken in that turn; None where none was."""
        with explained(self.path):
            row = self._connection.execute(
                "SELECT samples_us, clock_mhz, throttled_by, disturbed_by FROM stage"
                " WHERE device = ? AND signature = ? AND turn = ?",
                (device, signature, turn),
            ).fetchone()
            return None if row is None else measurement_of(None if row[0] is None else unpacked(row[0]), *row[1:])

    def stage_medians(self, device: str) -> dict[str, float]:
        """The latest thorough median of every stage of `device`, in microseconds by signature; O(rows of the device).

        Infinite where the device cannot run the stage. What was measured while the machine was disturbed is left out.
        """
        rows = self._found(StageRow, device=device)
        thorough = sorted((row for row in rows if row.turn != "rough" and not row.disturbed_by), key=_is_again)
        return {row.signature: measurement_of(row.samples_us, None, "").median_us for row in thorough}

    def seconds_per_stage(self, device: str) -> float | None:
        """About how many seconds each stage took that was measured on `device`, with all of its measurements.

        Pauses do not count. None with fewer than `_FEWEST_TIMED` measurements. O(rows of the device)
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
        """Keeps a measurement of a stage in place of an earlier one in the same turn."""
        row = StageRow(device, signature, turn, self._clock(), samples_of(found), **clock_of(found))
        self._keep([msgspec.structs.replace(row, disturbed_by=", ".join(found.disturbed_by))])

    def forget_stage(self, signature: str, device: str) -> None:
        """Forgets the measurements of a stage in all turns."""
        with explained(self.path):
            self._connection.execute("DELETE FROM stage WHERE device = ? AND signature = ?", (device, signature))

    def yardstick(self, device: str) -> Measurement | None:
        """The latency of the reference convolution when the device was first met; None where it was not measured."""
        found = self._found(CalibrationRow, device=device)
        return measurement_of(found[0].samples_us, None, "") if found and found[0].samples_us else None

    def keep_calibration(self, device: str, found: Measurement) -> None:
        """Keeps the latency of the reference convolution."""
        self._keep([CalibrationRow(device, self._clock(), found.samples_us)])

    def rounds(self, key: str, device: str) -> tuple[ComparisonRow, ...]:
        """All rounds of ways to run a whole model, the earliest first; O(rows of the key)."""
        return tuple(sorted(self._found(ComparisonRow, device=device, key=key), key=lambda row: row.measured_at))

    def keep_rounds(self, rows: Sequence[ComparisonRow]) -> None:
        """Keeps what one comparison measured, beside what earlier ones did."""
        self._keep(rows)

    @property
    def now(self) -> datetime:
        """The present time, by the clock that dates all rows."""
        return self._clock()

    def wholes(self, device: str) -> tuple[WholeRow, ...]:
        """All whole models that were measured on `device`, see `WholeRow`; O(rows of the device)."""
        return tuple(self._found(WholeRow, device=device))

    def whole(self, key: str, device: str) -> WholeRow | None:
        """A whole model that was measured on `device`; None where that was never done."""
        found = self._found(WholeRow, device=device, key=key)
        return found[0] if found else None

    def keep_whole(self, row: WholeRow) -> None:
        """Keeps what a whole model took, in place of what it took before."""
        self._keep([row])

    def choice(self, key: str, device: str) -> str | None:
        """The choice that measurements on `device` were taken with; None where none was made under this key."""
        found = self._found(ChoiceRow, device=device, key=key)
        return found[0].value if found else None

    def choose(self, key: str, device: str, value: str) -> str:
        """Keeps `value` unless something was chosen before, perhaps by another process; returns what is chosen now."""
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
        """Keeps a serialized cuDNN plan; `rows` leaves it out, since it can be built again."""
        with explained(self.path):
            self._connection.execute(
                "INSERT OR REPLACE INTO cudnn_plan VALUES (?, ?, ?, ?)", (device, key, name, content)
            )

    def begin_cudnn_trial(self, key: str, name: str, device: str) -> None:
        """Notes that this process is about to run the cuDNN plan `name`, which may be the last thing that it does."""
        with explained(self.path):
            self._connection.execute(
                "INSERT OR REPLACE INTO cudnn_trial VALUES (?, ?, ?, ?, ?)",
                (device, key, name, this_process(), sqlite_value(self._clock())),
            )

    def end_cudnn_trial(self, key: str, name: str, device: str, *, fatal: bool) -> None:
        """Notes that this process has run the plan and lives; with `fatal`, that the GPU does not."""
        own = (device, key, name, this_process())
        change = "UPDATE OR REPLACE cudnn_trial SET process = ''" if fatal else "DELETE FROM cudnn_trial"
        with explained(self.path):
            self._connection.execute(f"{change} WHERE device = ? AND key = ? AND name = ? AND process = ?", own)

    def fatal_cudnn_plans(self, key: str, device: str) -> frozenset[str]:
        """The cuDNN plans for `key` that stopped the GPU, or ended the process that tried them.

        One that a living process is trying just now is none of them. Where nobody can tell whether the process lives,
        as in another container, it counts as living for a minute, which is longer than a trial takes.
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
        """Forgets the measurements of `device`, or all; returns how many, and gives their space back."""
        where, values = ("", ()) if device is None else (" WHERE device = ?", (device,))
        with explained(self.path):
            with transaction(self._connection):
                ((removed,),) = self._connection.execute(f"SELECT COUNT(*) FROM {_COUNTED}{where}", values).fetchall()
                for table in (*map(table_of, ROW_TYPES), "cudnn_plan", "cudnn_trial"):
                    self._connection.execute(f"DELETE FROM {table}{where}", values)
            self._connection.execute("VACUUM")
        return int(removed)

    def rows(self) -> Iterator[Row]:
        """All rows that can be moved to another machine, table by table, sorted by device and key."""
        with explained(self.path):
            for kind in ROW_TYPES:
                query = f"SELECT {', '.join(columns_of(kind))} FROM {table_of(kind)} ORDER BY 1, 2, 3"
                for values in self._connection.execute(query):
                    yield row_of(kind, values)

    def merge(self, rows: Sequence[Row]) -> int:
        """Adds rows, all of them or none; returns how many were added or replaced an older one.

        Of two measurements of the same thing the newer one stays. Of two choices the one that was here before stays,
        because the measurements beside it were taken with it.
        """
        with explained(self.path), transaction(self._connection):
            before = self._connection.total_changes
            for kind in ROW_TYPES:
                if values := [values_of(row) for row in rows if isinstance(row, kind)]:
                    self._connection.executemany(f"{_insertion(kind)} {_on_conflict(kind)}", values)
            return self._connection.total_changes - before

    def _found(self, kind: type[Any], **key: str) -> list[Any]:
        """The rows of `kind` whose columns have these values."""
        where = " AND ".join(f"{name} = ?" for name in key)
        query = f"SELECT {', '.join(columns_of(kind))} FROM {table_of(kind)} WHERE {where}"
        with explained(self.path):
            return [row_of(kind, values) for values in self._connection.execute(query, tuple(key.values()))]

    def _keep(self, rows: Sequence[Row]) -> None:
        """Writes rows of one kind, all of them or none, each in place of an earlier row with the same key."""
        with explained(self.path), transaction(self._connection):
            self._connection.executemany(_insertion(type(rows[0]), "OR REPLACE"), [values_of(row) for row in rows])
        self._on_kept(rows)


def _is_again(row: StageRow) -> bool:
    return row.turn == "again"


def _has_ended(process: str, began: datetime, now: datetime) -> bool:
    lives = is_alive(process)
    return now - began > LONGEST_TRIAL if lives is None else not lives


def _insertion(kind: type[Row], how: str = "") -> str:
    columns = columns_of(kind)
    places = ", ".join("?" * len(columns))
    return f"INSERT {how} INTO {table_of(kind)} ({', '.join(columns)}) VALUES ({places})"


def _on_conflict(kind: type[Row]) -> str:
    if "measured_at" not in columns_of(kind):
        return "ON CONFLICT DO NOTHING"
    newer = ", ".join(f"{name} = excluded.{name}" for name in columns_of(kind))
    return f"ON CONFLICT DO UPDATE SET {newer} WHERE excluded.measured_at > measured_at"
