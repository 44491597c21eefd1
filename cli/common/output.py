"""Output: data on stdout, text on stderr, files written completely or not at all."""

from __future__ import annotations

import json
import os
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TextIO

import click

from iosched.cli.common.errors import printable
from iosched.cli.common.json_objects import json_value
from iosched.cli.common.log_file import WORDS, without_secrets
from iosched.models.errors import ExecutionError, UsageError
from iosched.models.files import atomic_write
from iosched.models.log import logger

STDOUT = "-"

_log = logger(__name__)


@dataclass(frozen=True)
class Destination:
    """Destination of one output.

    Attributes:
        option: the option's name, for error messages.
        path: the file; None for stdout.
    """

    option: str
    path: Path | None

    def __str__(self) -> str:
        return STDOUT if self.path is None else str(self.path)


_NOTED = "iosched.noted"
"""Key in the context's `meta` of the lines of `note_before`."""

INPUTS_SEED = {"inputs": 0}
"""Seeds of commands with random inputs only; equals `runtime.inputs.DEFAULT_SEED`."""


def destination(ctx: click.Context, param: click.Parameter, text: str | None) -> Destination | None:
    """Click callback that returns a `Destination`; `-` is stdout."""
    del ctx
    if text is None:
        return None
    option = param.opts[0] if isinstance(param, click.Option) else param.human_readable_name
    return Destination(option, None if text == STDOUT else Path(text))


def check_destinations(
    destinations: Iterable[Destination | None], *, inputs: Iterable[Path | None] = (), as_json: bool = False
) -> None:
    """Check outputs before any work is done.

    Raises:
        UsageError: two outputs on stdout, a missing or read-only folder, or an input that would be overwritten.
    """
    wanted = [each for each in destinations if each is not None]
    on_stdout = [f"{d.option} -" for d in wanted if d.path is None] + ["--json"] * as_json
    if len(on_stdout) > 1:
        raise UsageError(f"{on_stdout[0]} and {on_stdout[1]} both write to stdout: send one of them to a file")
    paths = [(d.option, d.path) for d in wanted if d.path is not None]
    sources = [path for path in inputs if path is not None]
    for index, (option, path) in enumerate(paths):
        _check_file(option, path)
        if any(_same(path, source) for source in sources):
            raise UsageError(f"{option} {path} would overwrite the input: choose another name")
        if any(_same(path, other) for _, other in paths[:index]):
            raise UsageError(f"{option} {path} is written twice: choose another name")


def _check_file(option: str, path: Path) -> None:
    if path.is_dir():
        raise UsageError(f"{option} {path} is a folder: name a file in it")
    if not path.parent.is_dir():
        raise UsageError(f"{option} {path}: there is no folder {path.parent}: create it first")
    is_special = path.exists() and not path.is_file()  # such as /dev/null, whose folder need not be writable
    if is_special and not os.access(path, os.W_OK):
        raise UsageError(f"{option} {path}: no permission to write to it")
    if not is_special and not os.access(path.parent, os.W_OK):
        raise UsageError(f"{option} {path}: no permission to write to {path.parent}")


def _same(a: Path, b: Path) -> bool:
    return os.path.realpath(a) == os.path.realpath(b) or (a.exists() and b.exists() and a.samefile(b))


def refuse_terminal(output: Destination | None) -> None:
    """Refuse binary data on a terminal.

    Raises:
        UsageError: the destination is stdout, and stdout is a terminal.
    """
    if output is not None and output.path is None and sys.stdout.isatty():
        raise UsageError(f"{output.option} - would write binary data to the terminal: pipe or redirect it")


def write(output: Destination, data: bytes) -> None:
    """Write `data` to stdout, or to a temporary file that is then renamed.

    Raises:
        ExecutionError: the file cannot be written.
    """
    if output.path is None:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return
    path = output.path
    try:
        with atomic_write(path) as file:
            file.write(data)
    except OSError as error:
        raise ExecutionError(f"{path}: cannot write: {error.strerror}") from error


def write_and_note(output: Destination, data: bytes) -> None:
    """Write, and print the name of the file on stderr."""
    write(output, data)
    if output.path is not None:
        note(f"Wrote {output.path}.")


