"""The schedule file: a schedule with everything that was known when it was made (docs/schedule.schema.json).

Text is deterministic: equal documents give equal bytes. Reading is strict, since schedule files come from anywhere.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from iosched.models.errors import InvalidScheduleError
from iosched.models.graph import ComputationGraph
from iosched.models.structure import Structure
from iosched.scheduler import document_read as read
from iosched.scheduler.document_read import JsonValue
from iosched.scheduler.document_structure import read_structure, structure_value
from iosched.scheduler.merge import can_merge
from iosched.scheduler.proof import SCOPES, Scope
from iosched.scheduler.schedule import Block, Schedule, Stage, Strategy, total_us

FORMAT = "iosched.schedule"
VERSION = 1
COSTS = ("measured", "analytic")
SHIPPED = ("iosched", "reference", "sequential")
_COUNTS = ("states", "transitions", "stages", "signatures")
_MAX_NCHARS = 64 << 20
_DIGITS = 4  # of a microsecond


@dataclass(frozen=True)
class Alternative:
    """Another schedule that was considered, and the latency of the whole of it, measured in turn with the others'."""

    name: str
    schedule: Schedule
    measured_us: float | None = None

    @property
    def latency_us(self) -> float | None:
        """Measured, or else the sum of its stages' latencies; None where these are not known."""
        return total_us(self.schedule.stages) if self.measured_us is None else self.measured_us


@dataclass(frozen=True)
class SearchRecord:
    """How the schedule was searched: settings, and counts that the same search always gives.

    What differs from run to run (seconds, measurements, cache hits) is no part of the file, so that the same profile
    database gives the same bytes.
    """

    strategy: str = "both"
    r: int | None = 3
    s: int | None = 8
    states: int = 0
    transitions: int = 0
    stages: int = 0
    signatures: int = 0

    def to_value(self) -> dict[str, JsonValue]:
        """The record as it stands in the file."""
        counts: dict[str, JsonValue] = {name: getattr(self, name) for name in _COUNTS}
        return {"strategy": self.strategy, "pruning": {"r": self.r, "s": self.s}, "counts": counts}

    @classmethod
    def read(cls, entry: read.Entry) -> SearchRecord:
        """Reads what `to_value` wrote.

        Raises:
            InvalidScheduleError: a part is missing or wrong.
        """
        pruning, counts = read.mapping(entry, "pruning"), read.mapping(entry, "counts")
        return cls(
            read.choice(entry, "strategy", read.STRATEGIES),
            read.limit(pruning, "r"),
            read.limit(pruning, "s"),
            *(read.integer(counts, name) for name in _COUNTS),
        )


