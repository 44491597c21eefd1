"""`--log-file`: append a log of the command to a file."""

from __future__ import annotations

import logging
import os
import platform
import re
import shlex
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from iosched.cli.common.errors import FAILED, printable
from iosched.models.errors import ExecutionError, UsageError
from iosched.models.log import ROOT, logger

WORDS = "iosched.words"
"""Key in the context's `meta` of the words of the command line."""

_OPEN = "iosched.log"
_IS_LOG = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z [A-Z]+ ")
_NAMED_SECRET = r"[\w-]*(?:password|passwd|secret|token|api[_-]?key)"
_SECRETS = (
    (re.compile(r"(\w://)[^/\s@]+@"), r"\1***@"),
    (re.compile(rf"(?i)\b({_NAMED_SECRET}\s*[=:]\s*)[^\s,'\"]+"), r"\1***"),
    (re.compile(rf"(?i)(--{_NAMED_SECRET}\s+)[^\s,'\"]+"), r"\1***"),
)

_log = logger(__name__)


class _LineFormatter(logging.Formatter):
    """Prefix every line of a record with time, level, process and logger."""

    def format(self, record: logging.LogRecord) -> str:
        """Format all lines of a record."""
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").removesuffix("+00:00")
        text = record.getMessage()
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        begin = f"{at}Z {record.levelname} [{record.process}] {record.name}:"
        return "".join(f"{begin} {line}\n" for line in without_secrets(printable(text)).splitlines())


class _Appending(logging.Handler):
    """Append a record in one unbuffered write: several processes can share a file, and a killed one loses nothing.

    Attributes:
        trouble: why writing stopped, or None.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(logging.DEBUG)
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        self.trouble: OSError | None = None
        self.setFormatter(_LineFormatter())

    def emit(self, record: logging.LogRecord) -> None:
        """Append a record; a write error stops the log, not the command."""
        if self.trouble is not None:
            return
        data = self.format(record).encode("utf-8", "backslashreplace")
        try:
            while data:
                data = data[os.write(self._descriptor, data) :]
        except OSError as error:
            self.trouble = error

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        super().close()


@dataclass(frozen=True, eq=False)
class _OpenLog:
    """An open log, and the settings to restore when it is closed."""

    path: Path
    handler: _Appending
    began_s: float
    level_before: int
    show_before: Any

    def close(self) -> None:
        """Detach the log from the logger."""
        warnings.showwarning = self.show_before
        root = logging.getLogger(ROOT)
        root.removeHandler(self.handler)
        root.setLevel(self.level_before)
        self.handler.close()


def open_log(ctx: click.Context, param: click.Parameter, text: str | None) -> None:
    """Callback of `--log-file`: start logging.

    Raises:
        UsageError: the file cannot be opened, or is not a log.
        ExecutionError: the first line cannot be written.
    """
    del param
    if text is None or ctx.resilient_parsing:
        return
    _check(text)
    _close(ctx)
    try:
        handler = _Appending(Path(text))
    except OSError as error:
        raise UsageError(f"--log-file {text}: {error.strerror}: name a writable file") from None
    root = logging.getLogger(ROOT)
    ctx.meta[_OPEN] = _OpenLog(Path(text), handler, time.monotonic(), root.level, warnings.showwarning)
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    warnings.showwarning = _showing(warnings.showwarning)
    _begin(ctx.meta.get(WORDS, ()))
    if handler.trouble is not None:
        _close(ctx)
        raise ExecutionError(f"--log-file {text}: cannot write: {handler.trouble.strerror}")


@contextmanager
def logged(ctx: click.Context) -> Iterator[None]:
    """Write how the command ended as the last line of its log, and close it.

    Raises:
        click.exceptions.Exit: the command succeeded, but its log is incomplete.
    """
    code = FAILED
    try:
        yield
        code = 0
    except click.exceptions.Exit as error:
        code = error.exit_code
        raise
    except click.ClickException as error:
        code = error.exit_code
        _log.error("%s", error.format_message())
        raise
    finally:
        trouble = _end(ctx, code)
        if trouble is not None:
            click.echo(f"Error: {trouble}", err=True)
            if code == 0:
                raise click.exceptions.Exit(FAILED)


def without_secrets(text: str) -> str:
    """Mask passwords in addresses and values of options and variables named like secrets."""
    for pattern, instead in _SECRETS:
        text = pattern.sub(instead, text)
    return text


def _check(text: str) -> None:
    """Refuse an existing file that is not a log: appending would corrupt it."""
    if text == "-":
        raise UsageError("--log-file -: stdout carries data: name a file, or /dev/stderr")
    path = Path(text)
    try:
        if not path.is_file() or path.stat().st_size == 0:
            return
        with path.open("rb") as file:
            head = file.read(64)
    except OSError as error:
        raise UsageError(f"--log-file {text}: {error.strerror}: name a readable and writable file") from None
    if not _IS_LOG.match(head):
        raise UsageError(f"--log-file {text}: this file exists and is not a log of iosched: name another file")


def _begin(words: tuple[str, ...]) -> None:
    from iosched.models.version import iosched_version

    system = f"Python {platform.python_version()}, {platform.system()} {platform.release()}"
    _log.info("iosched %s, %s, in %s", iosched_version(), system, Path.cwd())
    _log.info("iosched %s", shlex.join(words))


def _end(ctx: click.Context, code: int) -> str | None:
    """Write the last line; returns a problem with the log, or None."""
    log: _OpenLog | None = ctx.meta.get(_OPEN)
    if log is None:
        return None
    _log.info("exit code %d after %.1f s", code, time.monotonic() - log.began_s)
    _close(ctx)
    trouble = log.handler.trouble
    return (
        None if trouble is None else f"--log-file {log.path}: cannot write: {trouble.strerror}; the log is incomplete"
    )


def _close(ctx: click.Context) -> None:
    log: _OpenLog | None = ctx.meta.pop(_OPEN, None)
    if log is not None:
        log.close()


def _showing(show: Any) -> Any:
    def show_and_log(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
        _log.warning("%s: %s", category.__name__, message)
        show(message, category, *place, **more)

    return show_and_log
