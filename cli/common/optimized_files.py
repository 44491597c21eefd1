"""Output files of `optimize`: the model with its schedules, and the schedule file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

import click

from iosched.cli.common.output import Destination, note, notes_after, quiet, write
from iosched.cli.common.tables import print_pairs

if TYPE_CHECKING:
    import numpy as np
    import onnx


SCHEDULE_SUFFIX = ".schedule.json"


@dataclass(frozen=True)
class OptimizedFiles:
    """Destinations of the model and of the schedule; the latter is None if only the model carries it."""

    model: Destination
    schedule: Destination | None

    @property
    def outputs(self) -> tuple[Destination, ...]:
        """All destinations."""
        return (self.model,) if self.schedule is None else (self.model, self.schedule)

    @property
    def on_stdout(self) -> bool:
        """Whether a destination is stdout."""
        return any(output.path is None for output in self.outputs)

    def as_object(self) -> dict[str, object]:
        """Their keys in JSON results."""
        return {"output": str(self.model), "schedule": None if self.schedule is None else str(self.schedule)}

    def write(self, proto: onnx.ModelProto, weights: Mapping[str, np.ndarray], schedule: str) -> None:
        """Write the model, with large weights from `weights`, and the schedule.

        Raises:
            UsageError: the model is too large for stdout.
            OSError, ExecutionError: a file cannot be written.
        """
        from iosched.models.export import write_model

        data = write_model(proto, weights, self.model.path)
        if data is not None:
            write(self.model, data)
        if self.schedule is not None:
            write(self.schedule, schedule.encode())

    def report(
        self,
        tables: Iterable[tuple[str, list[tuple[str, str]]]],
        notes: Iterable[str],
        *,
        as_json: bool,
        options: str = "",
    ) -> None:
        """Print tables, notes, the files written and the next command.

        Args:
            tables: titles, and rows of names and values.
            as_json: stdout carries JSON, so all goes to stderr.
            options: for the next command.
        """
        if quiet():
            return
        to_stderr = as_json or self.on_stdout
        for title, rows in tables:
            print_pairs(title, rows, to_stderr=to_stderr)
        for line in notes_after(notes):
            note(line)
        print_lines([*wrote(self.outputs), *self.next_lines(options)], to_stderr=to_stderr)

    def next_lines(self, options: str = "") -> list[str]:
        """The next command, if the model is in a file."""
        return [] if self.model.path is None else [f"Next:  iosched run {quote(str(self.model))} {options}--check"]


def wrote(outputs: Iterable[Destination]) -> list[str]:
    """Line that names the files written, if any."""
    files = [str(output) for output in outputs if output.path]
    return [f"Wrote {' and '.join(files)}."] if files else []


def print_lines(lines: Iterable[str], *, to_stderr: bool) -> None:
    """Print lines on stderr or stdout."""
    for line in lines:
        note(line) if to_stderr else click.echo(line)


def schedule_of(output: Destination | None) -> Destination | None:
    """Default destination of the schedule for the model file X.onnx: X.schedule.json.

    None if the output is not a regular file or has no stem.
    """
    if output is None or output.path is None or (output.path.exists() and not output.path.is_file()):
        return None
    name = output.path.name.removesuffix(".onnx").removesuffix(".iosched")
    return Destination("--schedule", Path(f"{name}{SCHEDULE_SUFFIX}")) if name else None


def files_of(name: str, output: Destination | None, schedule: Destination | None) -> OptimizedFiles:
    """Destinations of model and schedule; default names start with the stem of `output`, else with `name`."""
    schedule = schedule or schedule_of(output)
    if output is None:
        output = Destination("-o", Path(f"{name}.iosched.onnx"))
    if schedule is None and output.path is not None:
        schedule = Destination("--schedule", Path(f"{name}{SCHEDULE_SUFFIX}"))
    return OptimizedFiles(output, schedule)
