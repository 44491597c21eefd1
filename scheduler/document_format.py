"""The JSON of a schedule file, object by object, as docs/schedule.schema.json describes it.

msgspec checks a file against the annotations here: missing keys, wrong types and values out of range are refused with
the path inside the file, such as `$.blocks[3].stages[0].groups`. Keys that are not known here are passed over.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Any, Literal, TypeAlias

from msgspec import UNSET, Meta, Struct, UnsetType

from iosched.models.errors import InvalidScheduleError
from iosched.models.prepared import prepare
from iosched.scheduler.document_text import BATCHES_VERSION, FORMAT, VERSION, broken, converted, parsed, version_of
from iosched.scheduler.pruning import DEFAULT_PRUNING
from iosched.scheduler.schedule import Scope, Strategy
from iosched.scheduler.strategies import STAGES
from iosched.scheduler.strategy_names import RecordedStrategy
from iosched.scheduler.teams import LaneCount, Objective, Teams

Cost = Literal["measured", "analytic"]
Shipped = Literal["iosched", "reference", "sequential", "openvino", "serial", "packed", "batched", "mixed"]
Count = Annotated[int, Meta(ge=0)]
Limit: TypeAlias = Annotated[int, Meta(ge=1)] | None
Microseconds: TypeAlias = Annotated[float, Meta(ge=0)] | None
Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
Group = Annotated[tuple[str, ...], Meta(min_length=1)]
Lanes = Annotated[tuple[Count, ...], Meta(min_length=1)]


class ModelEntry(Struct, frozen=True):
    """The model that was scheduled."""

    name: str
    sha256: Digest
    inputs: dict[str, tuple[Count, ...]]
    dtype: str


class Limits(Struct, frozen=True):
    """The pruning of a search: most operators in a group, most groups in a stage; None is no limit."""

    r: Limit
    s: Limit


class Counts(Struct, frozen=True):
    """How large a search was."""

    states: Count
    transitions: Count
    stages: Count
    signatures: Count


class SearchRecord(Struct, frozen=True):
    """How a schedule was searched: settings, and counts that the same search always gives.

    What differs from run to run (seconds, measurements, cache hits) is no part of the file, so that the same profile
    database gives the same bytes.
    """

    strategy: RecordedStrategy = "both"
    pruning: Limits = Limits(DEFAULT_PRUNING.r, DEFAULT_PRUNING.s)
    counts: Counts = Counts(0, 0, 0, 0)


class StageLatency(Struct, frozen=True):
    """Latencies of one stage; None where unknown."""

    predicted: Microseconds
    measured: Microseconds


class DivisionEntry(Struct, frozen=True):
    """See `Division`."""

    lanes: LaneCount
    groups: Annotated[tuple[Lanes, ...], Meta(min_length=1)]

    def __post_init__(self) -> None:
        """The lanes of a group are in ascending order, and the device has them."""
        for number, group in enumerate(self.groups):
            if any(one >= next_one for one, next_one in pairwise((*group, self.lanes))):
                raise ValueError(f"lanes of groups[{number}] must ascend and be below {self.lanes}")


class StageEntry(Struct, frozen=True):
    """See `Stage`. Files of versions that divided lanes among groups by a fixed rule have no `division`."""

    strategy: Strategy
    groups: Annotated[tuple[Group, ...], Meta(min_length=1)]
    latency_us: StageLatency
    division: DivisionEntry | UnsetType = UNSET

    def __post_init__(self) -> None:
        is_apart = len(self.groups) > 1 and all(len(group) == 1 for group in self.groups)
        is_one = STAGES[self.strategy].is_one_operator
        if is_one and not is_apart:
            raise ValueError(f"groups of a {self.strategy} stage must be two or more single operators")
        if self.division is UNSET:
            return
        if is_one:
            raise ValueError(f"a {self.strategy} stage is one operator, which no lanes can be divided among")
        if STAGES[self.strategy].is_in_order:
            raise ValueError(f"a {self.strategy} stage has all lanes, which cannot be divided")
        if len(self.division.groups) != len(self.groups):
            raise ValueError(f"division has {len(self.division.groups)} groups, the stage {len(self.groups)}")


class BlockEntry(Struct, frozen=True):
    """See `Block`."""

    index: Count
    stages: Annotated[tuple[StageEntry, ...], Meta(min_length=1)]
    optimal: bool


class AlternativeEntry(Struct, frozen=True):
    """Another schedule that was considered, and the latency of the whole of it."""

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
    """See `Structure`; each form stands in the file once."""

    sha256: Digest
    inputs: tuple[InputEntry, ...]
    forms: tuple[FormEntry, ...]
    operators: tuple[OperatorEntry, ...]
    outputs: tuple[Count, ...]

    def __post_init__(self) -> None:
        """Every tensor that is read is an input or computed before."""
        known = len(self.inputs)
        for index, operator in enumerate(self.operators):
            if operator.form >= len(self.forms):
                raise broken(f"$.structure.operators[{index}].form is {operator.form}, of {len(self.forms)} forms")
            if max(operator.reads, default=-1) >= known:
                raise broken(f"$.structure.operators[{index}].reads names a later tensor")
            known += len(self.forms[operator.form].outputs)
        if max(self.outputs, default=-1) >= known:
            raise broken("$.structure.outputs names a tensor that is not there")


class FileEntry(Struct, frozen=True, kw_only=True):
    """The whole file. Files of earlier versions have neither `proven` nor `structure`."""

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
    """Blocks are numbered by their positions, and no operator stands in two stages."""
    seen: set[str] = set()
    for position, block in enumerate(blocks):
        if block.index != position:
            raise ValueError(f"blocks[{position}].index is {block.index}")
        for name in (name for stage in block.stages for group in stage.groups for name in group):
            if name in seen:
                raise ValueError(f"operator {name[:60]!r} stands twice")
            seen.add(name)


def read_file(text: str | bytes) -> FileEntry:
    """The content of a schedule file.

    Raises:
        InvalidScheduleError: it is no JSON, no schedule, of a newer version, or broken; says where.
    """
    content = parsed(text)
    if version_of(content) == BATCHES_VERSION:
        raise InvalidScheduleError(
            "the file has schedules for several batch sizes: read it with BatchSchedules, and take one of them"
        )
    return converted(content, FileEntry)