def emit_result(value: Mapping[str, object], seeds: Mapping[str, int] = {}, **conditions: object) -> None:
    """Print a result as JSON with its "provenance".

    Args:
        seeds: seeds of random numbers, by purpose.
        conditions: further entries of "provenance".
    """
    from iosched.jobs.provenance import provenance

    command = tuple(_without_secrets(("iosched", *click.get_current_context().meta.get(WORDS, ()))))
    emit_json({**value, "provenance": {**asdict(provenance(seeds, command)), **conditions}})


def _without_secrets(words: Sequence[str]) -> Iterator[str]:
    """Mask secrets in words and in values that follow the option of a secret."""
    for before, word in zip(("", *words), words, strict=False):
        both = without_secrets(f"{before} {word}")
        yield both.removeprefix(f"{before} ") if both.startswith(f"{before} ") else without_secrets(word)


def emit_json(value: Mapping[str, object]) -> None:
    """Print one JSON object on stdout; see `json_value`."""
    click.echo(json.dumps(json_value(value), ensure_ascii=False, allow_nan=False))


def quiet() -> bool:
    """Whether `-q` was given."""
    return bool(click.get_current_context().meta.get("iosched.quiet"))


def debugging() -> bool:
    """Whether `--debug` was given."""
    return bool(click.get_current_context().meta.get("iosched.debug"))


def verbose() -> bool:
    """Whether `-v` was given."""
    return bool(click.get_current_context().meta.get("iosched.verbose"))


def detail(text: str) -> None:
    """Print a line on stderr with `-v`; always log it."""
    if verbose():
        note(text)
    else:
        _log.debug("%s", text)


def note(text: str) -> None:
    """Print a line on stderr unless `-q` was given; always log it."""
    _log.info("%s", text)
    if not quiet():
        click.echo(fitted(printable(text), width_of(sys.stderr)), err=True)


def note_before(devices: Iterable[str], threads: int | None) -> None:
    """Print, before measuring, remarks on what slows models down on these devices; `notes_after` omits these lines."""
    from iosched.profiler.devices.resolve import remarks_before

    found = dict.fromkeys(line for device in devices for line in remarks_before(device, threads))
    for line in found:
        note(line)
    click.get_current_context().meta[_NOTED] = frozenset(found)


def notes_after(notes: Iterable[str]) -> list[str]:
    """Notes of a result that `note_before` has not printed."""
    noted = click.get_current_context().meta.get(_NOTED, ())
    return [line for line in notes if line not in noted]


_USUAL = 80


def say(text: str) -> None:
    """Print text on stdout."""
    click.echo(fitted(printable(text), width_of(sys.stdout)))


def width_of(stream: TextIO) -> int | None:
    """Columns of a terminal: from COLUMNS, else from the terminal, else 80; None if the stream is not a terminal."""
    if not stream.isatty():
        return None
    given = os.environ.get("COLUMNS", "")
    if given.isdecimal() and 0 < len(given) < 6 and int(given) > 0:
        return int(given)
    try:
        return os.get_terminal_size(stream.fileno()).columns or _USUAL
    except OSError:  # includes io.UnsupportedOperation
        return _USUAL


def fitted(text: str, width: int | None) -> str:
    """Wrap lines between words to `width` columns and keep their indentation. Long words stay in one piece."""
    if width is None:
        return text
    lines = text.split("\n")
    return "\n".join(
        part for line in lines for part in _wrapped(line, width, " " * (len(line) - len(line.lstrip(" "))))
    )


def fitted_line(line: str, width: int, indent: str) -> str:
    """Wrap one line; `indent` precedes all parts but the first."""
    return "\n".join(_wrapped(line, width, indent))


def _wrapped(line: str, width: int, indent: str) -> list[str]:
    if len(line) <= width:
        return [line]
    return textwrap.wrap(
        line,
        width,
        subsequent_indent=indent,
        expand_tabs=False,
        replace_whitespace=False,
        break_long_words=False,
        break_on_hyphens=False,
    )
