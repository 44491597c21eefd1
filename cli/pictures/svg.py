"""Frame, colours and text of SVG pictures."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape  # not of xml.sax, which loads http

from iosched.cli.common.errors import printable

INK = "#1d242d"
GREY = "#5a6472"
_FONTS = "system-ui, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"


def picture(width: float, height: float, parts: Iterable[str]) -> str:
    """SVG file with a white background and no references."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="{_FONTS}">'
    )
    ground = f'<rect width="{width:.0f}" height="{height:.0f}" rx="10" fill="#ffffff"/>'
    return "\n".join([head, ground, *parts, "</svg>", ""])


def text(
    x: float, y: float, words: str, *, size: float = 13, fill: str = INK, weight: str = "400", anchor: str = "start"
) -> str:
    """Text element at (x, y); `anchor` is "start", "middle" or "end"."""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" font-weight="{weight}" fill="{fill}" '
        f'text-anchor="{anchor}">{escaped(words)}</text>'
    )


def escaped(words: str) -> str:
    """Escape for XML; replaces line breaks and control characters, which XML does not allow."""
    return escape(printable(words.replace("\n", "\N{REPLACEMENT CHARACTER}")), quote=False)
