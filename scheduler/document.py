"""The schedule file: a schedule and how it was made (docs/schedule.schema.json).

Text is deterministic: equal documents give equal bytes. Reading is strict, since schedule files are untrusted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from msgspec import UNSET, UnsetType, convert

from iosched.models.errors import InvalidScheduleError, UsageError
from iosched.models.graph import ComputationGraph
from iosched.models.structure import NodeForm, OperatorForm, PlacedOperator, Structure, form_value
from iosched.scheduler import document_format as file
from iosched.scheduler.document_format import Cost, SearchRecord, Shipped, broken, file_text
from iosched.scheduler.precision import DEFAULT_PRECISION
from iosched.scheduler.schedule import Block, Division, Schedule, Scope, Stage, Strategy, total_us
from iosched.scheduler.start_order import start_order
from iosched.scheduler.strategies import STAGE_RULES, is_linked
from iosched.scheduler.teams import DEFAULT_OBJECTIVE, Objective, Teams, for_cores
from iosched.scheduler.unit_graph import Unit, join_units

__all__ = ["ONNXRUNTIME", "OPENVINO", "Alternative", "ScheduleDocument", "SearchRecord"]

ONNXRUNTIME: Final = "onnxruntime"
OPENVINO: Final = "openvino"
"""Under "by" in `runtime`: the library that runs the model."""

WITHOUT_OPENVINO = "without_openvino"
"""The setting in `runtime` that names the alternative if OpenVINO ships but is missing."""

_DECIMALS = 4  # of a microsecond


@dataclass(frozen=True)
class Alternative:
    """Another schedule that was compared, with the interleaved latency of the whole model."""

    name: str
    schedule: Schedule
    measured_us: float | None = None

    @property
    def latency_us(self) -> float | None:
        """Measured, else the sum of its stages; None if unknown."""
        return total_us(self.schedule.stages) if self.measured_us is None else self.measured_us


@dataclass(frozen=True)
class ScheduleDocument:
    """A schedule file.

    Attributes:
        sha256: digest of the graph and its weights.
        structure: of the model, by which other models take the schedule (`scheduler/transfer.py`); None in old files.
        inputs: bound shape of every graph input.
        dtype: element type that the model computes in ("float32").
        device: at least "kind" ("cpu", "cuda") and "name"; more if the name is ambiguous.
        proven: the scope in which it is optimal under its cost and pruning; None if it is not.
        cost: "measured", or "analytic" for a simulated device.
        shipped: the fastest way: this schedule ("iosched"), the reference runtime, "sequential", "openvino" or
            "tensorrt"; in `batch` "serial", "packed", "batched" or "mixed".
        latency_us: end-to-end latencies by name ("predicted", "measured", "sequential", …), None if unknown.
        runtime: free-form settings of the runtime.
        alternatives: the other schedules that were compared.
        teams: how cores share the work, unless all run the schedule for the whole batch.
        provenance: machine, versions and seeds of the measurements; empty without any, and in old files.
        units: the operators of each unit that the user requested.
    """

    model: str
    sha256: str
    inputs: Mapping[str, tuple[int, ...]]
    dtype: str
    device: Mapping[str, str]
    schedule: Schedule
    proven: Scope | None = None
    cost: Cost = "measured"
    shipped: Shipped = "iosched"
    search: SearchRecord = SearchRecord()
    latency_us: Mapping[str, float | None] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    runtime: Mapping[str, Any] = field(default_factory=dict)
    alternatives: tuple[Alternative, ...] = ()
    structure: Structure | None = None
    objective: Objective = DEFAULT_OBJECTIVE
    teams: Teams | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)
    units: tuple[Unit, ...] = ()

    @property
    def device_kind(self) -> str:
        """The device's kind: "cpu" or "cuda"."""
        return self.device["kind"]

    @property
    def device_name(self) -> str:
        """The device's display name."""
        return self.device["name"]

    @property
    def precision(self) -> str:
        """The precision: one of `precision.ALL_PRECISIONS`, unless the file is foreign."""
        return str(self.runtime.get("precision", DEFAULT_PRECISION))

    @property
    def shipped_without_openvino(self) -> str:
        """The plan that ships if OpenVINO is missing: "iosched", "sequential", or anything else for "reference"."""
        return str(self.runtime.get(WITHOUT_OPENVINO, "reference"))

    def teams_on(self, lanes: int) -> Teams | None:
        """`teams` adapted to `lanes` cores (`for_cores`)."""
        if self.teams is None:
            return None
        made_for = self.runtime.get("lanes")
        return for_cores(self.teams, made_for if isinstance(made_for, int) and made_for > 0 else lanes, lanes)

    @property
    def is_plain(self) -> bool:
        """Whether onnxruntime runs the model instead of this schedule."""
        return self.shipped == "reference" or self.runtime.get("by") == ONNXRUNTIME

    @property
    def is_on_openvino(self) -> bool:
        """Whether OpenVINO runs the model instead of this schedule."""
        return self.shipped == "openvino" or self.runtime.get("by") == OPENVINO

    @property
    def library(self) -> str | None:
        """The library that runs the model instead of this schedule, for messages; None if the schedule runs it."""
        if self.is_on_openvino:
            return "OpenVINO"
        if self.is_plain:
            return "plain onnxruntime"
        return "TensorRT" if self.shipped == "tensorrt" else None

    @property
    def is_shipped(self) -> bool:
        """Whether this schedule runs the model."""
        return self.library is None

    @property
    def measured_share(self) -> float | None:
        """With cost "analytic", the measured share of the latency, from 0 to 1; None if nothing was measured."""
        share = self.runtime.get("measured_share")
        return share if isinstance(share, float) and 0 <= share <= 1 else None

    @property
    def launch(self) -> str | None:
        """The kind of kernel launch of computed latencies: "graph" or "streams"; None for measured latencies.

        Old files do not record it: it was "streams".
        """
        return None if self.cost == "measured" else str(self.runtime.get("launch", "streams"))

    @property
    def batch_size(self) -> int:
        """The first dimension of the first input that has one, else 1."""
        return next((shape[0] for shape in self.inputs.values() if shape), 1)

    @property
    def optimal(self) -> bool:
        """Whether no legal schedule of the whole graph is better, proven; see `proven`."""
        return self.proven == "whole"

    def to_json(self) -> str:
        """Deterministic text: sorted keys, microseconds rounded to 4 digits, one trailing newline.

        Raises a ValueError for a latency or setting that is NaN or infinite.
        """
        return file_text(self.to_entry())

    def to_entry(self) -> file.FileEntry:
        """The content of the schedule file."""
        return file.FileEntry(
            model=file.ModelEntry(
                self.model, self.sha256, {name: tuple(shape) for name, shape in self.inputs.items()}, self.dtype
            ),
            device=dict(self.device),
            versions=dict(self.versions),
            search=self.search,
            cost=self.cost,
            optimal=self.optimal,
            proven=self.proven,
            shipped=self.shipped,
            latency_us={name: _rounded(value) for name, value in self.latency_us.items()},
            runtime=dict(self.runtime),
            blocks=_block_entries(self.schedule),
            alternatives=tuple(
                file.AlternativeEntry(each.name, _rounded(each.measured_us), _block_entries(each.schedule))
                for each in self.alternatives
            ),
            structure=UNSET if self.structure is None else _structure_entry(self.structure),
            objective=UNSET if self.objective == DEFAULT_OBJECTIVE else self.objective,
            teams=UNSET if self.teams is None else self.teams,
            provenance=dict(self.provenance) or UNSET,
            units=self.units or UNSET,
        )

    @classmethod
    def from_json(cls, text: str | bytes) -> ScheduleDocument:
        """Reads a schedule file; raises an InvalidScheduleError that names the position."""
        return cls.from_entry(file.read_file(text))

    @classmethod
    def from_entry(cls, entry: file.FileEntry) -> ScheduleDocument:
        """The document in a schedule file; raises an InvalidScheduleError if the digest of the structure is wrong."""
        return cls(
            model=entry.model.name,
            sha256=entry.model.sha256,
            inputs=entry.model.inputs,
            dtype=entry.model.dtype,
            device=entry.device,
            schedule=_schedule(entry.blocks),
            proven=entry.proven,
            cost=entry.cost,
            shipped=entry.shipped,
            search=entry.search,
            latency_us=entry.latency_us,
            versions=entry.versions,
            runtime=entry.runtime,
            alternatives=tuple(
                Alternative(each.name, _schedule(each.blocks), each.measured_us) for each in entry.alternatives
            ),
            structure=_structure(entry.structure),
            objective=DEFAULT_OBJECTIVE if entry.objective is UNSET else entry.objective,
            teams=None if entry.teams is UNSET else entry.teams,
            provenance={} if entry.provenance is UNSET else entry.provenance,
            units=() if entry.units is UNSET else entry.units,
        )

    def validate_for(self, graph: ComputationGraph, digest: str, bindings: Mapping[str, tuple[int, ...]]) -> None:
        """Raises an InvalidScheduleError unless the schedule fits this graph, with these weights and input shapes."""
        check_shapes(self.inputs, bindings)
        check_dtype(self.dtype, graph)
        check_operators(self.schedule, graph)
        check_units(self.units, graph)
        if self.sha256 != digest:
            raise InvalidScheduleError(
                f"the schedule was made for {self.model!r} with other weights or attributes "
                f"(sha256 {self.sha256[:12]}…, this model has {digest[:12]}…) and does not record its structure; "
                "optimize this model again"
            )