@dataclass(frozen=True)
class ScheduleDocument:
    """A schedule file.

    Attributes:
        model: the model's name.
        sha256: digest over the graph and its weights.
        structure: of the model, by which other models take the schedule (`scheduler/transfer.py`); None in files of
            versions that did not keep it.
        inputs: bound shape of every graph input.
        dtype: element type that the model computes in ("float32").
        device: at least "kind" ("cpu", "cuda") and "name"; more for people.
        schedule: what runs together.
        proven: what it is proven to be the best schedule of, under the cost and pruning it was searched with: the whole
            graph, each block as it was cut, or nothing.
        cost: "measured", or "analytic" for a device that was not there.
        shipped: what `optimize` found fastest: this schedule ("iosched"), the reference runtime or "sequential".
        search: how it was searched.
        latency_us: end-to-end latencies by name ("predicted", "measured", "sequential", …), None where unknown.
        versions: library and driver versions.
        runtime: settings of the runtime that ran it, free in form.
        alternatives: the other schedules that were considered.
    """

    model: str
    sha256: str
    inputs: Mapping[str, tuple[int, ...]]
    dtype: str
    device: Mapping[str, str]
    schedule: Schedule
    proven: Scope | None = None
    cost: str = "measured"
    shipped: str = "iosched"
    search: SearchRecord = SearchRecord()
    latency_us: Mapping[str, float | None] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    runtime: Mapping[str, JsonValue] = field(default_factory=dict)
    alternatives: tuple[Alternative, ...] = ()
    structure: Structure | None = None

    @property
    def device_kind(self) -> str:
        """The device's kind: "cpu" or "cuda"."""
        return self.device["kind"]

    @property
    def device_name(self) -> str:
        """The device's name, for people."""
        return self.device["name"]

    @property
    def optimal(self) -> bool:
        """Whether it is proven that no legal schedule of the whole graph is better; see `proven`."""
        return self.proven == "whole"

    def to_json(self) -> str:
        """Deterministic text: sorted keys, microseconds rounded to 4 digits, one trailing newline.

        Raises:
            ValueError: a latency or setting is NaN or infinite.
        """
        content: dict[str, JsonValue] = {
            "format": FORMAT,
            "version": VERSION,
            "model": {
                "name": self.model,
                "sha256": self.sha256,
                "inputs": {name: list(shape) for name, shape in self.inputs.items()},
                "dtype": self.dtype,
            },
            "device": dict(self.device),
            "versions": dict(self.versions),
            "search": self.search.to_value(),
            "cost": self.cost,
            "optimal": self.optimal,
            "proven": self.proven,
            "shipped": self.shipped,
            "latency_us": {name: _rounded(value) for name, value in self.latency_us.items()},
            "runtime": dict(self.runtime),
            "blocks": [_block_json(block) for block in self.schedule.blocks],
            "alternatives": [_alternative_json(alternative) for alternative in self.alternatives],
        }
        if self.structure is not None:
            content["structure"] = structure_value(self.structure)
        return json.dumps(content, sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> ScheduleDocument:
        """Reads a schedule file.

        Raises:
            InvalidScheduleError: it is no JSON, no schedule, of a newer version, or broken; says where.
        """
        root = _root(text)
        model = read.mapping(root, "model")
        return cls(
            model=read.text(model, "name"),
            sha256=read.digest(model, "sha256"),
            inputs=read.shapes(model, "inputs"),
            dtype=read.text(model, "dtype"),
            device=read.device(root),
            schedule=Schedule(read.blocks(root)),
            proven=_proven(root),
            cost=read.choice(root, "cost", COSTS),
            shipped=read.choice(root, "shipped", SHIPPED),
            search=SearchRecord.read(read.mapping(root, "search")),
            latency_us=read.latencies(root, "latency_us"),
            versions=read.texts(root, "versions"),
            runtime=read.free_form(root, "runtime"),
            alternatives=tuple(
                Alternative(read.text(entry, "name"), Schedule(read.blocks(entry)), read.latency(entry, "measured_us"))
                for entry in read.mappings(root, "alternatives")
            ),
            structure=read_structure(root),
        )

    def validate_for(self, graph: ComputationGraph, digest: str, bindings: Mapping[str, tuple[int, ...]]) -> None:
        """Checks that the schedule is one of this graph, with these weights and input shapes.

        Raises:
            InvalidScheduleError: names the first difference: shape, type, operators, their order, or the digest.
        """
        check_shapes(self.inputs, bindings)
        check_dtype(self.dtype, graph)
        check_operators(self.schedule, graph)
        if self.sha256 != digest:
            raise InvalidScheduleError(
                f"the schedule was made for {self.model!r} with other weights or attributes "
                f"(sha256 {self.sha256[:12]}…, this model has {digest[:12]}…), by a version that did not write down "
                "for which structure; optimize this model again"
            )


def model_dtype(graph: ComputationGraph) -> str:
    """The element type that a graph computes in: that of its first floating-point input, or of its first input."""
    types = [spec.dtype for spec in graph.inputs]
    floating = [dtype for dtype in types if "float" in dtype]
    return next(iter([*floating, *types]), "float32")


def check_operators(schedule: Schedule, graph: ComputationGraph) -> None:
    """Checks that the schedule runs every operator once, after what it reads from, and merges what may be merged.

    Raises:
        InvalidScheduleError: names the operator.
    """
    place: dict[str, tuple[int, int]] = {}
    for position, stage in enumerate(schedule.stages):
        _check_merge(stage, graph)
        for group_index, group in enumerate(stage.groups):
            for name in group:
                if name not in graph.by_name:
                    raise InvalidScheduleError(f"the schedule names operator {name!r}, which the model does not have")
                _check_place(name, (position, group_index), place, graph)
                place[name] = position, group_index
    missing = [name for name in graph.by_name if name not in place]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise InvalidScheduleError(f"the schedule leaves out operator {missing[0]!r}{more} of the model")


def _check_merge(stage: Stage, graph: ComputationGraph) -> None:
    known = [name for name in stage.operators if name in graph.by_name]
    if stage.strategy is Strategy.MERGE and len(known) > 1 and not can_merge(graph, known):
        raise InvalidScheduleError(f"the schedule merges {known[0]!r} and {known[1]!r}, which cannot be merged exactly")


def _check_place(
    name: str, here: tuple[int, int], place: Mapping[str, tuple[int, int]], graph: ComputationGraph
) -> None:
    if name in place:
        raise InvalidScheduleError(f"the schedule runs operator {name!r} twice")
    for before in graph.predecessors[name]:
        if before not in place:
            raise InvalidScheduleError(f"the schedule runs operator {name!r} before {before!r}, whose output it reads")
        if place[before][0] == here[0] and place[before] != here:
            raise InvalidScheduleError(
                f"the schedule runs operator {name!r} beside {before!r}, whose output it reads, in stage {here[0]}"
            )


def check_shapes(made_for: Mapping[str, tuple[int, ...]], bindings: Mapping[str, tuple[int, ...]]) -> None:
    """Checks that a model's inputs have the names and shapes that a schedule was made for.

    Raises:
        InvalidScheduleError: names the first input that differs.
    """
    for name in sorted({*made_for, *bindings}):
        ours, theirs = bindings.get(name), made_for.get(name)
        if ours is None:
            raise InvalidScheduleError(f"the schedule was made for a model with input {name!r}, which is not here")
        if theirs is None:
            raise InvalidScheduleError(f"the schedule knows no input {name!r} of the model")
        if tuple(ours) != tuple(theirs):
            raise InvalidScheduleError(
                f"the schedule was made for input {name!r} of shape {_shape(theirs)}, not {_shape(ours)}; "
                f"bind --input-shape {name}={_shape(theirs)} or optimize for this shape"
            )


def check_dtype(made_for: str, graph: ComputationGraph) -> None:
    """Checks that a model computes in the type that a schedule was made for.

    Raises:
        InvalidScheduleError: it does not.
    """
    if graph.inputs and made_for != model_dtype(graph):
        raise InvalidScheduleError(f"the schedule was made for {made_for}, and the model is {model_dtype(graph)}")


def _shape(shape: Sequence[int]) -> str:
    return "x".join(str(size) for size in shape) or "scalar"


def _root(text: str | bytes) -> read.Entry:
    if len(text) > _MAX_NCHARS:
        raise InvalidScheduleError(f"not a schedule: larger than {_MAX_NCHARS >> 20} MiB")
    root = read.parse(text)
    if root.content.get("format") != FORMAT:
        raise InvalidScheduleError(f'not a schedule: no "format": "{FORMAT}" at its top')
    version = read.integer(root, "version")
    if version != VERSION:
        raise InvalidScheduleError(f"schedule version {version} is not known here ({VERSION} is); upgrade iosched")
    return root


def _proven(root: read.Entry) -> Scope | None:
    """What is proven; older files do not say, and their "optimal" was about the blocks."""
    if root.content.get("proven") is None:
        return None
    chosen = read.choice(root, "proven", SCOPES)
    return next(scope for scope in SCOPES if scope == chosen)


def _rounded(value: float | None) -> int | float | None:
    if value is None or isinstance(value, int):
        return value
    if not math.isfinite(value):
        raise ValueError(f"a schedule file cannot hold {value}")
    return round(value, _DIGITS)


def _block_json(block: Block) -> dict[str, JsonValue]:
    stages: list[JsonValue] = [_stage_json(stage) for stage in block.stages]
    return {"index": block.index, "optimal": block.optimal, "stages": stages}


def _stage_json(stage: Stage) -> dict[str, JsonValue]:
    return {
        "strategy": stage.strategy.value,
        "groups": [list(group) for group in stage.groups],
        "latency_us": {"predicted": _rounded(stage.predicted_us), "measured": _rounded(stage.measured_us)},
    }


def _alternative_json(alternative: Alternative) -> dict[str, JsonValue]:
    return {
        "name": alternative.name,
        "measured_us": _rounded(alternative.measured_us),
        "blocks": [_block_json(block) for block in alternative.schedule.blocks],
    }
