"""The tables of the profile database: a class for the rows of each, for SQLite and for JSON exports.

Only samples of a latency are stored; its median and interval are computed from them, so a row cannot contradict itself.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import msgspec

from iosched.models.prepared import prepare
from iosched.profiler.measuring.disturbance import disturbed
from iosched.profiler.measuring.statistics import NOTHING_TO_RUN, UNRUNNABLE, Measurement, summarize
from iosched.scheduler.document_format import Shipped

Turn = Literal["first", "again", "rough"]
"""Which measurement of a stage a row is: the first thorough one, a second one because a choice depended on it, or a
rough one, which ended once the stage was clearly too slow.
"""

Samples = tuple[Annotated[float, msgspec.Meta(ge=0, lt=1e12)], ...]
"""Latencies in microseconds, in order; below eleven days."""

ClockMhz = Annotated[int, msgspec.Meta(ge=0, lt=1_000_000)]


class ChoiceRow(msgspec.Struct, frozen=True, tag_field="table", tag="choice"):
    """Which of several equivalent ways a device uses, such as a cuDNN plan: its latencies were measured that way."""

    device: str
    key: str
    value: str


class CalibrationRow(msgspec.Struct, frozen=True, tag_field="table", tag="yardstick"):
    """The reference latency of the calibration kernel on a CPU, which all its stage latencies are relative to."""

    device: str
    measured_at: datetime
    samples_us: Samples


class StageRow(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="table", tag="stage"):
    """One measurement of a stage.

    Attributes:
        signature: of the stage (`scheduler/signature.py`); on a CPU after the number of lanes and of flushed kibibytes
            ("2:512K:…").
        samples_us: empty if the stage has nothing to run, None if the device cannot run it.
        clock_mhz: the device's clock right after the last sample; None if unknown.
        throttled_by: reasons for a lower clock, separated by commas.
        disturbed_by: the interference, separated by commas; the interval is wide.
    """

    device: str
    signature: str
    turn: Turn
    measured_at: datetime
    samples_us: Samples | None
    clock_mhz: ClockMhz | None = None
    throttled_by: str = ""
    disturbed_by: str = ""


class ComparisonRow(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="table", tag="comparison"):
    """One of several interleaved ways to run a whole model.

    Rows of the same rounds have the same `measured_at` and the same number of samples.

    Attributes:
        key: a digest of the model, its shapes, and the method of measurement.
        candidate: a digest of how this candidate is run.
        samples_us: latency in a row, one sample for each round.
        rested_us: latency of the first run after idle in the same rounds; empty if unmeasured.
        setting: of onnxruntime, if it is the candidate; else None.
        others: other processes' share of the cores' time in each round; empty without any.
        stolen: the same of the host of a virtual machine.
        slowness: of the machine in each round against the speed of stage latencies; 0 if unknown, empty if never known.
    """

    device: str
    key: str
    candidate: str
    measured_at: datetime
    samples_us: Samples
    rested_us: Samples = ()
    setting: str | None = None
    others: Samples = ()
    stolen: Samples = ()
    slowness: Samples = ()


class WholeRow(msgspec.Struct, frozen=True, tag_field="table", tag="whole"):
    """The latency of a whole model as `optimize` ships it, and the sum of its separately measured stages.

    Attributes:
        key: a digest of the model, its shapes, and the search.
        samples_us: its latency in a row, one sample for each round of the deciding comparison.
        sequential_us: latency of one operator after another in the same rounds.
        sum_us: sum of their latencies, at the machine's speed in these rounds if known.
        sequential_sum_us: sum of the latencies of single operators, at the same speed.
    """

    device: str
    key: str
    measured_at: datetime
    shipped: Shipped
    samples_us: Samples
    sequential_us: Samples
    stages: Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)]
    sum_us: Annotated[float, msgspec.Meta(ge=0, lt=1e12)]
    sequential_sum_us: Annotated[float, msgspec.Meta(ge=0, lt=1e12)]


Row = ChoiceRow | CalibrationRow | StageRow | ComparisonRow | WholeRow
ROW_TYPES: tuple[type[Row], ...] = (ChoiceRow, CalibrationRow, StageRow, ComparisonRow, WholeRow)
prepare(Row)


def table_of(row_type: type[Row]) -> str:
    """The name of the table of this class."""
    return str(row_type.__struct_config__.tag)


def columns_of(row_type: type[Row]) -> tuple[str, ...]:
    """The columns of that table in the order of `values_of`, those of its primary key first."""
    return row_type.__struct_fields__


def values_of(row: Row) -> tuple[Any, ...]:
    """The values of a row in SQLite."""
    return tuple(map(sqlite_value, msgspec.structs.astuple(row)))


def sqlite_value(value: object) -> object:
    """A value in SQLite: samples as eight bytes each, a time as a sortable text."""
    if isinstance(value, tuple):
        return array("d", value).tobytes()
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="microseconds")
    return value


def row_of(row_type: type[Row], values: tuple[Any, ...]) -> Row:
    """The row of these values, the inverse of `values_of`; raises a ValueError for a value of the wrong type."""
    taken = (unpacked(value) if isinstance(value, bytes) else value for value in values)
    return msgspec.convert(dict(zip(columns_of(row_type), taken, strict=True)), row_type)


def unpacked(samples: bytes) -> tuple[float, ...]:
    """The samples that SQLite stores as eight bytes each."""
    return tuple(array("d", samples))


def measurement_of(
    samples_us: tuple[float, ...] | None, clock_mhz: int | None, throttled_by: str, disturbed_by: str = ""
) -> Measurement:
    """The measurement of these columns; see `StageRow`."""
    if samples_us is None:
        return UNRUNNABLE
    found = summarize(samples_us) if samples_us else NOTHING_TO_RUN
    found = replace(found, clock_mhz=clock_mhz, throttled_by=_reasons(throttled_by))
    return disturbed(found, _reasons(disturbed_by))


def _reasons(text: str) -> tuple[str, ...]:
    return tuple(text.split(", ")) if text else ()


def samples_of(found: Measurement) -> tuple[float, ...] | None:
    """The column `samples_us` of a measurement; see `StageRow`."""
    return None if found.median_us == UNRUNNABLE.median_us else found.samples_us


def clock_of(found: Measurement) -> Mapping[str, Any]:
    """The columns of a measurement about the device's clock; see `StageRow`."""
    return {"clock_mhz": found.clock_mhz, "throttled_by": ", ".join(found.throttled_by)}