def _rounded(latency_us: float | None) -> float | None:
    """Rounded so that computed latencies are equal on every machine."""
    return latency_us if latency_us is None or isinstance(latency_us, int) else round(latency_us, _DECIMALS)


def _block_entries(schedule: Schedule) -> tuple[file.BlockEntry, ...]:
    return tuple(
        file.BlockEntry(block.index, tuple(map(_stage_entry, block.stages)), block.optimal) for block in schedule.blocks
    )


def _stage_entry(stage: Stage) -> file.StageEntry:
    latency = file.StageLatency(_rounded(stage.predicted_us), _rounded(stage.measured_us))
    own = stage.division
    division = UNSET if own is None else file.DivisionEntry(own.lanes, own.groups)
    return file.StageEntry(stage.strategy, stage.groups, latency, division)


def _schedule(blocks: Iterable[file.BlockEntry]) -> Schedule:
    return Schedule(tuple(Block(each.index, tuple(map(_stage, each.stages)), each.optimal) for each in blocks))


def _stage(entry: file.StageEntry) -> Stage:
    own = entry.division
    division = None if own is UNSET else Division(own.lanes, own.groups)
    return Stage(entry.strategy, entry.groups, entry.latency_us.predicted, entry.latency_us.measured, division)


def _structure_entry(structure: Structure) -> file.StructureEntry:
    operators = zip(structure.operators, structure.form_numbers, strict=True)
    return file.StructureEntry(
        sha256=structure.digest,
        inputs=tuple(file.InputEntry(name, spec) for name, spec in structure.inputs),
        forms=tuple(convert(form_value(form), file.FormEntry) for form in structure.forms),
        operators=tuple(file.OperatorEntry(each.name, number, each.reads) for each, number in operators),
        outputs=structure.outputs,
    )


