"""A schedule as text on a narrow terminal: chains of operators go on below where they began, between words."""

from __future__ import annotations

import re
from collections.abc import Iterator

from iosched.cli.terminal import fitted_line

_MARK = re.compile(r"^( .*?)((?:──|┬─|├─|└─|--|\+-|\|-|`-) .*)$")
_GOES_ON = {"┬": "│", "├": "│", "+": "|", "|": "|"}
"""What stands below a group's mark where another group follows."""
_MOST = 0.5
"""The part of a line that what stands before a group may take; where it is more, it gets a line of its own."""
_INDENT = " " * 6


def wrapped(text: str, width: int | None) -> str:
    """The text of a schedule wrapped to so many columns; as it is for None."""
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
