"""`optimize --schedule-from F`: a schedule that is taken from a file instead of being searched."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from iosched.cli.complete import complete_file
from iosched.cli.options import given
from iosched.cli.source import read_schedules
from iosched.models.errors import UsageError

if TYPE_CHECKING:
    from iosched.scheduler.batch_schedules import BatchSchedules
    from iosched.scheduler.document import ScheduleDocument

_SEARCHING = ("strategy", "r", "s", "no_pruning", "exhaustive", "gap", "units", "dry_run")
"""The parameters of `optimize` that say how to search."""

schedule_from_option = click.option(
    "--schedule-from",
    "source",
    shell_complete=complete_file,
    metavar="F",
    help="Use the schedule in F; search nothing.\n\nF is a schedule file or an optimized model with the same "
    "structure, such as the model before retraining. '-' is stdin.",
)


def refuse_searching() -> None:
    """Refuses the options that say how to search, beside `--schedule-from`, with which nothing is searched.

    Raises:
        UsageError: one of them was written on the command line.
    """
    if click.get_current_context().params["source"] is not None and (options := given(*_SEARCHING)):
        raise UsageError(f"--schedule-from searches nothing: leave out {' and '.join(options)}")


def schedules_from(source: str | None, model: str) -> ScheduleDocument | BatchSchedules | None:
    """Reads what `--schedule-from` names, or returns None where the option is not given.

    Args:
        source: the file that `--schedule-from` names, or None.
        model: MODEL as the command line names it, to refuse that both are standard input.

    Raises:
        UsageError: both are standard input.
        InvalidScheduleError: the file cannot be read, or has no schedule.
    """
    return None if source is None else read_schedules(source, model=model)