def _structure(entry: file.StructureEntry | UnsetType) -> Structure | None:
    if entry is UNSET:
        return None
    forms = [OperatorForm(form.type, tuple(map(_node_form, form.nodes)), form.outputs) for form in entry.forms]
    found = Structure(
        tuple((each.name, each.tensor) for each in entry.inputs),
        tuple(PlacedOperator(each.name, forms[each.form], each.reads) for each in entry.operators),
        entry.outputs,
    )
    if entry.sha256 != found.digest:
        raise broken("$.structure.sha256 does not match the structure")
    return found


def _node_form(node: file.NodeEntry) -> NodeForm:
    return NodeForm(node.type, node.since, tuple(sorted(node.attributes.items())), node.reads)


def one_by_one(document: ScheduleDocument) -> Schedule:
    """The operators of `document.schedule`, one per stage, each in its block; O(operators).

    The order is that of the sequential schedule, else of the structure, else of the schedule itself. Latencies are
    those of stages with this operator alone in any schedule of the file.
    """
    position_of = {name: number for number, name in enumerate(_order(document))}
    alone_us = {stage.operators[0]: stage.latency_us for stage in _stages(document) if len(stage.operators) == 1}
    return Schedule(tuple(_in_order(block, position_of, alone_us) for block in document.schedule.blocks))


def _in_order(block: Block, position_of: Mapping[str, int], alone_us: Mapping[str, float | None]) -> Block:
    names = sorted((name for stage in block.stages for name in stage.operators), key=lambda name: position_of[name])
    stages = (Stage(Strategy.CONCURRENT, ((name,),), alone_us.get(name)) for name in names)
    return replace(block, stages=tuple(stages), optimal=False)


