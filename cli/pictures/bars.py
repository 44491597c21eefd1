"""A bar chart of measured latencies as SVG."""

from __future__ import annotations

from collections.abc import Sequence

from iosched.cli.pictures.svg import GREY, INK, picture, text
from iosched.cli.text import latency_text

_WIDTH = 900
_LEFT = 190  # room for names
_RIGHT = 110  # room for numbers
_ROW = 34
_TOP = 64
_HOW_TO_READ = "median latency; the line spans the 10th to the 90th percentile"


def draw_bars(title: str, rows: Sequence[tuple[str, float, float, float]]) -> str:
    """Horizontal bars of medians with a line from the 10th to the 90th percentile.

    Args:
        title: the headline.
        rows: name, median, 10th and 90th percentile in microseconds.
    """
    longest = max((max(median, high) for _, median, _, high in rows), default=1.0)
    scale = (_WIDTH - _LEFT - _RIGHT) / longest
    height = _TOP + _ROW * len(rows) + 36
    parts = [text(24, 36, title, size=17, weight="600")]
    for index, row in enumerate(rows):
        parts += _bar(row, _TOP + index * _ROW, scale)
    parts.append(text(24, height - 14, _HOW_TO_READ, fill=GREY))
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
