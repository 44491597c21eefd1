"""Finds the space that was asked for: one in the box by its name, or a file."""

from __future__ import annotations

import os
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path

from iosched.models.errors import UsageError
from iosched.models.source import StrPath
from iosched.models.spaces.file import read_space
from iosched.models.spaces.space import Space

PREFIX = "builtin:"
NAMES = ("mnasnet", "nasnet", "darts", "enas", "spos", "inception", "pelee")
"""Of the spaces in the box; each has a module of its name with a `SPACE`."""


def find_space(source: StrPath) -> Space:
    """The space `builtin:NAME`, `builtin:NAME:PIXELS`, or that of a file, which is executed.

    Raises:
        UsageError: there is none of that name, or the file defines none.
    """
    source = os.fspath(source)
    if source in NAMES and not Path(source).exists():
        raise UsageError(f"no file is called {source!r}; the space in the box is {PREFIX}{source}")
    if not source.startswith(PREFIX):
        return read_space(Path(source))
    name, colon, pixels = source.removeprefix(PREFIX).partition(":")
    space = builtin_space(name)
    if colon and not (pixels.isascii() and pixels.isdecimal()):
        raise UsageError(f"{source!r}: {pixels!r} is no number of pixels; write {PREFIX}{name}:64")
    return space.at(int(pixels)) if colon else space


def builtin_space(name: str) -> Space:
    """The space in the box of this name.

    Raises:
        UsageError: there is none; names close ones.
    """
    if name in NAMES:
        space: Space = import_module(f"iosched.models.spaces.{name}").SPACE
        return space
    close = get_close_matches(name, NAMES, n=2, cutoff=0.5)
    hint = f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(NAMES)}"
    raise UsageError(f"no space in the box is called {name!r}; {hint}")
