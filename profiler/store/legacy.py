"""Profiles of an earlier iosched, whose database had one table `measurement` for all that it kept.

What kind of thing a row was, a prefix of its signature said. `named` finds the table that a row belongs to now: for
files that are migrated, and for lines that are imported. A comparison of whole models had up to three rows (runs in a
row, runs after a rest, and the number of a setting), whose signatures were digests that do not say which of these a row
is, nor which candidates were compared. So such rows are kept as they are in a table `undivided`, and `undivided` below
takes them apart when a comparison is asked for and the digests are known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Literal

import msgspec

from iosched.models.prepared import prepare
from iosched.profiler.measuring.statistics import Measurement
from iosched.profiler.store.tables import ClockMhz, Compared, Samples, UndividedRow, measurement_of

_REFERENCE = "reference"


class OldChoice(msgspec.Struct, frozen=True):
    """A choice as it was exported."""

    device: str
    choice: str
    value: str


class OldMeasurement(msgspec.Struct, frozen=True):
    """A row of the table `measurement`, and the line of JSON that it was exported as."""

    device: str
    signature: str
    median: float | None
    samples: Samples
    measured_at: datetime
    unit: Literal["us"] = "us"
    clock_mhz: ClockMhz | None = None
    throttled_by: str | None = None

    def __post_init__(self) -> None:
        if self.median and not self.samples:
            raise ValueError("there are no samples")


class _Device(msgspec.Struct, frozen=True):
    threads: int


prepare(OldChoice, OldMeasurement, _Device)


def named(old: OldMeasurement) -> dict[str, Any]:
    """The columns of the row that a measurement is now, and under "table" the name of the table that it belongs to."""
    shared = {"device": old.device, "measured_at": old.measured_at}
    clock = {"clock_mhz": old.clock_mhz, "throttled_by": old.throttled_by or ""}
    if old.signature == "yardstick":
        return {"table": "yardstick", **shared, "samples_us": old.samples}
    prefix, _, rest = old.signature.partition(":")
    if prefix == "model":
        setting = _setting(old.device, int(old.samples[0])) if len(old.samples) == 1 else None
        kept = {"samples_us": old.samples if setting is None else (), "setting": setting}
        return {"table": "undivided", **shared, "key": rest, **kept, **clock}
    known = {"signature": rest, "turn": prefix} if prefix in ("again", "rough") else {}
    samples_us = None if old.median is None else old.samples
    named = {"signature": old.signature, "turn": "first", **known, "samples_us": samples_us}
    return {"table": "stage", **shared, **named, **clock}


def _setting(device: str, index: int) -> str | None:
    """The setting of onnxruntime that a number meant, which was kept as if it were the one sample of a latency.

    It counts the settings that were tried on a CPU of so many threads: those of `runtime.reference.candidates`, as they
    were then. None where the device does not say its threads, or there was no setting of that number.
    """
    try:
        threads = msgspec.json.decode(device, type=_Device).threads
    except ValueError:
        return None
    parallel = sorted({(threads, threads), (1, threads), (max(1, threads // 2), 2)}) if threads > 1 else []
    texts = [f"sequential mode, {count} threads" for count in (threads, 1)[: min(threads, 2)]]
    texts += [f"parallel mode, {inter} x {intra} threads" for intra, inter in parallel]
    return texts[index] if index < len(texts) else None


def undivided(
    texts: Sequence[str], key_of: Callable[..., str], row_of: Callable[[str], UndividedRow | None]
) -> Mapping[str, Compared]:
    """The candidates of a comparison that an earlier iosched kept, by their texts; empty where it kept none.

    Args:
        texts: how each candidate is run, in ascending order.
        key_of: computes the digest of the model, its shapes, and the texts that it is given.
        row_of: finds the row under a digest.
    """
    settings = row_of(key_of("setting", *texts))
    setting = None if settings is None else settings.setting
    as_set = {text: f"reference in {setting}" if setting and text == _REFERENCE else text for text in texts}
    order = sorted(as_set.values())
    whole, rested = row_of(key_of(*order)), row_of(key_of("after a rest", *order))
    if whole is None or not whole.samples_us or len(whole.samples_us) % len(order):
        return {}
    rested_us = () if rested is None or len(rested.samples_us) != len(whole.samples_us) else rested.samples_us
    return {
        text: Compared(_part(whole, rested_us, order.index(own), len(order)), None if own == text else setting)
        for text, own in as_set.items()
    }


def _part(whole: UndividedRow, rested_us: Sequence[float], place: int, count: int) -> Measurement:
    """The latency of the candidate that has every `count`-th sample, beginning at `place`."""
    found = measurement_of(whole.samples_us[place::count], whole.clock_mhz, whole.throttled_by)
    return replace(found, rested_us=tuple(rested_us[place::count]))
