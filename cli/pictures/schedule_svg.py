"""A schedule as an SVG: time runs to the right, each column is a stage, each lane in it a group.

Columns are as wide as their stages are long, down to what a label needs. Rows wrap like text, so a large network is a
tall picture. The file stands alone: no script, no font, no link.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from statistics import median
from textwrap import wrap

from iosched.cli.pictures.families import FAMILIES, Paint
from iosched.cli.pictures.svg import GREY, escaped, picture, text
from iosched.cli.pictures.theme import Look, latency_label, look_of, shown
from iosched.cli.text import count_text
from iosched.scheduler.proof import proof_text
from iosched.scheduler.schedule import Block, Schedule, Stage, total_us
from iosched.scheduler.strategies import STAGE_RULES

_WIDTH = 1200
_MARGIN = 24
_LANE = 30  # height of a lane, its gap included
_GAP = 4
_BOX_MIN = 58  # width of a box that still holds a short label
_STAGE_TYPICAL = 92  # width of the median stage
_STAGE_MAX = 300
_BLOCK_GAP = 18
_ROW_HEAD = 26  # block names above the lanes
_ROW_FOOT = 34  # latencies below them, and air
_CHAR = 6.4  # advance of a character of the labels
_TITLE_LINE = 24
_TITLE_LETTERS = 96  # of the headline that fit into the width

_HOW_TO_READ = "time runs to the right; what stands one above the other in a column runs at the same time"


@dataclass(frozen=True)
class _Column:
    """One stage at its place in a row."""

    block: Block
    number: int  # within its block, from 0
    stage: Stage
    x: float
    width: float


def draw_svg(schedule: Schedule, *, title: str, looks: Mapping[str, Look], proven: str | None = None) -> str:
    """The picture as text of an SVG file.

    Args:
        schedule: the schedule to draw.
        title: the headline; how many operators, stages and blocks there are stands below it.
        looks: how operators are shown, by their names; one that it does not have is shown as its name, in grey.
        proven: what is proven of the schedule, in words; None where nothing is said of it.
    """
    paints = _paints(schedule, looks)
    rows = _rows(schedule)
    parts: list[str] = []
    headline = wrap(title, _TITLE_LETTERS)
    below = 12 + _TITLE_LINE * max(len(headline), 1)
    y = below + 48.0
    for row in rows:
        parts += _draw_row(row, y, looks, paints)
        y += _ROW_HEAD + max(len(column.stage.groups) for column in row) * _LANE + _ROW_FOOT
    legend, height = _legend(schedule, paints, y + 8)
    subtitle = " · ".join([_subtitle(schedule), *([] if proven is None else [proven])])
    lines = enumerate(headline, start=1)
    head = [text(_MARGIN, 12 + _TITLE_LINE * line, words, size=19, weight="600") for line, words in lines]
    return picture(_WIDTH, height, [*head, text(_MARGIN, below + 22, subtitle, fill=GREY), *parts, *legend])


def _subtitle(schedule: Schedule) -> str:
    stages = list(schedule.stages)
    operators = sum(len(stage.operators) for stage in stages)
    counts = ((operators, "operator"), (len(stages), "stage"), (len(schedule.blocks), "block"))
    counted = " · ".join(count_text(count, word) for count, word in counts)
    return f"{counted} · {latency_label(total_us(schedule.stages))}"


def _rows(schedule: Schedule) -> list[list[_Column]]:
    """The columns in reading order, in rows. A block that fits into one row is not divided between two."""
    scale = _scale(schedule)
    rows: list[list[_Column]] = [[]]
    x = float(_MARGIN)
    for block in schedule.blocks:
        widths = [_stage_width(stage, scale) for stage in block.stages]
        head = len(_block_head(block, goes_on=True)) * _CHAR
        total = max(head, sum(widths) + _GAP * len(widths))
        if rows[-1] and x + (total if total <= _WIDTH - 2 * _MARGIN else head) > _WIDTH - _MARGIN:
            rows.append([])
            x = _MARGIN
        start = x
        for number, (stage, width) in enumerate(zip(block.stages, widths, strict=True)):
            if rows[-1] and x + width > _WIDTH - _MARGIN:
                rows.append([])
                x = start = _MARGIN
            rows[-1].append(_Column(block, number, stage, x, width))
            x += width + _GAP
        x = max(x, start + head) + _BLOCK_GAP
    return [row for row in rows if row]


def _scale(schedule: Schedule) -> float:
    """Pixels for a microsecond."""
    known = [latency for stage in schedule.stages if (latency := stage.latency_us)]
    return _STAGE_TYPICAL / median(known) if known else 0.0


def _stage_width(stage: Stage, scale: float) -> float:
    boxes = max((len(shown(stage, group)) for group in stage.groups), default=1)
    least = boxes * (_BOX_MIN + _GAP) + 2 * _GAP
    return max(least, min(_STAGE_MAX, (stage.latency_us or 0.0) * scale))


def _draw_row(row: Sequence[_Column], y: float, looks: Mapping[str, Look], paints: Mapping[str, Paint]) -> list[str]:
    parts: list[str] = []
    for start, column in enumerate(row):
        if start == 0 or row[start - 1].block is not column.block:
            same = [other for other in row[start:] if other.block is column.block]
            parts += _draw_block_head(same, y)
        parts += _draw_stage(column, y + _ROW_HEAD, looks, paints)
    return parts


def _draw_block_head(columns: Sequence[_Column], y: float) -> Iterator[str]:
    first, last = columns[0], columns[-1]
    end = last.x + last.width
    head = _block_head(first.block, goes_on=first.number > 0)
    yield text(first.x, y + 12, head, size=11.5, fill=GREY)
    yield f'<path d="M{first.x:.1f} {y + 18:.1f}H{end:.1f}" stroke="#c9ced6" stroke-width="1.5"/>'


def _block_head(block: Block, *, goes_on: bool) -> str:
    name = f"{'… ' if goes_on else ''}block {block.index}{'' if block.optimal else ' *'}"
    latency_us = total_us(block.stages)
    return name if latency_us is None else f"{name} · {latency_label(latency_us)}"


def _draw_stage(column: _Column, y: float, looks: Mapping[str, Look], paints: Mapping[str, Paint]) -> Iterator[str]:
    stage, height = column.stage, len(column.stage.groups) * _LANE
    rule = STAGE_RULES[stage.strategy]
    edge = rule.colour and f' stroke="{rule.colour}" stroke-width="1.5" stroke-dasharray="5 3"'
    yield (
        f'<rect x="{column.x:.1f}" y="{y:.1f}" width="{column.width:.1f}" height="{height}" rx="5" '
        f'fill="#f1f3f6"{edge}/>'
    )
    for lane, group in enumerate(shown(stage, group) for group in stage.groups):
        width = (column.width - _GAP * (len(group) + 1)) / max(len(group), 1)
        for place, name in enumerate(group):
            x = column.x + _GAP + place * (width + _GAP)
            yield from _draw_operator(name, x, y + lane * _LANE + 3, width, looks, paints)
    latency_us = stage.latency_us
    below = " ".join(filter(None, [rule.mark, "" if latency_us is None else latency_label(latency_us)]))
    yield text(column.x + column.width / 2, y + height + 14, below, size=10.5, fill=GREY, anchor="middle")


def _draw_operator(
    name: str, x: float, y: float, width: float, looks: Mapping[str, Look], paints: Mapping[str, Paint]
) -> Iterator[str]:
    look = look_of(name, looks)
    tip = f"{name} ({', '.join(filter(None, (look.label, look.models)))})" if look.type else name
    yield f"<g><title>{escaped(tip)}</title>"
    paint = paints[look.kind]
    yield f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{_LANE - 6}" rx="4" {_filled(paint)}/>'
    fits = len(look.label) * _CHAR <= width - 6
    label = look.label if fits else _clipped(look.label.partition(" ")[0], width - 6)
    yield text(x + width / 2, y + 16, label, size=11, fill=paint.ink, anchor="middle") + "</g>"


def _legend(schedule: Schedule, paints: Mapping[str, Paint], y: float) -> tuple[list[str], float]:
    """The legend, which begins at height `y`, and the height of the whole picture, which ends with it."""
    parts: list[str] = []
    x = float(_MARGIN)
    for name, paint in paints.items():
        width = 26 + len(name) * 7.2
        if x + width > _WIDTH - _MARGIN:
            x, y = _MARGIN, y + 22
        parts.append(f'<rect x="{x:.1f}" y="{y - 10:.1f}" width="12" height="12" rx="3" {_filled(paint)}/>')
        parts.append(text(x + 18, y, name, size=12, fill="#3a4350"))
        x += width + 10
    marked = not all(block.optimal for block in schedule.blocks)
    remarks = [_HOW_TO_READ] + [f"* {proof_text(None)}"] * marked
    drawn = {stage.strategy for stage in schedule.stages}
    remarks += [f"dashed: {rule.legend}" for way, rule in STAGE_RULES.items() if rule.legend and way in drawn]
    parts.append(text(_MARGIN, y + 24, " · ".join(remarks), size=12, fill=GREY))
    return parts, y + 44


def _filled(paint: Paint) -> str:
    edge = paint.edge and f' stroke="{paint.edge}"'
    return f'fill="{paint.fill}"{edge}'


def _clipped(words: str, width: float) -> str:
    room = int(width / _CHAR)
    return words if len(words) <= room else words[: max(room - 1, 1)] + "…"


def _paints(schedule: Schedule, looks: Mapping[str, Look]) -> dict[str, Paint]:
    """A light colour for each kind of look in the schedule: for every family, or for every model where it has several.

    In the order of a legend. Of more than seven models, some have the same colour.
    """
    shown = [look_of(name, looks) for stage in schedule.stages for name in stage.operators]
    by_family = {family.name: family.light for family in FAMILIES.values()}
    models = dict.fromkeys(look.models for look in shown if look.models)
    colours = dict(zip(models, cycle(paint for paint in by_family.values() if not paint.edge)))
    kinds = {look.kind for look in shown}
    return {kind: paint for kind, paint in {**colours, **by_family}.items() if kind in kinds}
