"""Where results go: stdout carries data only, and a file is there whole or not at all."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from iosched.cli.errors import printable
from iosched.cli.json_objects import plain
from iosched.cli.log_file import WORDS, without_secrets
from iosched.cli.terminal import fitted, width_of
from iosched.models.errors import ExecutionError, UsageError
from iosched.models.files import atomic_write
from iosched.models.log import logger

STDOUT = "-"

_log = logger(__name__)


@dataclass(frozen=True)
class Destination:
    """Where one output of a command goes.

    Attributes:
        option: what named it on the command line, for error messages.
        path: the file; None for stdout.
    """

    option: str
    path: Path | None

    def __str__(self) -> str:
        return STDOUT if self.path is None else str(self.path)


_NOTED = "iosched.noted"
"""Where the context of a command has the lines of `note_before`."""

INPUTS_SEED = {"inputs": 0}
"""The seeds of commands that draw inputs alone, as `runtime.inputs.DEFAULT_SEED` has it."""


def destination(ctx: click.Context, param: click.Parameter, text: str | None) -> Destination | None:
    """A click callback that makes a `Destination` of an option's text: `-` is stdout, all else is a path."""
    del ctx
    if text is None:
        return None
    option = param.opts[0] if isinstance(param, click.Option) else param.human_readable_name
    return Destination(option, None if text == STDOUT else Path(text))


def check_destinations(
    destinations: Iterable[Destination | None], *, inputs: Iterable[Path | None] = (), as_json: bool = False
) -> None:
    """Refuses, before any work is done, outputs that could not be written or would destroy an input.

    Raises:
        UsageError: two things on stdout, a missing or write-protected folder, an input about to be overwritten.
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
    is_special = path.exists() and not path.is_file()  # such as /dev/null, in whose folder nothing has to be made
    if is_special and not os.access(path, os.W_OK):
        raise UsageError(f"{option} {path}: no permission to write to it")
    if not is_special and not os.access(path.parent, os.W_OK):
        raise UsageError(f"{option} {path}: no permission to write to {path.parent}")


def _same(a: Path, b: Path) -> bool:
    return os.path.realpath(a) == os.path.realpath(b) or (a.exists() and b.exists() and a.samefile(b))


def refuse_terminal(output: Destination | None) -> None:
    """Refuses to write binary data to a terminal.

    Raises:
        UsageError: the destination is stdout, and stdout is a terminal.
    """
    if output is not None and output.path is None and sys.stdout.isatty():
        raise UsageError(f"{output.option} - would write binary data to the terminal: pipe or redirect it")


def write(output: Destination, data: bytes) -> None:
    """Writes `data` to stdout, or to a temporary file that is then given its name, so that no file is half written.

    Raises:
        ExecutionError: the file cannot be written, as on a full disk.
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
    """Writes as `write` does, and says on stderr which file was written.

    Raises:
        ExecutionError: the file cannot be written, as on a full disk.
    """
    write(output, data)
    if output.path is not None:
        note(f"Wrote {output.path}.")


def emit_result(value: Mapping[str, object], seeds: Mapping[str, int] = {}, **conditions: object) -> None:
    """Prints a result as `emit_json` does, with where it comes from under "provenance".

    Args:
        seeds: what random numbers were drawn from, by what they are for.
        conditions: of this result, which are added to "provenance".
    """
    from iosched.jobs.provenance import provenance

    command = tuple(_without_secrets(("iosched", *click.get_current_context().meta.get(WORDS, ()))))
    emit_json({**value, "provenance": {**asdict(provenance(seeds, command)), **conditions}})


def _without_secrets(words: Sequence[str]) -> Iterator[str]:
    """The words, each without what looks like a password in it, or where the word before it says that it is one."""
    for before, word in zip(("", *words), words, strict=False):
        both = without_secrets(f"{before} {word}")
        yield both.removeprefix(f"{before} ") if both.startswith(f"{before} ") else without_secrets(word)


def emit_json(value: Mapping[str, object]) -> None:
    """Prints one JSON object on stdout, see `plain`."""
    click.echo(json.dumps(plain(value), ensure_ascii=False, allow_nan=False))


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
    """Prints a line for people on stderr if `-v` was given; the log has it in any case."""
    if verbose():
        note(text)
    else:
        _log.debug("%s", text)


def note(text: str) -> None:
    """Prints a line for people on stderr unless `-q` was given; the log has it in any case."""
    _log.info("%s", text)
    if not quiet():
        click.echo(fitted(printable(text), width_of(sys.stderr)), err=True)


def note_before(devices: Iterable[str], threads: int | None) -> None:
    """Prints, before models are measured on these devices, what makes them slower; `notes_after` leaves it out."""
    from iosched.profiler.devices.resolve import remarks_before

    found = dict.fromkeys(line for device in devices for line in remarks_before(device, threads))
    for line in found:
        note(line)
    click.get_current_context().meta[_NOTED] = frozenset(found)


def notes_after(notes: Iterable[str]) -> list[str]:
    """The notes of a result that were not printed before."""
    noted = click.get_current_context().meta.get(_NOTED, ())
    return [line for line in notes if line not in noted]
