"""Charts of latencies as SVG: a heat map of targets, and bars."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from iosched.cli.common.text import EQUAL, equal_text, latency_text, percent_more
from iosched.cli.pictures.svg import GREY, INK, picture, text

_TOP = 126
_HEIGHT = 52
_LINE = 16
_MARGIN = 24
_CHAR = 7.6  # advance of a character of the labels
_DARKEST = 0.5  # slowdown of the darkest colour
_HOW_TO_READ = "rows: executed on; columns: optimized for; framed: its own schedule; darker: slower than that"

Slowdown = Sequence[Sequence[float | None]]


def draw_heat_map(
    title: str,
    subtitle: str,
    labels: Sequence[str],
    latency_us: Sequence[Sequence[float]],
    slowdown: Slowdown,
    is_equal: Callable[[int, int], bool] = lambda executed, optimized: False,
) -> str:
    """Cells with latencies, and how much slower they are than the row's own schedule.

    Args:
        subtitle: the source of the latencies.
        labels: names of the targets.
        latency_us: `latency_us[executed on][optimized for]` in microseconds.
        slowdown: latency over that of the row's own schedule; None hides the ratio.
        is_equal: whether a latency equals the row's own within the uncertainty.
    """
    places = range(len(labels))
    marks = [[f" {EQUAL}" if row != column and is_equal(row, column) else "" for column in places] for row in places]
    lines = [_HOW_TO_READ, equal_text("the row's own schedule")] if any(map(any, marks)) else [_HOW_TO_READ]
    longest = max(map(len, (*labels, "executed on")))
    left = _MARGIN + longest * _CHAR + 14
    width = max(104.0, longest * _CHAR + 12)
    right = left + width * len(labels)
    total = max(right, _MARGIN + _CHAR * max(len(title) * 1.3, len(subtitle), len(_HOW_TO_READ) * 0.95)) + _MARGIN
    bottom = _TOP + _HEIGHT * len(labels)
    height = bottom + 28 + _LINE * len(lines)
    parts = [
        text(_MARGIN, 36, title, size=16, weight="600"),
        text(_MARGIN, 57, subtitle, fill=GREY),
        text(left + width * len(labels) / 2, _TOP - 38, "optimized for", fill=GREY, anchor="middle"),
        text(left - 12, _TOP - 12, "executed on", fill=GREY, anchor="end"),
    ]
    for index, label in enumerate(labels):
        parts.append(text(left + width * (index + 0.5), _TOP - 12, label, anchor="middle"))
        parts.append(text(left - 12, _TOP + _HEIGHT * index + 31, label, anchor="end"))
    for row, (latencies, ratios) in enumerate(zip(latency_us, slowdown, strict=True)):
        parts += _row(row, latencies, ratios, marks[row], left, width)
    parts += [text(_MARGIN, bottom + 28 + _LINE * index, line, size=12, fill=GREY) for index, line in enumerate(lines)]
    return picture(total, height, parts)


def _row(
    row: int,
    latencies: Sequence[float],
    slowdown: Sequence[float | None],
    marks: Sequence[str],
    left: float,
    width: float,
) -> Iterator[str]:
    y = _TOP + _HEIGHT * row
    for column, (latency, ratio, mark) in enumerate(zip(latencies, slowdown, marks, strict=True)):
        shown = None if row == column else ratio
        x, middle = left + width * column, left + width * (column + 0.5)
        dark = min((ratio - 1) / _DARKEST, 1.0) if ratio is not None else 0.0
        frame = f' stroke="{INK}" stroke-width="2"' if row == column else ""
        ink = "#ffffff" if dark > 0.55 else INK
        yield (
            f'<rect x="{x + 2:.1f}" y="{y + 2}" width="{width - 4:.1f}" height="{_HEIGHT - 4}" rx="4" '
            f'fill="{_colour(dark)}"{frame}/>'
        )
        yield text(middle, y + (31 if shown is None else 23), latency_text(latency), fill=ink, anchor="middle")
        if shown is not None:
            yield text(middle, y + 40, percent_more(shown) + mark, size=12, fill=ink, anchor="middle")


def _colour(dark: float) -> str:
    """From nearly white (0) to deep orange (1), by the square root, so that a few percent are visible."""
    share = max(dark, 0.0) ** 0.5
    light, deep = (0xF4, 0xF6, 0xF8), (0xB8, 0x48, 0x14)
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in zip(light, deep, strict=True))


_WIDTH = 900
_LEFT = 190  # room for names
_RIGHT = 110  # room for numbers
_ROW = 34
_FIRST_BAR_Y = 64
_BARS_LEGEND = "median latency; the line spans the 10th to the 90th percentile"


def draw_bars(title: str, rows: Sequence[tuple[str, float, float, float]]) -> str:
    """Horizontal bars of medians with a line from the 10th to the 90th percentile.

    Args:
        rows: name, median, 10th and 90th percentile in microseconds.
    """
    longest = max((max(median, high) for _, median, _, high in rows), default=1.0)
    scale = (_WIDTH - _LEFT - _RIGHT) / longest
    height = _FIRST_BAR_Y + _ROW * len(rows) + 36
    parts = [text(24, 36, title, size=17, weight="600")]
    for index, row in enumerate(rows):
        parts += _bar(row, _FIRST_BAR_Y + index * _ROW, scale)
    parts.append(text(24, height - 14, _BARS_LEGEND, fill=GREY))
    return picture(_WIDTH, height, parts)


def _bar(row: tuple[str, float, float, float], y: float, scale: float) -> list[str]:
    name, median, low, high = row
    colour = "#4c78a8" if name == "iosched" else "#a9b4c2"
    end = _LEFT + max(median, high) * scale + 8
    first, last = _LEFT + low * scale, _LEFT + high * scale
    return [
        text(_LEFT - 10, y + 17, name, anchor="end"),
        f'<rect x="{_LEFT}" y="{y}" width="{median * scale:.1f}" height="{_ROW - 10}" rx="3" fill="{colour}"/>',
        f'<path d="M{first:.1f} {y + 12}H{last:.1f}" stroke="{INK}" stroke-width="1.5"/>',
        text(end, y + 17, latency_text(median)),
    ]
