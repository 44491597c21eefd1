"""Finds the space that was asked for: one in the box by its name, or that of a file of Python, which is executed."""

from __future__ import annotations

import os
import sys
import traceback
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from types import ModuleType

from iosched.models.errors import UsageError
from iosched.models.source import StrPath
from iosched.models.spaces.space import Space

PREFIX = "builtin:"
_NAME = "space"
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


def read_space(path: Path) -> Space:
    """The space that a file defines as `space = Space(...)`. The file is executed.

    Raises:
        UsageError: there is no such file, it fails, or it defines no space; says the line where it can.
    """
    module = executed(path)
    found = getattr(module, _NAME, None)
    if isinstance(found, Space):
        return found
    if found is None:
        raise UsageError(f"{path} defines no `{_NAME}`; it ends with `{_NAME} = iosched.Space(...)`")
    raise UsageError(f"{path}: `{_NAME}` is of type {type(found).__name__}, and has to be an iosched.Space")


def executed(path: Path) -> ModuleType:
    """The module that a file of Python makes.

    Raises:
        UsageError: there is no such file, or it fails; says the line where it can.
    """
    module = ModuleType(f"iosched_file_{path.stem}")
    module.__file__ = str(path)
    # Dataclasses look up the module that they are defined in.
    sys.modules[module.__name__] = module
    try:
        exec(compile(path.read_bytes(), str(path), "exec"), module.__dict__)
    except (Exception, SystemExit) as error:
        if not _line(error, path) and isinstance(error, OSError):
            raise UsageError(f"{path} cannot be read: {error.strerror or error}") from error
        raise UsageError(f"{path}{_line(error, path)}: {_said(error)}") from error
    return module


def _line(error: BaseException, path: Path) -> str:
    """The last line of the file itself on the way to the error; what it calls is seldom where the mistake is."""
    if isinstance(error, SyntaxError) and error.filename == str(path) and error.lineno:
        return f", line {error.lineno}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return f", line {lines[-1]}" if lines else ""


def _said(error: BaseException) -> str:
    if isinstance(error, UsageError | SyntaxError):
        return error.msg if isinstance(error, SyntaxError) else str(error)
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
