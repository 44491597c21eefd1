"""The JSON of a schedule file, object by object, as in docs/schedule.schema.json.

msgspec checks a file against these annotations: missing keys, wrong types and values out of range are refused with the
path, such as `$.blocks[3].stages[0].groups`. Unknown keys are ignored.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from iosched.models.errors import InvalidScheduleError
from iosched.models.prepared import prepare
from iosched.scheduler.pruning import DEFAULT_PRUNING
from iosched.scheduler.schedule import Scope, Strategy
from iosched.scheduler.strategies import STAGE_RULES, RecordedStrategy
from iosched.scheduler.teams import LaneCount, Objective, Teams

FORMAT = "iosched.schedule"
VERSION = 1
BATCHES_VERSION = 2
"""Version of files with schedules for several batch sizes (`batch_schedules.py`), each of version 1."""

_MAX_NCHARS = 64 << 20
_MAX_NUMBER = 1e18  # no count, size or latency is larger, and larger ones convert slowly

S = TypeVar("S", bound=Struct)


def file_text(file: Struct) -> str:
    """Deterministic JSON: sorted keys, one trailing newline; raises a ValueError for NaN or infinity."""
    content = _plain(file)
    return json.dumps(content, default=_plain, sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _plain(entry: Any) -> dict[str, object]:
    found = msgspec.structs.asdict(entry) if isinstance(entry, Struct) else asdict(entry)
    return {key: value for key, value in found.items() if value is not UNSET}


def version_of(content: object) -> int:
    """The version of a schedule file, 1 or 2; raises an InvalidScheduleError for others."""
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise InvalidScheduleError(f'not a schedule: no "format": "{FORMAT}" at the top level')
    version = content.get("version")
    if version not in (VERSION, BATCHES_VERSION) or isinstance(version, bool):
        raise InvalidScheduleError(
            f"schedule version {ascii(version)[:20]} is not supported ({VERSION} and {BATCHES_VERSION} are); "
            "upgrade iosched"
        )
    return int(version)


def converted(content: object, struct: type[S]) -> S:
    """A part of a schedule file as the given struct; raises an InvalidScheduleError that names the position."""
    try:
        return msgspec.convert(content, struct)
    except msgspec.ValidationError as error:
        shown = str(error).encode("unicode_escape").decode()  # an untrusted file may contain any characters
        raise broken(shown if len(shown) <= 160 else f"{shown[:80]}…{shown[-80:]}") from None


def broken(what: str) -> InvalidScheduleError:
    """The error for a file of the right form with wrong content."""
    return InvalidScheduleError(f"broken schedule: {what}; create it again with 'iosched optimize'")


def parsed(text: str | bytes) -> object:
    """The JSON of a schedule file, with unique keys and finite numbers; raises an InvalidScheduleError for others."""
    if len(text) > _MAX_NCHARS:
        raise InvalidScheduleError(f"not a schedule: larger than {_MAX_NCHARS >> 20} MiB")
    try:
        content = json.loads(
            text, object_pairs_hook=_unique, parse_int=_number, parse_float=_number, parse_constant=_number
        )
        json.dumps(content, ensure_ascii=False).encode()  # raises for half a surrogate pair, which is not text
    except RecursionError:
        raise InvalidScheduleError("not a schedule: nested too deeply") from None
    except ValueError as error:
        raise InvalidScheduleError(f"not a schedule: not JSON ({error})") from None
    return content


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"key {key[:60]!r} appears twice in one object")
        found[key] = value
    return found


def _number(digits: str) -> int | float:
    """Rejects NaN and infinity too, which compare false."""
    if not abs(float(digits)) < _MAX_NUMBER:
        raise ValueError(f"{digits[:20]} is too large or not a number")
    return float(digits) if digits.strip("-0123456789") else int(digits)


Cost = Literal["measured", "analytic"]
Shipped = Literal[
    "iosched", "reference", "sequential", "openvino", "tensorrt", "serial", "packed", "batched", "mixed"
]  # fmt: skip
Count = Annotated[int, Meta(ge=0)]
Limit: TypeAlias = Annotated[int, Meta(ge=1)] | None
Microseconds: TypeAlias = Annotated[float, Meta(ge=0)] | None
Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
Group = Annotated[tuple[str, ...], Meta(min_length=1)]
Lanes = Annotated[tuple[Count, ...], Meta(min_length=1)]


class ModelEntry(Struct, frozen=True):
    """The scheduled model."""

    name: str
    sha256: Digest
    inputs: dict[str, tuple[Count, ...]]
    dtype: str


class Limits(Struct, frozen=True):
    """The pruning of a search: most operators in a group, most groups in a stage; None for no limit."""

    r: Limit
    s: Limit


class Counts(Struct, frozen=True):
    """The size of a search."""

    states: Count
    transitions: Count
    stages: Count
    signatures: Count


class SearchRecord(Struct, frozen=True):
    """The settings and the reproducible counts of a search.

    Seconds, measurements and cache hits are omitted, so that the same profile database gives the same bytes.
    """

    strategy: RecordedStrategy = "both"
    pruning: Limits = Limits(DEFAULT_PRUNING.r, DEFAULT_PRUNING.s)
    counts: Counts = Counts(0, 0, 0, 0)


class StageLatency(Struct, frozen=True):
    """Latencies of one stage; None if unknown."""

    predicted: Microseconds
    measured: Microseconds


class DivisionEntry(Struct, frozen=True):
    """See `Division`."""

    lanes: LaneCount
    groups: Annotated[tuple[Lanes, ...], Meta(min_length=1)]

    def __post_init__(self) -> None:
        for number, group in enumerate(self.groups):
            if any(one >= next_one for one, next_one in pairwise((*group, self.lanes))):
                raise ValueError(f"lanes of groups[{number}] must ascend and be below {self.lanes}")


class StageEntry(Struct, frozen=True):
    """See `Stage`. Old files, with a fixed division of lanes, have no `division`."""

    strategy: Strategy
    groups: Annotated[tuple[Group, ...], Meta(min_length=1)]
    latency_us: StageLatency
    division: DivisionEntry | UnsetType = UNSET

    def __post_init__(self) -> None:
        is_separate = len(self.groups) > 1 and all(len(group) == 1 for group in self.groups)
        is_one = STAGE_RULES[self.strategy].is_one_operator
        if is_one and not is_separate:
            raise ValueError(f"groups of a {self.strategy} stage must be two or more single operators")
        if self.division is UNSET:
            return
        if is_one:
            raise ValueError(f"a {self.strategy} stage runs as one operator: its lanes cannot be divided")
        if STAGE_RULES[self.strategy].is_in_order:
            raise ValueError(f"a {self.strategy} stage uses all lanes: they cannot be divided")
        if len(self.division.groups) != len(self.groups):
            raise ValueError(f"division has {len(self.division.groups)} groups, but the stage has {len(self.groups)}")


class BlockEntry(Struct, frozen=True):
    """See `Block`."""

    index: Count
    stages: Annotated[tuple[StageEntry, ...], Meta(min_length=1)]
    optimal: bool


class AlternativeEntry(Struct, frozen=True):
    """Another schedule that was compared, and its latency."""

    name: str
    measured_us: Microseconds
    blocks: tuple[BlockEntry, ...]

    def __post_init__(self) -> None:
        _check_blocks(self.blocks)


class InputEntry(Struct, frozen=True):
    """A graph input: its name, and its type and shape as text."""

    name: str
    tensor: str


class NodeEntry(Struct, frozen=True):
    """See `NodeForm`."""

    type: str
    since: Count
    attributes: dict[str, str]
    reads: tuple[str, ...]


class FormEntry(Struct, frozen=True):
    """See `OperatorForm`."""

    type: str
    nodes: tuple[NodeEntry, ...]
    outputs: tuple[str, ...]


class OperatorEntry(Struct, frozen=True):
    """An operator; `form` is an index into the structure's forms."""

    name: str
    form: Count
    reads: tuple[Count, ...]