def _order(document: ScheduleDocument) -> dict[str, None]:
    given = next((each.schedule for each in document.alternatives if each.name == "sequential"), None)
    first: list[str] = []
    if given is not None:
        first = [name for stage in given.stages for name in stage.operators]
    elif document.structure is not None:
        first = [operator.name for operator in document.structure.operators]
    return dict.fromkeys([*first, *(name for stage in document.schedule.stages for name in stage.operators)])


def _stages(document: ScheduleDocument) -> Iterator[Stage]:
    schedules = [*(each.schedule for each in document.alternatives), document.schedule]
    return (stage for schedule in schedules for stage in schedule.stages if stage.latency_us is not None)


def model_dtype(graph: ComputationGraph) -> str:
    """The element type of the first floating-point input, or of the first input."""
    types = [spec.dtype for spec in graph.inputs]
    floating = [dtype for dtype in types if "float" in dtype]
    return next(iter([*floating, *types]), "float32")


def check_operators(schedule: Schedule, graph: ComputationGraph) -> None:
    """Raises an InvalidScheduleError unless every operator runs once, after its inputs, in a legal stage."""
    position_of: dict[str, tuple[int, int]] = {}
    for position, stage in enumerate(schedule.stages):
        _check_strategy(stage, graph)
        for name in stage.operators:
            if name not in graph.by_name:
                raise InvalidScheduleError(f"the schedule names operator {name!r}, which the model does not have")
        groups = [start_order(graph, stage)] if is_linked(stage) else stage.groups
        for group_index, group in enumerate(groups):
            for name in group:
                _check_position(name, (position, group_index), position_of, graph)
                position_of[name] = position, group_index
    missing = [name for name in graph.by_name if name not in position_of]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise InvalidScheduleError(f"the schedule leaves out operator {missing[0]!r}{more} of the model")


def check_units(units: Sequence[Unit], graph: ComputationGraph) -> None:
    """Raises an InvalidScheduleError for units that are invalid in the graph."""
    try:
        join_units(graph, units)
    except UsageError as error:
        raise InvalidScheduleError(f"invalid units in the schedule: {error}") from None


def _check_strategy(stage: Stage, graph: ComputationGraph) -> None:
    known = [name for name in stage.operators if name in graph.by_name]
    reason = STAGE_RULES[stage.strategy].refusal(graph, known) if len(known) > 1 else None
    if reason is not None:
        raise InvalidScheduleError(f"the schedule has an invalid {stage.strategy} stage: {reason}")


def _check_position(
    name: str, here: tuple[int, int], position_of: Mapping[str, tuple[int, int]], graph: ComputationGraph
) -> None:
    if name in position_of:
        raise InvalidScheduleError(f"the schedule runs operator {name!r} twice")
    for before in graph.predecessors[name]:
        if before not in position_of:
            raise InvalidScheduleError(f"the schedule runs operator {name!r} before {before!r}, whose output it reads")
        if position_of[before][0] == here[0] and position_of[before] != here:
            raise InvalidScheduleError(
                f"the schedule runs operator {name!r} concurrently with {before!r}, whose output it reads,"
                f" in stage {here[0]}"
            )


def check_shapes(made_for: Mapping[str, tuple[int, ...]], bindings: Mapping[str, tuple[int, ...]]) -> None:
    """Raises an InvalidScheduleError unless a model's inputs have the names and shapes of the schedule."""
    for name in sorted({*made_for, *bindings}):
        ours, theirs = bindings.get(name), made_for.get(name)
        if ours is None:
            raise InvalidScheduleError(f"the schedule was made for input {name!r}, which this model does not have")
        if theirs is None:
            raise InvalidScheduleError(f"the schedule was made for a model without input {name!r}")
        if tuple(ours) != tuple(theirs):
            raise InvalidScheduleError(
                f"the schedule was made for input {name!r} of shape {_shape(theirs)}, not {_shape(ours)}; "
                f"use --input-shape {name}={_shape(theirs)} or optimize for this shape"
            )


def check_dtype(made_for: str, graph: ComputationGraph) -> None:
    """Raises an InvalidScheduleError unless a model computes in the type of the schedule."""
    if graph.inputs and made_for != model_dtype(graph):
        raise InvalidScheduleError(
            f"the schedule was made for {made_for}, but the model computes in {model_dtype(graph)}"
        )


def _shape(shape: Sequence[int]) -> str:
    return "x".join(str(size) for size in shape) or "scalar"
