"""Formats of `show`: each is a function here and an entry of `FORMATS`."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from html import escape
from importlib.resources import files
from string import Template
from typing import TYPE_CHECKING

from iosched.cli.common.errors import printable
from iosched.cli.common.text import cost_remark, idle_text, throughput_columns, throughput_text
from iosched.cli.pictures.theme import FAMILIES, BoxColours
from iosched.models.errors import UsageError

if TYPE_CHECKING:
    from iosched.cli.pictures.netron import PlacedNode
    from iosched.cli.pictures.theme import Style
    from iosched.jobs.known_stages import KnownStages
    from iosched.profiler.devices.throughput import Throughput, Throughputs
    from iosched.scheduler.document import ScheduleDocument
    from iosched.scheduler.schedule import Schedule, Stage

_WHOLES = {"measured": "schedule found", "reference": "onnxruntime", "openvino": "OpenVINO", "tensorrt": "TensorRT"}
"""Names of latencies of whole models that differ from those in files."""


def _text(drawn: Drawing, unicode: bool) -> str:
    from iosched.cli.pictures.schedule_text import Remarks, draw_text

    known, remarks = drawn.throughputs, None
    if known is not None:
        remarks = Remarks(
            lambda stages: throughput_text(known.of(stages)),
            lambda stage: throughput_columns(known.of([stage])) + _idle_column(drawn, stage),
        )
    document = drawn.document
    text = draw_text(
        document.schedule,
        title=drawn.title,
        styles=drawn.styles,
        proven=_proven(document),
        unicode=unicode,
        remarks=remarks,
    )
    return printable(text + _considered(document))


def _idle_column(drawn: Drawing, stage: Stage) -> str:
    is_known = any(share is not None for share in drawn.idle.values())
    return f"{idle_text(drawn.idle[stage]):>6} idle" if is_known else ""


def _proven(document: ScheduleDocument) -> str | None:
    from iosched.scheduler.proof import proof_text

    return None if document.proven is None else proof_text(document.proven, measured=document.cost == "measured")


def _considered(document: ScheduleDocument) -> str:
    """Lines with the other schedules in the file, for `--alternative`, and with latencies of whole models."""
    from iosched.cli.pictures.theme import latency_label

    if not document.alternatives:
        return ""
    others = ", ".join(f"{each.name} {latency_label(each.latency_us)}" for each in document.alternatives)
    known = {name: us for name, us in document.latency_us.items() if us and name != "predicted"}
    wholes = ", ".join(f"{_WHOLES.get(name, name)} {latency_label(us)}" for name, us in known.items())
    measured = f"measured as a whole: {wholes}\n" if known and document.cost == "measured" else ""
    return f"\nalternatives: {others}\n{measured}"


def _svg(drawn: Drawing, unicode: bool) -> str:
    from iosched.cli.pictures.schedule_svg import draw_svg

    del unicode  # an SVG file is always UTF-8
    document = drawn.document
    return draw_svg(document.schedule, title=drawn.title, styles=drawn.styles, proven=_proven(document))


def _netron(drawn: Drawing, unicode: bool) -> str:
    from iosched.cli.pictures.netron import draw_netron

    del unicode  # JSON is ASCII here
    if drawn.nodes is None:
        raise UsageError("--format netron needs the model: give the optimized model, or --model")
    return draw_netron(drawn.document.schedule, drawn.nodes())


def _trace(drawn: Drawing, unicode: bool) -> str:
    from iosched.cli.pictures.trace import draw_trace, predicted_facts

    del unicode  # JSON is ASCII here
    document = drawn.document
    facts = {"model": document.model, **predicted_facts(document)}
    return draw_trace(document.schedule, facts=facts, styles=drawn.styles)


def _html(drawn: Drawing, unicode: bool) -> str:
    from iosched.cli.pictures.page_data import page_data
    from iosched.jobs.known_stages import KnownStages

    del unicode  # the page declares UTF-8
    known = KnownStages() if drawn.known is None else drawn.known()
    return draw_html(f"{drawn.document.model} on {drawn.document.device_name}", page_data(drawn, known))


FORMATS: Mapping[str, Callable[[Drawing, bool], str]] = {
    "text": _text,
    "svg": _svg,
    "html": _html,
    "netron": _netron,
    "trace": _trace,
}
"""Functions of the drawing and of whether the output's encoding supports Unicode."""


