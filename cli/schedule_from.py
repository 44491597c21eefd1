"""`optimize --schedule-from F`: a schedule that is taken, in place of one that is searched."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from iosched.models.errors import UsageError

if TYPE_CHECKING:
    from iosched.scheduler.document import ScheduleDocument

# What is asked of a search, by the name of the parameter.
_SEARCHING = {
    "strategy": "--strategy",
    "r": "-r",
    "s": "-s",
    "no_pruning": "--no-pruning",
    "exhaustive": "--exhaustive",
    "dry_run": "--dry-run",
}

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
    ctx = click.get_current_context()
    if ctx.params["source"] is None:
        return
    given = [flag for name, flag in _SEARCHING.items() if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    if given:
        raise UsageError(f"--schedule-from searches nothing: leave out {' and '.join(given)}")


def schedule_from(source: str | None, model: str) -> ScheduleDocument | None:
    """The schedule of `--schedule-from`, read before MODEL is.

    Raises:
        UsageError: standard input is wanted twice.
        InvalidScheduleError: unreadable, or no schedule.
    """
    from iosched.cli.source import read_schedule

    return None if source is None else read_schedule(source, model=model)
