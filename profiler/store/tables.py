"""The tables of the profile database: a class for the rows of each, which are written to SQLite and exported as JSON.

Of a latency all samples are kept, and nothing else: its median and its interval are computed anew from the samples
whenever a row is read, so a row cannot contradict itself.
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
"""Which measurement of a stage a row is: the first thorough one, the one that was taken again because a choice depended
on it, or a rough one, which ended as soon as it was clear that the stage is too slow to matter."""

Samples = tuple[Annotated[float, msgspec.Meta(ge=0, lt=1e12)], ...]
"""Latencies in microseconds, in the order in which they were taken; nothing was measured for eleven days."""

ClockMhz = Annotated[int, msgspec.Meta(ge=0, lt=1_000_000)]


class ChoiceRow(msgspec.Struct, frozen=True, tag_field="table", tag="choice"):
    """Which of several ways to do the same a device uses (cuDNN plans, say): its latencies were measured that way."""

    device: str
    key: str
    value: str


class CalibrationRow(msgspec.Struct, frozen=True, tag_field="table", tag="yardstick"):
    """The latency of the reference convolution on a CPU, which the latencies of all stages there are relative to."""

    device: str
    measured_at: datetime
    samples_us: Samples


class StageRow(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="table", tag="stage"):
    """One measurement of a stage.

    Attributes:
        signature: of the stage (`scheduler/signature.py`); on a CPU it stands behind the number of lanes that the stage
            had, and of the kibibytes that were read before each run ("2:512K:…").
        samples_us: empty where the stage has nothing to run, None where the device cannot run it.
        clock_mhz: the clock of the device, read right after the last sample; None where it was not read.
        throttled_by: the reasons why that clock was lower than it could be, separated by commas.
        disturbed_by: what disturbed the measurement, separated by commas; its interval is wide.
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
    """One of several ways to run a whole model, which were measured in turn.

    Rows of the same rounds have the same `measured_at`, and as many samples.

    Attributes:
        key: a digest of the model, its shapes, and the method by which it is measured.
        candidate: a digest of how this candidate is run.
        samples_us: the latency of runs in a row, one sample for each round.
        rested_us: the latency of the first run after a rest in the same rounds; empty where this was not measured.
        setting: the setting of onnxruntime, where it is the candidate; None where the candidate is a schedule.
        others: the share of the cores' time that other processes had in each round; empty where nobody had any.
        stolen: the same of the host of a virtual machine.
        slowness: how many times as long as at the speed of stage latencies the machine took in each round; 0 where that
            was not measured, and empty where it was in none.
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
    """What a whole model took as `optimize` ships it, beside the sum of its stages, each measured alone.

    Attributes:
        key: a digest of the model, its shapes, and what was searched for.
        shipped: the name of the way that ships.
        samples_us: its latency in a row, one sample for each round of the comparison that decided.
        sequential_us: the latency of one operator after another in the same rounds.
        stages: how many stages the schedule has that was found.
        sum_us: the sum of their latencies, at the speed that the machine had in these rounds where it is known.
        sequential_sum_us: the sum of the latencies of single operators, at the same speed.
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


def table_of(kind: type[Row]) -> str:
    """The name of the table that has rows of this class."""
    return str(kind.__struct_config__.tag)


def columns_of(kind: type[Row]) -> tuple[str, ...]:
    """The columns of that table in the order of `values_of`, beginning with those of its primary key."""
    return kind.__struct_fields__


def values_of(row: Row) -> tuple[Any, ...]:
    """The values of a row as SQLite keeps them."""
    return tuple(map(sqlite_value, msgspec.structs.astuple(row)))


def sqlite_value(value: object) -> object:
    """A value of a row as SQLite keeps it: samples as eight bytes each, a time as a text that sorts as times do."""
    if isinstance(value, tuple):
        return array("d", value).tobytes()
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="microseconds")
    return value


def row_of(kind: type[Row], values: tuple[Any, ...]) -> Row:
    """The row that has these values; the inverse of `values_of`.

    Raises:
        ValueError: a value is not of the type of its column.
    """
    taken = (unpacked(value) if isinstance(value, bytes) else value for value in values)
    return msgspec.convert(dict(zip(columns_of(kind), taken, strict=True)), kind)


def unpacked(samples: bytes) -> tuple[float, ...]:
    """The samples that SQLite keeps as eight bytes each."""
    return tuple(array("d", samples))


def measurement_of(
    samples_us: tuple[float, ...] | None, clock_mhz: int | None, throttled_by: str, disturbed_by: str = ""
) -> Measurement:
    """The measurement that these columns of a row stand for; see `StageRow`."""
    if samples_us is None:
        return UNRUNNABLE
    found = summarize(samples_us) if samples_us else NOTHING_TO_RUN
    found = replace(found, clock_mhz=clock_mhz, throttled_by=_reasons(throttled_by))
    return disturbed(found, _reasons(disturbed_by))


def _reasons(text: str) -> tuple[str, ...]:
    return tuple(text.split(", ")) if text else ()


def samples_of(found: Measurement) -> tuple[float, ...] | None:
    """The column `samples_us` of a measurement of a stage; see `StageRow`."""
    return None if found.median_us == UNRUNNABLE.median_us else found.samples_us


def clock_of(found: Measurement) -> Mapping[str, Any]:
    """The columns of a measurement that are about the clock of the device; see `StageRow`."""
    return {"clock_mhz": found.clock_mhz, "throttled_by": ", ".join(found.throttled_by)}
