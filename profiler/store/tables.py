"""The tables of the profile database; a row of one of them is a record, which travels as a line of JSON.

Latencies are kept as the samples that they were taken from: medians and intervals are worked out anew from these
whenever they are read, so nothing in a row can contradict itself.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import msgspec

from iosched.profiler.measuring.statistics import UNRUNNABLE, Measurement, summarize

Turn = Literal["first", "again", "rough"]
"""Which measurement of a stage it is: the first thorough one; the one that was taken again because a choice hung on it;
or one that ended as soon as it was clear that the stage is too slow to matter."""

Samples = tuple[Annotated[float, msgspec.Meta(ge=0)], ...]
"""Latencies in microseconds, in the order in which they were taken."""

ClockMhz = Annotated[int, msgspec.Meta(ge=0, lt=1_000_000)]

NOTHING_TO_RUN = Measurement(0.0, 0.0, 0.0, ())
"""What stands in the place of a measurement where a stage has no kernel."""


class ChoiceRow(msgspec.Struct, frozen=True, tag_field="table", tag="choice"):
    """What measurements were taken with, where a device offers several ways to do the same (plans of cuDNN, say)."""

    device: str
    key: str
    value: str


class YardstickRow(msgspec.Struct, frozen=True, tag_field="table", tag="yardstick"):
    """What the reference convolution took on a CPU: the latencies of its stages are relative to that."""

    device: str
    measured_at: datetime
    samples_us: Samples


class StageRow(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="table", tag="stage"):
    """One measurement of a stage.

    Attributes:
        signature: of the stage (`scheduler/signature.py`); on a CPU it stands behind the number of lanes that the stage
            had, and of the kibibytes that were read before each run ("2:512K:…").
        samples_us: empty where the stage has nothing to run, None where the device cannot run it.
        clock_mhz: of the device, read right after the last sample; None where nobody looked.
        throttled_by: what held that clock down, separated by commas.
    """

    device: str
    signature: str
    turn: Turn
    measured_at: datetime
    samples_us: Samples | None
    clock_mhz: ClockMhz | None = None
    throttled_by: str = ""


class ComparisonRow(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="table", tag="comparison"):
    """One of several ways to run a whole model that were measured in turn. All rows of a comparison have one time.

    Attributes:
        key: of the comparison: a digest of the model, its shapes, and how each of its candidates is run.
        candidate: a digest of how this one is run.
        samples_us: of runs in a row, round by round.
        rested_us: of the first run after a rest, round by round; empty where this was not measured.
        setting: how onnxruntime was set; None where the candidate is a schedule.
    """

    device: str
    key: str
    candidate: str
    measured_at: datetime
    samples_us: Samples
    rested_us: Samples = ()
    setting: str | None = None
    clock_mhz: ClockMhz | None = None
    throttled_by: str = ""


class UndividedRow(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="table", tag="undivided"):
    """What an earlier iosched kept of a comparison: see `legacy.py`, which knows what the digests were made of.

    Attributes:
        key: a digest of the model, its shapes, what this row is of, and how each candidate is run.
        samples_us: of all candidates, round by round; within a round in the order of the texts that say how they run.
        setting: in a row of its own, without samples: how onnxruntime was set.
    """

    device: str
    key: str
    measured_at: datetime
    samples_us: Samples
    setting: str | None = None
    clock_mhz: ClockMhz | None = None
    throttled_by: str = ""


Row = ChoiceRow | YardstickRow | StageRow | ComparisonRow | UndividedRow
KINDS: tuple[type[Row], ...] = (ChoiceRow, YardstickRow, StageRow, ComparisonRow, UndividedRow)


@dataclass(frozen=True)
class Compared:
    """A candidate of a comparison: its latency, and how onnxruntime was set if the candidate is onnxruntime."""

    found: Measurement
    setting: str | None = None


def table_of(kind: type[Row]) -> str:
    """The name of the table that has such rows."""
    return str(kind.__struct_config__.tag)


def columns_of(kind: type[Row]) -> tuple[str, ...]:
    """The columns of that table, in the order of `values_of`; those of its key come first."""
    return kind.__struct_fields__


def values_of(row: Row) -> tuple[Any, ...]:
    """A row as SQLite keeps it."""
    return tuple(map(sqlite_value, msgspec.structs.astuple(row)))


def sqlite_value(value: object) -> object:
    """A value of a row as SQLite keeps it: samples as eight bytes each, times as texts that sort by time."""
    if isinstance(value, tuple):
        return array("d", value).tobytes()
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="microseconds")
    return value


def row_of(kind: type[Row], values: tuple[Any, ...]) -> Row:
    """The row that `values_of` took apart.

    Raises:
        ValueError: it is no such row.
    """
    taken = (unpacked(value) if isinstance(value, bytes) else value for value in values)
    return msgspec.convert(dict(zip(columns_of(kind), taken, strict=True)), kind)


def unpacked(samples: bytes) -> tuple[float, ...]:
    """The samples that SQLite keeps as eight bytes each."""
    return tuple(array("d", samples))


def measurement_of(samples_us: tuple[float, ...] | None, clock_mhz: int | None, throttled_by: str) -> Measurement:
    """The measurement that the columns of a row make."""
    if samples_us is None:
        return UNRUNNABLE
    found = summarize(samples_us) if samples_us else NOTHING_TO_RUN
    return replace(found, clock_mhz=clock_mhz, throttled_by=tuple(throttled_by.split(", ")) if throttled_by else ())


def samples_of(found: Measurement) -> tuple[float, ...] | None:
    """What is kept of a measurement of a stage; see `StageRow.samples_us`."""
    return None if found.median_us == UNRUNNABLE.median_us else found.samples_us


def clock_of(found: Measurement) -> Mapping[str, Any]:
    """The columns that tell the clock."""
    return {"clock_mhz": found.clock_mhz, "throttled_by": ", ".join(found.throttled_by)}
