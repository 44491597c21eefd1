"""The formats in which `show` draws a schedule. One is a function of this module and one entry of `FORMATS`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from iosched.cli.errors import printable
from iosched.cli.pictures.drawn import Drawn
from iosched.cli.stages import idle_text, throughput_columns, throughput_text
from iosched.models.errors import UsageError

if TYPE_CHECKING:
    from iosched.scheduler.document import ScheduleDocument
    from iosched.scheduler.schedule import Stage


def _text(drawn: Drawn, unicode: bool) -> str:
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
        looks=drawn.looks,
        proven=_proven(document),
        unicode=unicode,
        remarks=remarks,
    )
    return printable(text + _considered(document))


def _idle_column(drawn: Drawn, stage: Stage) -> str:
    """The idle share of a stage, of fixed width; empty where it is known of no stage."""
    is_known = any(share is not None for share in drawn.idle.values())
    return f"{idle_text(drawn.idle[stage]):>6} idle" if is_known else ""


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


def _html(drawn: Drawn, unicode: bool) -> str:
    from iosched.cli.pictures.page_data import page_data
    from iosched.cli.pictures.schedule_html import draw_html
    from iosched.jobs.known_stages import KnownStages

    del unicode  # the page says that it is UTF-8
    known = KnownStages() if drawn.known is None else drawn.known()
    return draw_html(f"{drawn.document.model} on {drawn.document.device_name}", page_data(drawn, known))


FORMATS: Mapping[str, Callable[[Drawn, bool], str]] = {
    "text": _text,
    "svg": _svg,
    "html": _html,
    "netron": _netron,
    "trace": _trace,
}
"""A function for each format, of what is to be drawn and of whether the reader's encoding knows Unicode."""
