"""Results that `bench --json` printed, read back: one for each batch size."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from msgspec import DecodeError, Struct, ValidationError, field
from msgspec.json import decode

from iosched.models.errors import UsageError

_LEAST_US, _MOST_US = 1e-6, 1e15
"""The range of plausible latencies: a picosecond to thirty years."""


class BenchRow(Struct, frozen=True):
    """A row; only its name and concurrency are needed."""

    name: str
    in_flight: int = 1


class BenchLine(Struct, frozen=True):
    """A line of `bench --json`, of one batch size; see `docs/json.md`."""

    model: str
    device: str
    batch_size: int | None
    rows: tuple[BenchRow, ...]
    samples_us: dict[str, tuple[float, ...]] = field(default_factory=dict)
    provenance: dict[str, Any] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """The rows that have samples."""
        return tuple(row.name for row in self.rows if self.samples_us.get(row.name))

    def samples(self, name: str) -> tuple[float, ...]:
        """The microseconds from the end of one run to that of the next, round by round."""
        at_once = next(row.in_flight for row in self.rows if row.name == name)
        return tuple(each / at_once for each in self.samples_us[name])


@dataclass(frozen=True)
class BenchFile:
    """All results of one file; `place` is its name in errors."""

    place: str
    lines: tuple[BenchLine, ...]


def is_bench(data: bytes) -> bool:
    """Whether a JSON text is a result of `bench --json`, valid or not."""
    return b'"samples_us"' in data and b'"rows"' in data


def parse_bench(data: bytes, place: str) -> BenchFile:
    """Reads the objects that `bench --json` printed, one on each line, or a single one on several lines."""
    try:
        lines = tuple(decode(each, type=BenchLine) for each in _objects(data))
    except (DecodeError, ValidationError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{place}: not a result of 'iosched bench --json': {error}") from None
    for line in lines:
        _check(line, place)
    sizes = [line.batch_size for line in lines]
    if len(set(sizes)) < len(sizes):
        raise UsageError(f"{place}: several results have the same batch size: keep one of them")
    return BenchFile(place, lines)


def _objects(data: bytes) -> Sequence[bytes]:
    try:
        json.loads(data)
    except (ValueError, RecursionError):
        return [line for line in data.splitlines() if line.strip()]
    return [data]


def _check(line: BenchLine, place: str) -> None:
    if any(row.in_flight < 1 for row in line.rows):
        raise UsageError(f"{place}: not a result of 'iosched bench --json': in_flight is below 1")
    for name in line.names:
        if not all(_LEAST_US <= each <= _MOST_US for each in line.samples(name)):
            raise UsageError(
                f"{place}: samples of {name!r} are outside the range of plausible latencies: measure again"
            )
