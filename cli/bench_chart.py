"""A bar chart of measured latencies as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape

from iosched.cli.errors import printable
from iosched.cli.tables import milliseconds

_WIDTH = 900
_LEFT = 190  # room for names
_RIGHT = 110  # room for numbers
_ROW = 34
_TOP = 64
_HOW_TO_READ = "median latency; the line spans the 10th to the 90th percentile"


def draw_chart(title: str, rows: Sequence[tuple[str, float, float, float]]) -> str:
    """Horizontal bars of medians with a line from the 10th to the 90th percentile.

    Args:
        title: headline.
        rows: name, median, 10th and 90th percentile in microseconds.
    """
    longest = max((max(median, high) for _, median, _, high in rows), default=1.0)
    scale = (_WIDTH - _LEFT - _RIGHT) / longest
    height = _TOP + _ROW * len(rows) + 36
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" viewBox="0 0 {_WIDTH} {height}" '
        "font-family=\"system-ui, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif\">",
        f'<rect width="{_WIDTH}" height="{height}" rx="10" fill="#ffffff"/>',
        _text(24, 36, title, size=17, weight="600"),
    ]
    for index, row in enumerate(rows):
        parts += _bar(row, _TOP + index * _ROW, scale)
    parts.append(
        _text(24, height - 14, "median latency; the line spans the 10th to the 90th percentile", fill="#5a6472")
    )
    return "\n".join([*parts, "</svg>", ""])


def _bar(row: tuple[str, float, float, float], y: float, scale: float) -> list[str]:
    name, median, low, high = row
    colour = "#4c78a8" if name == "iosched" else "#a9b4c2"
    end = _LEFT + max(median, high) * scale + 8
    first, last = _LEFT + low * scale, _LEFT + high * scale
    return [
        _text(_LEFT - 10, y + 17, name, anchor="end"),
        f'<rect x="{_LEFT}" y="{y}" width="{median * scale:.1f}" height="{_ROW - 10}" rx="3" fill="{colour}"/>',
        f'<path d="M{first:.1f} {y + 12}H{last:.1f}" stroke="#1d242d" stroke-width="1.5"/>',
        _text(end, y + 17, milliseconds(median)),
    ]


def _text(
    x: float, y: float, text: str, *, size: int = 13, fill: str = "#1d242d", weight: str = "400", anchor: str = "start"
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" font-weight="{weight}" fill="{fill}" '
        f'text-anchor="{anchor}">{escape(printable(text))}</text>'
    )
