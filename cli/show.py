"""`iosched show`: pictures of a schedule."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from iosched.cli.options import verbosity_options
from iosched.cli.output import Destination, check_destinations, note, write
from iosched.models.errors import UsageError

if TYPE_CHECKING:
    from iosched.scheduler.document import ScheduleDocument
    from iosched.scheduler.drawing import Look
    from iosched.scheduler.schedule import Schedule

FORMATS = ("text", "svg")


@click.command(name="show", short_help="Draw a schedule.")
@click.argument("schedule", metavar="SCHEDULE")
@click.option(
    "--format",
    "picture",
    type=click.Choice(FORMATS),
    default="text",
    show_default=True,
    help="'text' for a terminal, 'svg' for a browser or a page.",
)
@click.option("-o", "--output", metavar="F", default="-", help="Where to write the picture. Default: stdout.")
@click.option(
    "--model",
    metavar="MODEL",
    help="The model of a schedule file, to show what each operator is. Not needed for an optimized model.",
)
@click.option(
    "--block",
    "indices",
    type=click.IntRange(min=0),
    multiple=True,
    metavar="N",
    help="Draw this block only. Repeat for several. Default: all.",
)
@verbosity_options
def command(schedule: str, picture: str, output: str, model: str | None, indices: tuple[int, ...]) -> None:
    """Draw SCHEDULE: blocks, their stages, and the groups that run side by side in each.

    SCHEDULE is a schedule file, an optimized model, or '-' for standard input.
    """
    from iosched.cli.source import input_file, read_schedule_and_model

    destination = Destination.parse("-o", output)
    check_destinations([destination], inputs=[input_file(schedule), input_file(model or "-")])
    document, loaded = read_schedule_and_model(schedule, model)
    if document.shipped == "reference":
        note("Not what 'iosched run' uses: plain onnxruntime was faster, and was shipped.")
    if indices:
        document = replace(document, schedule=_only(document.schedule, indices))
    looks: Mapping[str, Look] = {}
    if loaded is not None:
        from iosched.scheduler.drawing import looks_of

        looks = looks_of(loaded.graph)
    text = _PICTURES[picture](document, looks, destination)
    if destination.path is not None:
        write(destination, text.encode())
        note(f"Wrote {destination.path}.")
        return
    click.echo(text, nl=False)


def _only(schedule: Schedule, indices: tuple[int, ...]) -> Schedule:
    from iosched.scheduler.schedule import Schedule

    known = {block.index for block in schedule.blocks}
    if missing := [index for index in indices if index not in known]:
        raise UsageError(f"there is no block {missing[0]}: the schedule has {len(known)} blocks, counted from 0")
    return Schedule(tuple(block for block in schedule.blocks if block.index in indices))


def _text(document: ScheduleDocument, looks: Mapping[str, Look], destination: Destination) -> str:
    from iosched.cli.errors import printable
    from iosched.scheduler.drawing_text import draw_text

    encoding = "utf-8" if destination.path is not None else (sys.stdout.encoding or "ascii")
    text = draw_text(document.schedule, title=_title(document), looks=looks, unicode=_knows_unicode(encoding))
    return printable(text)


def _knows_unicode(encoding: str) -> bool:
    return encoding.lower().replace("-", "").startswith("utf")


def _svg(document: ScheduleDocument, looks: Mapping[str, Look], destination: Destination) -> str:
    from iosched.scheduler.drawing_svg import draw_svg

    return draw_svg(document.schedule, title=_title(document), looks=looks)


def _title(document: ScheduleDocument) -> str:
    analytic = " (analytic: latencies are computed, not measured)" if document.cost == "analytic" else ""
    return f"{document.model} on {document.device['name']}{analytic}"


_PICTURES: Mapping[str, Callable[[ScheduleDocument, Mapping[str, Look], Destination], str]] = {
    "text": _text,
    "svg": _svg,
}
