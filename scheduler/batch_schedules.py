"""Version 2 of the schedule file: schedules of one model for several batch sizes (docs/schedule.schema.json).

Each is a whole schedule file of version 1, read as strictly.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any

from msgspec import Meta, Struct

from iosched.models.errors import InvalidScheduleError
from iosched.models.graph import BatchShape, at_batch
from iosched.models.prepared import prepare
from iosched.scheduler.document import ScheduleDocument
from iosched.scheduler.document_format import (
    BATCHES_VERSION,
    FORMAT,
    Count,
    FileEntry,
    broken,
    converted,
    file_text,
    parsed,
    version_of,
)

MAX_SIZES = 64
"""The most batch sizes of a file."""

BatchSize = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Symbol = Annotated[str, Meta(min_length=1)]


class BatchModelEntry(Struct, frozen=True):
    """The model: its name, and its input shapes with a name in place of the batch size."""

    name: str
    inputs: dict[str, tuple[Count | Symbol, ...]]


class ScheduleEntry(Struct, frozen=True):
    """The schedule for one batch size, a file of version 1."""

    batch_size: BatchSize
    schedule: dict[str, Any]


class BatchesEntry(Struct, frozen=True, kw_only=True):
    """The whole file."""

    format: str = FORMAT
    version: int = BATCHES_VERSION
    model: BatchModelEntry
    schedules: Annotated[tuple[ScheduleEntry, ...], Meta(min_length=1, max_length=MAX_SIZES)]

    def __post_init__(self) -> None:
        sizes = [each.batch_size for each in self.schedules]
        if sizes != sorted(set(sizes)):
            raise broken("$.schedules must be in ascending order of batch size, without repeats")
        symbols = {dim for shape in self.model.inputs.values() for dim in shape if isinstance(dim, str)}
        if len(symbols) != 1:
            raise broken("$.model.inputs must use exactly one name for the batch size")


prepare(BatchesEntry)


@dataclass(frozen=True)
class BatchSchedules:
    """Schedules of one model by batch size, ascending; `inputs` are shapes with a name in place of the batch size."""

    model: str
    inputs: Mapping[str, BatchShape]
    by_size: Mapping[int, ScheduleDocument]

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """The batch sizes with a schedule, ascending."""
        return tuple(self.by_size)

    def shapes_at(self, batch_size: int) -> dict[str, tuple[int, ...]]:
        """The shapes of all inputs at any batch size."""
        return at_batch(self.inputs, batch_size)

    def batch_of(self, shapes: Mapping[str, tuple[int, ...]]) -> int | None:
        """The batch size of inputs of these shapes, which may omit inputs; None if they do not fit the model."""
        known = [zip(self.inputs.get(name, ()), shape, strict=False) for name, shape in shapes.items()]
        sizes = {size for pairs in known for dim, size in pairs if isinstance(dim, str)}
        if len(sizes) != 1:
            return None
        found = self.shapes_at(batch_size := sizes.pop())
        return batch_size if all(found.get(name) == tuple(shape) for name, shape in shapes.items()) else None

    def nearest(self, batch_size: int) -> int:
        """The batch size with a schedule that is nearest by ratio, the smaller of two equally near ones."""
        return min(self.by_size, key=lambda size: (abs(math.log(size / batch_size)), size))

    def to_json(self) -> str:
        """Deterministic text, as `ScheduleDocument.to_json`."""
        inputs = {name: tuple(shape) for name, shape in self.inputs.items()}
        entries = tuple(ScheduleEntry(size, each.to_entry()) for size, each in self.by_size.items())  # type: ignore[arg-type]
        return file_text(BatchesEntry(model=BatchModelEntry(self.model, inputs), schedules=entries))

    @classmethod
    def from_json(cls, text: str | bytes) -> BatchSchedules:
        """Reads a schedule file of version 2; raises an InvalidScheduleError that names the position."""
        content = parsed(text)
        if version_of(content) != BATCHES_VERSION:
            raise InvalidScheduleError("the file holds a schedule for one batch size: read it with ScheduleDocument")
        return cls.from_content(content)

    @classmethod
    def from_content(cls, content: object) -> BatchSchedules:
        """The schedules in the parsed JSON of a file of version 2; see `from_json`."""
        entry = converted(content, BatchesEntry)
        found = cls(
            entry.model.name,
            MappingProxyType(entry.model.inputs),
            MappingProxyType({each.batch_size: _document(each) for each in entry.schedules}),
        )
        for size, document in found.by_size.items():
            if dict(document.inputs) != found.shapes_at(size):
                raise broken(f"the schedule for batch size {size} has other input shapes than $.model.inputs")
        return found


def _document(entry: ScheduleEntry) -> ScheduleDocument:
    try:
        if version_of(entry.schedule) == BATCHES_VERSION:
            raise broken("schedules for several batch sizes are nested in each other")
        return ScheduleDocument.from_entry(converted(entry.schedule, FileEntry))
    except InvalidScheduleError as error:
        raise InvalidScheduleError(f"batch size {entry.batch_size}: {error}") from None


def read_schedules(text: str | bytes) -> ScheduleDocument | BatchSchedules:
    """Reads a schedule file of either version; raises an InvalidScheduleError that names the position."""
    content = parsed(text)
    if version_of(content) == BATCHES_VERSION:
        return BatchSchedules.from_content(content)
    return ScheduleDocument.from_entry(converted(content, FileEntry))
