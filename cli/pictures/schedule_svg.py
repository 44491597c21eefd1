"""A schedule as SVG: time runs to the right, a column is a stage, a lane in it a group.

The width of a column shows its latency, or fits a label. Rows wrap like text. The file has no script, font or link.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from statistics import median
from textwrap import wrap

from iosched.cli.common.text import count_text
from iosched.cli.pictures.svg import GREY, escaped, picture, text
from iosched.cli.pictures.theme import FAMILIES, BoxColours, Style, latency_label, shown, style_of
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
_ROW_HEAD = 26  # block names
_ROW_FOOT = 34  # latencies and space
_CHAR = 6.4  # advance of a character of the labels
_TITLE_LINE = 24
_TITLE_LETTERS = 96  # letters in a line of the headline

_BOXES = (_WIDTH - 2 * _MARGIN - 2 * _GAP) // (_BOX_MIN + _GAP)
"""Boxes in a row of the picture."""

_HOW_TO_READ = "time runs to the right; operators above each other in a column run at the same time"


@dataclass(frozen=True)
class _Column:
    """A stage and its position in a row."""

    block: Block
    number: int  # within its block, from 0
    stage: Stage
    x: float
    width: float


def draw_svg(schedule: Schedule, *, title: str, styles: Mapping[str, Style], proven: str | None = None) -> str:
    """Text of the SVG file.

    Args:
        styles: by operator; others are grey boxes with their name.
        proven: the proof about the schedule in words, or None.
    """
    palette = _palette(schedule, styles)
    rows = _rows(schedule)
    parts: list[str] = []
    headline = wrap(title, _TITLE_LETTERS)
    below = 12 + _TITLE_LINE * max(len(headline), 1)
    y = below + 48.0
    for row in rows:
        parts += _draw_row(row, y, styles, palette)
        y += _ROW_HEAD + max(len(column.stage.groups) for column in row) * _LANE + _ROW_FOOT
    legend, height = _legend(schedule, palette, y + 8)
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
    """Columns in rows; a block that fits into one row is not split."""
    scale = _scale(schedule)
    rows: list[list[_Column]] = [[]]
    x = float(_MARGIN)
    for block in schedule.blocks:
        stages = [piece for stage in block.stages for piece in _pieces(stage)]
        widths = [_stage_width(stage, scale) for stage in stages]
        head = len(_block_head(block, goes_on=True)) * _CHAR
        total = max(head, sum(widths) + _GAP * len(widths))
        if rows[-1] and x + (total if total <= _WIDTH - 2 * _MARGIN else head) > _WIDTH - _MARGIN:
            rows.append([])
            x = _MARGIN
        start = x
        for number, (stage, width) in enumerate(zip(stages, widths, strict=True)):
            if rows[-1] and x + width > _WIDTH - _MARGIN:
                rows.append([])
                x = start = _MARGIN
            rows[-1].append(_Column(block, number, stage, x, width))
            x += width + _GAP
        x = max(x, start + head) + _BLOCK_GAP
    return [row for row in rows if row]


def _pieces(stage: Stage) -> list[Stage]:
    """A stage, or its parts if it is too wide for a row; the last part has the latency."""
    longest = max(len(shown(stage, group)) for group in stage.groups)
    count = -(-longest // _BOXES)
    if count == 1:
        return [stage]

    def part(number: int) -> Stage:
        ends = [(len(group) * number // count, len(group) * (number + 1) // count) for group in stage.groups]
        groups = tuple(group[first:last] for group, (first, last) in zip(stage.groups, ends, strict=True))
        return replace(stage, groups=groups, predicted_us=None, measured_us=None)

    return [*map(part, range(count - 1)), replace(stage, groups=part(count - 1).groups)]


def _scale(schedule: Schedule) -> float:
    """Pixels per microsecond."""
    known = [latency for stage in schedule.stages if (latency := stage.latency_us)]
    return _STAGE_TYPICAL / median(known) if known else 0.0


def _stage_width(stage: Stage, scale: float) -> float:
    boxes = max((len(shown(stage, group)) for group in stage.groups), default=1)
    least = boxes * (_BOX_MIN + _GAP) + 2 * _GAP
    return max(least, min(_STAGE_MAX, (stage.latency_us or 0.0) * scale))


def _draw_row(
    row: Sequence[_Column], y: float, styles: Mapping[str, Style], palette: Mapping[str, BoxColours]
) -> list[str]:
    parts: list[str] = []
    for start, column in enumerate(row):
        if start == 0 or row[start - 1].block is not column.block:
            same = [other for other in row[start:] if other.block is column.block]
            parts += _draw_block_head(same, y)
        parts += _draw_stage(column, y + _ROW_HEAD, styles, palette)
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


def _draw_stage(
    column: _Column, y: float, styles: Mapping[str, Style], palette: Mapping[str, BoxColours]
) -> Iterator[str]:
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
            yield from _draw_operator(name, x, y + lane * _LANE + 3, width, styles, palette)
    latency_us = stage.latency_us
    below = " ".join(filter(None, [rule.mark, "" if latency_us is None else latency_label(latency_us)]))
    yield text(column.x + column.width / 2, y + height + 14, below, size=10.5, fill=GREY, anchor="middle")


def _draw_operator(
    name: str, x: float, y: float, width: float, styles: Mapping[str, Style], palette: Mapping[str, BoxColours]
) -> Iterator[str]:
    style = style_of(name, styles)
    tip = f"{name} ({', '.join(filter(None, (style.label, style.models)))})" if style.type else name
    yield f"<g><title>{escaped(tip)}</title>"
    box = palette[style.kind]
    yield f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{_LANE - 6}" rx="4" {_filled(box)}/>'
    fits = len(style.label) * _CHAR <= width - 6
    label = style.label if fits else _clipped(style.label.partition(" ")[0], width - 6)
    yield text(x + width / 2, y + 16, label, size=11, fill=box.ink, anchor="middle") + "</g>"


def _legend(schedule: Schedule, palette: Mapping[str, BoxColours], y: float) -> tuple[list[str], float]:
    """Legend at height `y`, and the height of the picture, which ends with it."""
    parts: list[str] = []
    x = float(_MARGIN)
    for name, box in palette.items():
        width = 26 + len(name) * 7.2
        if x + width > _WIDTH - _MARGIN:
            x, y = _MARGIN, y + 22
        parts.append(f'<rect x="{x:.1f}" y="{y - 10:.1f}" width="12" height="12" rx="3" {_filled(box)}/>')
        parts.append(text(x + 18, y, name, size=12, fill="#3a4350"))
        x += width + 10
    marked = not all(block.optimal for block in schedule.blocks)
    remarks = [_HOW_TO_READ] + [f"* {proof_text(None)}"] * marked
    drawn = {stage.strategy for stage in schedule.stages}
    remarks += [f"dashed: {rule.legend}" for way, rule in STAGE_RULES.items() if rule.legend and way in drawn]
    parts.append(text(_MARGIN, y + 24, " · ".join(remarks), size=12, fill=GREY))
    return parts, y + 44


def _filled(box: BoxColours) -> str:
    edge = box.edge and f' stroke="{box.edge}"'
    return f'fill="{box.fill}"{edge}'


def _clipped(words: str, width: float) -> str:
    room = int(width / _CHAR)
    return words if len(words) <= room else words[: max(room - 1, 1)] + "…"


def _palette(schedule: Schedule, styles: Mapping[str, Style]) -> dict[str, BoxColours]:
    """Light colours by family, or by model if there are several; from the eighth model on, colours repeat."""
    shown = [style_of(name, styles) for stage in schedule.stages for name in stage.operators]
    by_family = {family.name: family.light for family in FAMILIES.values()}
    models = dict.fromkeys(style.models for style in shown if style.models)
    colours = dict(zip(models, cycle(box for box in by_family.values() if not box.edge)))
    kinds = {style.kind for style in shown}
    return {kind: box for kind, box in {**colours, **by_family}.items() if kind in kinds}
