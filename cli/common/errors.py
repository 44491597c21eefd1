"""Turn exceptions into exit codes and messages on stderr."""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import click

from iosched.cli.common.site_settings import related_settings
from iosched.models.errors import (
    DeviceError,
    InvalidModelError,
    InvalidScheduleError,
    IoschedError,
    MismatchError,
    PlanWarning,
    SetAsideWarning,
    UsageError,
)
from iosched.models.log import logger

FAILED = 1
INTERRUPTED = 130
BROKEN_PIPE = 141  # as shells report SIGPIPE

EXIT_CODES: tuple[tuple[type[Exception], int], ...] = (
    (UsageError, 2),
    (InvalidModelError, 2),
    (InvalidScheduleError, 2),
    (DeviceError, 3),
    (MismatchError, 4),
    (IoschedError, FAILED),  # ExecutionError and others
)

_log = logger(__name__)

_MAX_LINES = 5
_MAX_COLUMNS = 400


def exit_code(error: Exception) -> int:
    """Exit code of an exception; 1 for unexpected ones."""
    return next((code for kind, code in EXIT_CODES if isinstance(error, kind)), FAILED)


def printable(text: str) -> str:
    """Replace control characters: names in a model could control the terminal."""
    return "".join(char if char == "\n" or char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


def message_of(error: Exception) -> str:
    """Message of an error, at most five lines."""
    if isinstance(error, IoschedError):
        text = str(error) or type(error).__name__
    elif isinstance(error, OSError) and error.strerror:
        place = f"{error.filename}: " if error.filename is not None else ""
        text = f"{place}{error.strerror}"
    elif isinstance(error, MemoryError):
        text = "out of memory: close other programs, or use a smaller batch size or fewer threads"
    else:
        text = f"internal error: {type(error).__name__}: {str(error).partition(chr(10))[0]}"
        text = f"{text[: _MAX_COLUMNS - 60]} (run again with --debug for the traceback)"
    return _shortened(printable(text))


def _shortened(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()] or ["failed"]
    if len(lines) > _MAX_LINES:
        lines = [*lines[: _MAX_LINES - 1], "..."]
    return "\n".join(line if len(line) <= _MAX_COLUMNS else line[: _MAX_COLUMNS - 3] + "..." for line in lines)


@contextmanager
def warnings_as_notes() -> Iterator[None]:
    """Print warnings for users as lines on stderr, without their place in the code."""
    with warnings.catch_warnings():
        show = warnings.showwarning

        def shown(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
            if not issubclass(category, SetAsideWarning | PlanWarning):
                show(message, category, *place, **more)
                return
            _log.warning("%s", message)
            click.echo(printable(str(message)), err=True)

        warnings.showwarning = shown
        yield


@contextmanager
def guarded(ctx: click.Context | None = None) -> Iterator[None]:
    """Turn exceptions of a command into its exit code; click's own errors pass through.

    Args:
        ctx: the context, for --debug; None before the command line is parsed.

    Raises:
        click.exceptions.Exit: with the exit code of the exception.
    """
    try:
        yield
        sys.stdout.flush()  # a full disk or closed pipe must raise before the exit code is set
    except (click.ClickException, click.exceptions.Exit, click.Abort):
        raise
    except KeyboardInterrupt:
        _log.warning("interrupted")
        click.echo("\nInterrupted; measurements are kept.", err=True)
        raise click.exceptions.Exit(INTERRUPTED) from None
    except BrokenPipeError:
        _log.warning("broken pipe: the reader exited")
        _silence_stdout()
        raise click.exceptions.Exit(BROKEN_PIPE) from None
    except Exception as error:  # noqa: BLE001 - the last line of defence: one line for people, never a traceback
        if isinstance(error, OSError):
            _silence_stdout()
        if ctx is not None and ctx.meta.get("iosched.debug"):
            traceback.print_exc()
        settings = [] if ctx is None else related_settings(error, ctx)
        text = "\n".join([f"Error: {message_of(error)}", *map(printable, settings)])
        _log.error("%s", text, exc_info=error)
        click.echo(text, err=True)
        raise click.exceptions.Exit(exit_code(error)) from None


def _silence_stdout() -> None:
    """Redirect stdout to /dev/null, so that the interpreter can flush it on exit."""
    with suppress(OSError, ValueError), open(os.devnull, "w") as nothing:  # noqa: PTH123 - a descriptor is wanted
        os.dup2(nothing.fileno(), sys.stdout.fileno())
