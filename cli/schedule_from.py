"""`optimize --schedule-from F`: a schedule that is taken, in place of one that is searched."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from iosched.cli.options import given
from iosched.models.errors import UsageError

if TYPE_CHECKING:
    from iosched.scheduler.document import ScheduleDocument

_SEARCHING = ("strategy", "r", "s", "no_pruning", "exhaustive", "dry_run")
"""Parameters that say how to search."""

schedule_from_option = click.option(
    "--schedule-from",
    "source",
    metavar="F",
    help="Search nothing: take the schedule of F, a schedule file or an optimized model of the same structure, as one "
    "has after retraining; '-' is stdin.",
)


def refuse_searching() -> None:
    """Refuses, beside `--schedule-from`, what asks for a search.

    Raises:
        UsageError: such an option was given.
    """
    if click.get_current_context().params["source"] is not None and (options := given(*_SEARCHING)):
        raise UsageError(f"--schedule-from searches nothing: leave out {' and '.join(options)}")


def schedule_from(source: str | None, model: str) -> ScheduleDocument | None:
    """The schedule of `--schedule-from`, read before MODEL is.

    Raises:
        UsageError: standard input is wanted twice.
        InvalidScheduleError: unreadable, or no schedule.
    """
    from iosched.cli.source import read_schedule

    return None if source is None else read_schedule(source, model=model)
