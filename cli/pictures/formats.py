"""The formats in which `show` draws a schedule. One is a function of this module and one entry of `FORMATS`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from iosched.cli.errors import printable
from iosched.cli.stages import throughput_columns, throughput_text
from iosched.cli.words import cost_remark
from iosched.models.errors import UsageError

if TYPE_CHECKING:
    from iosched.cli.pictures.looks import Look
    from iosched.cli.pictures.netron import PlacedNode
    from iosched.profiler.devices.throughput import Throughput, Throughputs
    from iosched.scheduler.document import ScheduleDocument
    from iosched.scheduler.schedule import Stage


@dataclass(frozen=True, eq=False)
class Drawn:
    """A schedule that is to be drawn, and what is known of its model: nothing where that is not at hand.

    Attributes:
        document: the schedule.
        looks: how operators are shown, by their names.
        throughputs: what stages compute.
        reads: for each operator of the model, the operators that it reads from.
        nodes: returns the nodes of the optimized model, if the schedule is one of this model.
    """

    document: ScheduleDocument
    looks: Mapping[str, Look] = field(default_factory=dict)
    throughputs: Throughputs | None = None
    reads: Mapping[str, Sequence[str]] | None = None
    nodes: Callable[[], Iterable[PlacedNode]] | None = None

    @property
    def title(self) -> str:
        """The model, the device, and whether anything was measured there."""
        remark = cost_remark(self.document.launch, self.document.measured_share)
        return f"{self.document.model} on {self.document.device_name}{remark}"

    def throughput(self, stages: Iterable[Stage]) -> Throughput | None:
        """The throughput of stages run one after another; None where the model is not at hand."""
        return None if self.throughputs is None else self.throughputs.of(stages)


def _text(drawn: Drawn, unicode: bool) -> str:
    from iosched.cli.pictures.schedule_text import Remarks, draw_text

    known, remarks = drawn.throughputs, None
    if known is not None:
        remarks = Remarks(
            lambda stages: throughput_text(known.of(stages)), lambda stage: throughput_columns(known.of([stage]))
        )
    document = drawn.document
    text = draw_text(
        document.schedule,
        title=drawn.title,
        looks=drawn.looks,
        proven=_proven(document),
        unicode=unicode,
        remarks=remarks,
    )
    return printable(text + _considered(document))


def _proven(document: ScheduleDocument) -> str | None:
    """What is proven of the schedule, in words; None where nothing is."""
    from iosched.scheduler.proof import proof_text

    return None if document.proven is None else proof_text(document.proven, measured=document.cost == "measured")


def _considered(document: ScheduleDocument) -> str:
    """A line on the other schedules in the file, for `--alternative`."""
    from iosched.cli.pictures.looks import latency_label

    if not document.alternatives:
        return ""
    others = ", ".join(f"{each.name} {latency_label(each.latency_us)}" for each in document.alternatives)
    return f"\nconsidered as well: {others}\n"


def _svg(drawn: Drawn, unicode: bool) -> str:
    from iosched.cli.pictures.schedule_svg import draw_svg

    del unicode  # an SVG file is always UTF-8
    document = drawn.document
    return draw_svg(document.schedule, title=drawn.title, looks=drawn.looks, proven=_proven(document))


def _dot(drawn: Drawn, unicode: bool) -> str:
    from iosched.cli.pictures.dot import draw_dot

    del unicode  # Graphviz takes UTF-8
    return draw_dot(drawn.document.schedule, title=drawn.title, looks=drawn.looks, reads=_reads(drawn))


def _reads(drawn: Drawn) -> Mapping[str, Sequence[str]] | None:
    """For each operator those that it reads from, by the model, or else by what the schedule file says of it."""
    if drawn.reads is not None or drawn.document.structure is None:
        return drawn.reads
    structure = drawn.document.structure
    maker: list[str] = ["" for _ in structure.inputs]
    for operator in structure.operators:
        maker += [operator.name] * len(operator.form.outputs)
    return {
        operator.name: tuple(dict.fromkeys(maker[tensor] for tensor in operator.reads if maker[tensor]))
        for operator in structure.operators
    }


def _netron(drawn: Drawn, unicode: bool) -> str:
    from iosched.cli.pictures.netron import draw_netron

    del unicode  # JSON is ASCII here
    if drawn.nodes is None:
        raise UsageError("--format netron is for the nodes of a model: give the optimized model, or --model as well")
    return draw_netron(drawn.document.schedule, drawn.nodes())


def _trace(drawn: Drawn, unicode: bool) -> str:
    from iosched.cli.pictures.trace import draw_trace, predicted_facts

    del unicode  # JSON is ASCII here
    document = drawn.document
    facts = {"model": document.model, **predicted_facts(document)}
    return draw_trace(document.schedule, facts=facts, looks=drawn.looks)


FORMATS: Mapping[str, Callable[[Drawn, bool], str]] = {
    "text": _text,
    "svg": _svg,
    "dot": _dot,
    "netron": _netron,
    "trace": _trace,
}
"""A function for each format, of what is to be drawn and of whether the reader's encoding knows Unicode."""