class StructureEntry(Struct, frozen=True):
    """See `Structure`; each form is stored once."""

    sha256: Digest
    inputs: tuple[InputEntry, ...]
    forms: tuple[FormEntry, ...]
    operators: tuple[OperatorEntry, ...]
    outputs: tuple[Count, ...]

    def __post_init__(self) -> None:
        known = len(self.inputs)
        for index, operator in enumerate(self.operators):
            if operator.form >= len(self.forms):
                raise broken(
                    f"$.structure.operators[{index}].form is {operator.form}, but there are {len(self.forms)} forms"
                )
            if max(operator.reads, default=-1) >= known:
                raise broken(f"$.structure.operators[{index}].reads names a tensor that is computed later")
            known += len(self.forms[operator.form].outputs)
        if max(self.outputs, default=-1) >= known:
            raise broken("$.structure.outputs names a missing tensor")


class FileEntry(Struct, frozen=True, kw_only=True):
    """The whole file. Old files have neither `proven` nor `structure`."""

    format: str = FORMAT
    version: int = VERSION
    model: ModelEntry
    device: dict[str, str]
    versions: dict[str, str]
    search: SearchRecord
    cost: Cost
    optimal: bool = False
    proven: Scope | None = None
    shipped: Shipped
    latency_us: dict[str, Microseconds]
    runtime: dict[str, Any]
    blocks: tuple[BlockEntry, ...]
    alternatives: tuple[AlternativeEntry, ...]
    structure: StructureEntry | UnsetType = UNSET
    objective: Objective | UnsetType = UNSET
    teams: Teams | UnsetType = UNSET
    provenance: dict[str, Any] | UnsetType = UNSET
    units: tuple[Group, ...] | UnsetType = UNSET

    def __post_init__(self) -> None:
        for key in ("kind", "name"):
            if key not in self.device:
                raise broken(f"$.device.{key} is missing")
        _check_blocks(self.blocks)


prepare(FileEntry)


def _check_blocks(blocks: Sequence[BlockEntry]) -> None:
    seen: set[str] = set()
    for position, block in enumerate(blocks):
        if block.index != position:
            raise ValueError(f"blocks[{position}].index is {block.index}")
        for name in (name for stage in block.stages for group in stage.groups for name in group):
            if name in seen:
                raise ValueError(f"operator {name[:60]!r} appears twice")
            seen.add(name)


def read_file(text: str | bytes) -> FileEntry:
    """The content of a schedule file; raises an InvalidScheduleError that names the position."""
    content = parsed(text)
    if version_of(content) == BATCHES_VERSION:
        raise InvalidScheduleError(
            "the file holds schedules for several batch sizes: read it with BatchSchedules and choose one"
        )
    return converted(content, FileEntry)
