"""`iosched show`: draw a schedule."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache, partial
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING

import click

from iosched.cli.common.batch_choice import which_schedule_option
from iosched.cli.common.complete import complete_file, complete_model
from iosched.cli.common.json_objects import json_object
from iosched.cli.common.options import json_option, output_option, profile_db_option, verbosity_options
from iosched.cli.common.output import (
    STDOUT,
    Destination,
    check_destinations,
    emit_json,
    fitted_line,
    note,
    width_of,
    write_and_note,
)
from iosched.cli.common.source import input_file, not_shipped_text, read_schedule_and_model, remark_not_shipped
from iosched.cli.common.text import count_text, stage_object, throughput_object
from iosched.cli.help import Command
from iosched.cli.pictures.formats import FORMATS, Drawing
from iosched.cli.pictures.theme import Style
from iosched.models.errors import UsageError

if TYPE_CHECKING:
    from iosched.cli.pictures.netron import PlacedNode
    from iosched.jobs.known_stages import KnownStages
    from iosched.models.model import Model
    from iosched.scheduler.document import ScheduleDocument
    from iosched.scheduler.schedule import Schedule, Stage

_OBJECT = """
model=document.model device=document.device cost=document.cost launch=document.launch
measured_share=document.measured_share optimal=document.optimal proven=document.proven shipped=document.shipped
peak_tflops=throughputs.peak_tflops
"""
_MOST_NAMES = 3


@click.command(name="show", cls=Command, short_help="Draw a schedule.", basic="format output json")
@click.argument("schedule", metavar="SCHEDULE", shell_complete=complete_file)
@click.option(
    "--format",
    "picture",
    type=click.Choice(list(FORMATS)),
    default="text",
    show_default=True,
    metavar="FORMAT",
    help=f"{', '.join(FORMATS)}.\n\n'html' is a page with search and zoom. 'netron' is a file to put next to the "
    "optimized model for Netron. 'trace' opens in ui.perfetto.dev or chrome://tracing.",
)
@output_option(
    "-o",
    "--output",
    metavar="F",
    text="File to write. Default: stdout, without --json.",
)
@click.option(
    "--model",
    shell_complete=complete_model,
    metavar="MODEL",
    help="Model of a schedule file, to describe its operators. An optimized model does not need it.",
)
@click.option(
    "--block",
    "indices",
    type=click.IntRange(min=0),
    multiple=True,
    metavar="N",
    help="Draw block N only. Repeat for several.",
)
@click.option(
    "--alternative",
    metavar="NAME",
    help="Draw another schedule in the file: 'iosched', 'sequential' or 'greedy'.",
)
@profile_db_option
@which_schedule_option
@json_option
@verbosity_options
def command(
    schedule: str,
    picture: str,
    output: Destination | None,
    model: str | None,
    indices: tuple[int, ...],
    alternative: str | None,
    profile_db: Path | None,
    batch_size: int | None,
    as_json: bool,
) -> None:
    """Draw SCHEDULE: its blocks, stages, and the groups that run in parallel.

    SCHEDULE is a schedule file, an optimized model, or '-' for stdin. With the model, text and JSON include each
    stage's operations and throughput; on GPUs also the share of peak, and on simulated GPUs the share of the SMs' time
    with work. 'idle' is the share of the lanes' time spent waiting in the stage, or '-' if unknown.
    """
    if output is None and not as_json:
        output = Destination("-o", None)
    check_destinations([output], inputs=[input_file(schedule), input_file(model or STDOUT)], as_json=as_json)
    document, loaded = read_schedule_and_model(schedule, model, batch_size=batch_size)
    remark_not_shipped(document)
    document, fits = (document, False) if loaded is None else _fitted(document, loaded)
    if alternative is not None and picture == "netron" and output is not None:
        raise UsageError("--format netron draws the schedule of an optimized model: leave --alternative out")
    shipped = document
    if alternative is not None:
        document = _instead(document, alternative)
    if indices:
        document = replace(document, schedule=_only(document.schedule, indices), proven=None, alternatives=())
    drawn = _drawing_without_model(document) if loaded is None else _drawn(document, loaded, shipped if fits else None)
    other = f"This is {alternative!r}, an alternative that 'optimize' considered and did not ship."
    drawn = replace(drawn, instead=not_shipped_text(document) if alternative is None else other)
    if fits and loaded is not None:
        drawn = replace(drawn, known=cache(partial(_known, loaded, document, profile_db)))
    if as_json:
        emit_json(as_object(drawn))
    if output is not None:
        _draw(picture, drawn, output)


def _fitted(document: ScheduleDocument, model: Model) -> tuple[ScheduleDocument, bool]:
    """The schedule in the names of `model`, and whether it fits that model."""
    from iosched.models.errors import InvalidScheduleError
    from iosched.scheduler.transfer import fitted

    try:
        return fitted(document, model), True
    except InvalidScheduleError as error:
        note(f"The throughput of stages is not shown: {error}")
        return document, False


def _drawing_without_model(document: ScheduleDocument) -> Drawing:
    from iosched.cli.pictures.theme import styles_by_structure

    return Drawing(document, styles_by_structure(document.structure))


def _known(model: Model, document: ScheduleDocument, profile_db: Path | None) -> KnownStages:
    """Measurements of the stages in the profile database, or why there are none."""
    from iosched.jobs.known_stages import KnownStages, known_stages
    from iosched.models.errors import IoschedError

    try:
        return known_stages(model, document, profile_db)
    except IoschedError as error:
        return KnownStages(why=str(error).partition("\n")[0])


def _drawn(document: ScheduleDocument, model: Model, shipped: ScheduleDocument | None) -> Drawing:
    """Drawing of `document`, a part of `shipped` or an alternative in it; None if that is for another model."""
    from iosched.cli.pictures.theme import styles_of
    from iosched.profiler.devices.resolve import throughputs

    styles = styles_of(model.graph, _models_of_operators(model))
    if shipped is None:
        return Drawing(document, styles)
    return Drawing(
        document, styles, throughputs(model, document), model.graph.predecessors, partial(_nodes, model, shipped)
    )


def _nodes(model: Model, shipped: ScheduleDocument) -> list[PlacedNode]:
    from iosched.cli.pictures.netron import PlacedNode
    from iosched.jobs.annotate import placed_nodes

    found = placed_nodes(model, shipped)
    return [PlacedNode(node.name, tuple(name for name in node.output if name), place) for node, place in found]


def _models_of_operators(model: Model) -> dict[str, str]:
    """Models of each operator in a file of several; empty for other files."""
    from iosched.models.composition.members import members_of, owners

    members = members_of(model.proto)
    names = [member.name for member in members]
    found = {}
    for operator, bits in owners(model, members).items() if members else ():
        own = [name for bit, name in enumerate(names) if bits >> bit & 1]
        found[operator] = " + ".join(own) if len(own) <= _MOST_NAMES else count_text(len(own), "model")
    return found


def as_object(drawn: Drawing) -> dict[str, object]:
    """JSON object of `show --json`."""
    blocks = [
        {
            **json_object(block, "index optimal"),
            **_sums(drawn, block.stages),
            "stages": [
                {**stage_object(stage, drawn.idle.get(stage)), **_sums(drawn, [stage])} for stage in block.stages
            ],
        }
        for block in drawn.document.schedule.blocks
    ]
    return {
        **json_object(drawn, _OBJECT),
        **_sums(drawn, drawn.document.schedule.stages),
        "blocks": blocks,
        "alternatives": [json_object(each, "name latency_us") for each in drawn.document.alternatives],
    }


def _sums(drawn: Drawing, stages: Iterable[Stage]) -> dict[str, object]:
    """Latency and throughput of consecutive stages."""
    from iosched.scheduler.schedule import total_us

    run = list(stages)
    return {"latency_us": total_us(run), **throughput_object(drawn.throughput(run))}


def _draw(picture: str, drawn: Drawing, output: Destination) -> None:
    text = FORMATS[picture](drawn, _knows_unicode(output))
    if output.path is None:
        click.echo(_on_terminal(text, drawn) if picture == "text" else text, nl=False)
        return
    write_and_note(output, text.encode())


def _on_terminal(text: str, drawn: Drawing) -> str:
    """Text wrapped and coloured for stdout."""
    fitting = wrapped(text, width_of(sys.stdout))
    return coloured(fitting, drawn.styles) if uses_colours(os.environ) else fitting


def _knows_unicode(output: Destination) -> bool:
    encoding = "utf-8" if output.path is not None else (sys.stdout.encoding or "ascii")
    return encoding.lower().replace("-", "").startswith("utf")


def _instead(document: ScheduleDocument, name: str) -> ScheduleDocument:
    known = {each.name: each.schedule for each in document.alternatives}
    if name not in known:
        there = f"it has {', '.join(known)}" if known else "it has none"
        raise UsageError(f"the schedule file has no alternative {name!r}: {there}")
    return replace(document, schedule=known[name], proven=None, alternatives=())


def _only(schedule: Schedule, indices: tuple[int, ...]) -> Schedule:
    from iosched.scheduler.schedule import Schedule

    known = {block.index for block in schedule.blocks}
    if missing := [index for index in indices if index not in known]:
        raise UsageError(f"there is no block {missing[0]}: the schedule has {len(known)} blocks, counted from 0")
    return Schedule(tuple(block for block in schedule.blocks if block.index in indices))


_COLOURS = ("cyan", "magenta", "yellow", "green", "blue", "red")


def uses_colours(environment: Mapping[str, str]) -> bool:
    """Whether a terminal gets colours: not with NO_COLOR, and not if it supports none."""
    return not environment.get("NO_COLOR") and environment.get("TERM") not in ("dumb", "unknown")


def coloured(text: str, styles: Mapping[str, Style]) -> str:
    """Colour the names of operators by model, if there are several models.

    Args:
        styles: by operator.
    """
    models = dict.fromkeys(style.models for style in styles.values() if style.models)
    colours = dict(zip(models, cycle(_COLOURS), strict=False))

    def word(match: re.Match[str]) -> str:
        style = styles.get(match[0])
        return match[0] if style is None or not style.models else click.style(match[0], fg=colours[style.models])

    return re.sub(r"\S+", word, text) if models else text


_MARK = re.compile(r"^( .*?)((?:──|┬─|├─|└─|--|\+-|\|-|`-) .*)$")
_GOES_ON = {"┬": "│", "├": "│", "+": "|", "|": "|"}
"""Below a group's mark, if another group follows."""
_MOST = 0.5
"""Greatest share of a line for the text before a group; longer text gets its own line."""
_INDENT = " " * 6


def wrapped(text: str, width: int | None) -> str:
    """Wrap the text of a schedule to `width` columns; None keeps it."""
    if width is None or all(len(line) <= width for line in text.splitlines()):
        return text
    return "".join(f"{part}\n" for line in text.splitlines() for part in _parts(line, width))


def _parts(line: str, width: int) -> Iterator[str]:
    found = _MARK.match(line)
    if found is None:
        yield fitted_line(line, width, _INDENT if line.startswith(" ") else "")
        return
    head, chain = found.groups()
    if len(head) > _MOST * width:
        if head.strip():
            yield fitted_line(head.rstrip(), width, _INDENT)
        head = _INDENT
    yield fitted_line(head + chain, width, f"{' ' * len(head)}{_GOES_ON.get(chain[0], ' ')}    ")
