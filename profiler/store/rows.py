"""Rows of the profile database, and the lines of JSON in which profiles travel."""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from iosched.models.errors import UsageError
from iosched.profiler.measuring.statistics import UNRUNNABLE, Measurement, summarize

UNIT = "us"
COLUMNS = "device, signature, median, low, high, samples, unit, measured_at, clock_mhz, throttled_by"
CHOICE_COLUMNS = 3  # device, key, value
_MOST_MHZ = 1_000_000

Row = tuple[Any, ...]


def measurement_row(signature: str, device: str, measurement: Measurement, when: datetime) -> Row:
    """A measurement in the order of `COLUMNS`."""
    latencies = (measurement.median_us, measurement.low_us, measurement.high_us)
    known = latencies if all(map(math.isfinite, latencies)) else (None, None, None)
    stamp = when.astimezone(UTC).isoformat(timespec="microseconds")
    samples = array("d", measurement.samples_us).tobytes()
    throttled_by = None if measurement.clock_mhz is None else ", ".join(measurement.throttled_by)
    return (device, signature, *known, samples, UNIT, stamp, measurement.clock_mhz, throttled_by)


def measurement_of(
    median: float | None,
    low: float | None,
    high: float | None,
    samples: bytes,
    clock_mhz: int | None,
    throttled_by: str | None,
) -> Measurement:
    """The measurement of some columns of a row."""
    if median is None or low is None or high is None:
        return UNRUNNABLE
    return Measurement(median, low, high, _unpack(samples), clock_mhz, _reasons(throttled_by))


def _reasons(text: str | None) -> tuple[str, ...]:
    return tuple(text.split(", ")) if text else ()


def _unpack(samples: bytes) -> tuple[float, ...]:
    return tuple(array("d", samples))


def measurement_line(row: Row) -> str:
    """A row of `measurement`, in the order of `COLUMNS`, as JSON without a newline."""
    device, signature, median, low, high, samples, unit, measured_at, clock_mhz, throttled_by = row
    fields = {
        "device": device, "signature": signature, "median": median, "low": low, "high": high,
        "samples": list(_unpack(samples)), "unit": unit, "measured_at": measured_at,
    }  # fmt: skip
    if clock_mhz is not None:
        fields |= {"clock_mhz": clock_mhz, "throttled_by": throttled_by}
    return json.dumps(fields, ensure_ascii=False, allow_nan=False)


def choice_line(device: str, key: str, value: str) -> str:
    """A row of `choice` as JSON without a newline."""
    return json.dumps({"device": device, "choice": key, "value": value}, ensure_ascii=False)


def _clock(fields: Mapping[str, Any]) -> dict[str, Any]:
    """What is told of the clock, as fields of a `Measurement`."""
    if fields.get("clock_mhz") is None:
        return {}
    clock_mhz, reasons = int(fields["clock_mhz"]), fields["throttled_by"]
    if not 0 <= clock_mhz < _MOST_MHZ or not isinstance(reasons, str):
        raise ValueError("the clock is none")
    reasons.encode()
    return {"clock_mhz": clock_mhz, "throttled_by": _reasons(reasons)}


def _parsed_choice(fields: Mapping[str, Any]) -> tuple[str, str, str]:
    row = (fields["device"], fields["choice"], fields["value"])
    if not all(isinstance(item, str) for item in row):
        raise ValueError("device, choice or value is no text")
    "".join(row).encode()
    return row


def parsed_line(number: int, line: str) -> Row:
    """One line of an export as a row of `choice` or `measurement`.

    The interval is worked out anew, since samples cannot contradict themselves.

    Raises:
        UsageError: it is no such line, with its number.
    """
    try:
        fields = json.loads(line)
        if "choice" in fields:
            return _parsed_choice(fields)
        if fields["unit"] != UNIT or not isinstance(fields["signature"], str) or not isinstance(fields["device"], str):
            raise ValueError("unit, signature or device is not what this iosched knows")
        (fields["signature"] + fields["device"]).encode()  # a lone surrogate is legal JSON, but no text
        samples = [float(sample) for sample in fields["samples"]]
        found = UNRUNNABLE if fields["median"] is None and not samples else summarize(samples)
        when = datetime.fromisoformat(fields["measured_at"])
        return measurement_row(fields["signature"], fields["device"], replace(found, **_clock(fields)), when)
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise UsageError(
            f"line {number} is no measurement of an iosched profile ({type(error).__name__}: {error}); nothing was"
            " imported.\nGive a file that `iosched profile export` wrote."
        ) from error
