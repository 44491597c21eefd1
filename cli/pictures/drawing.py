"""A schedule that is to be drawn, and what is known beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from iosched.cli.text import cost_remark

if TYPE_CHECKING:
    from iosched.cli.pictures.netron import PlacedNode
    from iosched.cli.pictures.theme import Look
    from iosched.jobs.known_stages import KnownStages
    from iosched.profiler.devices.throughput import Throughput, Throughputs
    from iosched.scheduler.document import ScheduleDocument
    from iosched.scheduler.schedule import Schedule, Stage

Reads = Mapping[str, Sequence[str]]
"""For operators by name, the operators that they read from."""


@dataclass(frozen=True, eq=False)
class Drawn:
    """A schedule that is to be drawn, and what is known of its model: nothing where that is not at hand.

    Attributes:
        document: the schedule.
        looks: how operators are shown, by their names.
        throughputs: what stages compute.
        reads: for each operator of the model, the operators that it reads from.
        nodes: returns the nodes of the optimized model, if the schedule is one of this model.
        known: looks up what was measured of the stages.
        instead: says what runs the model in place of this schedule; None where the schedule does.
    """

    document: ScheduleDocument
    looks: Mapping[str, Look] = field(default_factory=dict)
    throughputs: Throughputs | None = None
    reads: Reads | None = None
    nodes: Callable[[], Iterable[PlacedNode]] | None = None
    known: Callable[[], KnownStages] | None = None
    instead: str | None = None

    @property
    def title(self) -> str:
        """The model, the device, and whether anything was measured there."""
        return f"{self.document.model} on {self.document.device_name}{self.remark}"

    @property
    def remark(self) -> str:
        """Words behind the device that say that latencies there were not measured; empty where they were."""
        return cost_remark(self.document.launch, self.document.measured_share)

    @property
    def edges(self) -> Reads | None:
        """For each operator those that it reads from, by the model, or else by what the schedule file says of it."""
        if self.reads is not None or self.document.structure is None:
            return self.reads
        structure = self.document.structure
        maker: list[str] = ["" for _ in structure.inputs]
        for operator in structure.operators:
            maker += [operator.name] * len(operator.form.outputs)
        return {
            operator.name: tuple(dict.fromkeys(maker[tensor] for tensor in operator.reads if maker[tensor]))
            for operator in structure.operators
        }

    def throughput(self, stages: Iterable[Stage]) -> Throughput | None:
        """The throughput of stages run one after another; None where the model is not at hand."""
        return None if self.throughputs is None else self.throughputs.of(stages)

    @cached_property
    def idle(self) -> Mapping[Stage, float | None]:
        """For each stage the share of the lanes' time in which they wait; no stages where none is known."""
        found = () if self.known is None else self.known().stages
        return {stage: known.idle for stage, known in zip(self.document.schedule.stages, found, strict=False)}

    def before(self, known: KnownStages) -> Schedule:
        """The operators one after another, with what each takes alone as far as that is known."""
        from iosched.jobs.known_stages import in_a_row
        from iosched.scheduler.document import one_by_one

        return in_a_row(known, one_by_one(self.document))