_SCRIPTS = ("model", "layout", "draw", "details", "overview", "marks", "controls")
"""Concatenated to one script in this order."""


def draw_html(title: str, data: Mapping[str, object]) -> str:
    """HTML page with the data of `page_data`."""
    scripts = "\n".join(_page(f"{name}.js") for name in _SCRIPTS)
    script = f'"use strict";\n(() => {{\n{scripts}}})();'
    style = "\n".join([*_colours(), _page("page.css")])
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    return Template(_page("page.html")).substitute(
        policy=policy, title=escape(printable(title)), style=style, script=script, data=_embedded(data)
    )


def _page(name: str) -> str:
    return files("iosched.cli.pictures").joinpath("page", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"sha256-{b64encode(sha256(text.encode()).digest()).decode()}"


def _embedded(data: Mapping[str, object]) -> str:
    """JSON for a script element: without `<`, nothing can end the element or start a comment."""
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _colours() -> Iterator[str]:
    """CSS rules for the colours of families and models."""
    for key, family in FAMILIES.items():
        yield f".by-family .f-{key}, .legend .f-{key} {{ {_both(family.light, family.dark)} }}"
    for number, family in enumerate(each for each in FAMILIES.values() if not each.light.edge):
        yield f".by-model .m-{number} {{ {_both(family.light, family.dark)} }}"


def _both(light: BoxColours, dark: BoxColours) -> str:
    edges = [paint.edge or "transparent" for paint in (light, dark)]
    return (
        f"--fill: light-dark({light.fill}, {dark.fill}); --words: light-dark({light.ink}, {dark.ink}); "
        f"--edge: light-dark({edges[0]}, {edges[1]});"
    )


Reads = Mapping[str, Sequence[str]]
"""By operator, the operators that it reads from."""


@dataclass(frozen=True, eq=False)
class Drawing:
    """A schedule to draw, with known facts about its model.

    Attributes:
        document: the schedule.
        styles: by operator.
        throughputs: of stages.
        reads: by operator, the operators that it reads from.
        nodes: returns the nodes of the optimized model.
        known: returns measurements of the stages.
        instead: text on what runs the model in place of this schedule, or None.
    """

    document: ScheduleDocument
    styles: Mapping[str, Style] = field(default_factory=dict)
    throughputs: Throughputs | None = None
    reads: Reads | None = None
    nodes: Callable[[], Iterable[PlacedNode]] | None = None
    known: Callable[[], KnownStages] | None = None
    instead: str | None = None

    @property
    def title(self) -> str:
        """Model, device, and whether latencies were measured."""
        return f"{self.document.model} on {self.document.device_name}{self.remark}"

    @property
    def remark(self) -> str:
        """Remark if latencies were not measured, else empty."""
        return cost_remark(self.document.launch, self.document.measured_share)

    @property
    def edges(self) -> Reads | None:
        """Predecessors by operator, from the model or from the schedule file."""
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
        """Throughput of consecutive stages; None without the model."""
        return None if self.throughputs is None else self.throughputs.of(stages)

    @cached_property
    def idle(self) -> Mapping[Stage, float | None]:
        """Share of the lanes' time spent waiting, by stage; empty if unknown."""
        found = () if self.known is None else self.known().stages
        return {stage: known.idle for stage, known in zip(self.document.schedule.stages, found, strict=False)}

    def before(self, known: KnownStages) -> Schedule:
        """The operators one after another, with their known latencies alone."""
        from iosched.jobs.known_stages import in_a_row
        from iosched.scheduler.document import one_by_one

        return in_a_row(known, one_by_one(self.document))
