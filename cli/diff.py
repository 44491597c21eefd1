"""`iosched diff`: two schedules operator by operator, or two results of `bench` with a gate."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import click

from iosched.cli.options import json_option, verbosity_options
from iosched.cli.output import emit_result, note, verbose
from iosched.cli.source import STDIN, read_schedule_or_result
from iosched.models.errors import IoschedError, UsageError

if TYPE_CHECKING:
    from iosched.jobs.difference.bench_file import BenchFile
    from iosched.models.model import Model
    from iosched.scheduler.document import ScheduleDocument

    Scheduled = tuple[ScheduleDocument, Model | None]


def parse_percent(ctx: click.Context, param: click.Parameter, text: str | None) -> float | None:
    """The part that a text such as `3%` means, 0.03.

    Raises:
        click.BadParameter: the text is not of that form.
    """
    del ctx, param
    if text is None:
        return None
    found = re.fullmatch(r"(\d{1,6}(?:\.\d{1,6})?) ?%", text.strip(), re.ASCII)
    if found is None:
        raise click.BadParameter(f"{text!r} is not a number of percent, such as 3% or 0.5%.")
    return float(found[1]) / 100


@click.command(name="diff", short_help="Two schedules operator by operator, or two bench results with a gate.")
@click.argument("before", metavar="A")
@click.argument("after", metavar="B")
@click.option(
    "--max-regression",
    callback=parse_percent,
    metavar="P%",
    help="For results of 'bench': exit with 4 if a row is slower in B than in A by more than P %, and the whole "
    "interval of its ratio lies above that.",
)
@click.option(
    "--row",
    "rows",
    multiple=True,
    metavar="NAME",
    help="The row that --max-regression is about. Repeat for several.  [default: iosched]",
)
@click.option(
    "--relative-to",
    metavar="NAME",
    help="For results of 'bench': divide each row by this one, round by round, before it is compared. Then it makes no "
    "difference if the machine was slower all the while.",
)
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, metavar="N", help="Seed of the bootstrap."
)
@click.option(
    "--batch-size",
    "batch_sizes",
    type=click.IntRange(min=1),
    multiple=True,
    metavar="N",
    help="In files with schedules for several batch sizes, compare the one for N. Given twice, the first N is for A "
    "and the second for B. Default: the smallest.",
)
@click.option("--anyway", is_flag=True, help="Compare even if models, devices or batch sizes differ.")
@json_option
@verbosity_options
def command(
    before: str,
    after: str,
    max_regression: float | None,
    rows: tuple[str, ...],
    relative_to: str | None,
    seed: int,
    batch_sizes: tuple[int, ...],
    anyway: bool,
    as_json: bool,
) -> None:
    """Compare A with B: two schedules, or two results of 'bench --json'. '-' is stdin.

    Of two schedules (schedule files or optimized models), it says which operators run in another stage or group, are
    merged differently, or are in one schedule only. It puts stages with their latencies side by side; -v also shows
    stages that are alike. Exit 0 if all operators run alike, 4 if not. Latencies alone make no difference.

    Of two results, it compares medians: B over A, with a bootstrap interval of 95 %. Exit 0, or 4 if --max-regression
    is given and fails.

    \b
    Examples:
      iosched diff old.schedule.json model.iosched.onnx
      iosched diff model.iosched.onnx model.iosched.onnx --batch-size 1 --batch-size 16 --anyway
      iosched diff baseline.json now.json --relative-to onnxruntime --max-regression 3%
    """
    if before == STDIN == after:
        raise UsageError("A and B cannot both be '-': save one of them to a file")
    sizes = _sizes(batch_sizes)
    first, second = read_schedule_or_result(before, sizes[0]), read_schedule_or_result(after, sizes[1])
    if isinstance(first, tuple) and isinstance(second, tuple):
        if max_regression is not None or relative_to is not None or rows:
            raise UsageError("--max-regression, --row and --relative-to are for results of 'iosched bench --json'")
        failure = _schedules(first, second, anyway, as_json)
    elif not isinstance(first, tuple) and not isinstance(second, tuple):
        if batch_sizes:
            raise UsageError("--batch-size is for schedules; results of 'iosched bench --json' say theirs")
        if rows and max_regression is None:
            raise UsageError("--row says what --max-regression is about: give that, too")
        failure = _results(first, second, (max_regression, rows), (relative_to, seed, anyway), as_json)
    else:
        schedule, result = (before, after) if isinstance(first, tuple) else (after, before)
        raise UsageError(f"{schedule} is a schedule and {result} a result of 'bench': give two of one kind")
    if failure is not None:
        raise failure


def _sizes(batch_sizes: tuple[int, ...]) -> tuple[int | None, int | None]:
    if len(batch_sizes) > 2:
        raise UsageError("--batch-size is given more than twice: once for both, or once for A and once for B")
    return (batch_sizes[0], batch_sizes[-1]) if batch_sizes else (None, None)


def _schedules(first: Scheduled, second: Scheduled, anyway: bool, as_json: bool) -> IoschedError | None:
    from iosched.cli.diff_schedules import as_object, print_difference
    from iosched.jobs.difference.schedules import compare_schedules

    found = compare_schedules(first, second, anyway=anyway)
    for remark in found.remarks:
        note(remark)
    if as_json:
        emit_result(as_object(found))
    else:
        print_difference(found, whole=verbose())
    return found.failure


def _results(
    first: BenchFile,
    second: BenchFile,
    limit: tuple[float | None, tuple[str, ...]],
    how: tuple[str | None, int, bool],
    as_json: bool,
) -> IoschedError | None:
    from iosched.cli.diff_results import as_object, print_difference
    from iosched.jobs.difference.results import compare_results, gate

    (max_regression, rows), (relative_to, seed, anyway) = limit, how
    found = compare_results(first, second, seed=seed, relative_to=relative_to, anyway=anyway)
    judged = None if max_regression is None else gate(found, max_regression, rows)
    for remark in found.remarks:
        note(f"The two are {remark}.")
    if as_json:
        emit_result(as_object(found, judged, seed=seed, relative_to=relative_to), {"bootstrap": seed})
    else:
        print_difference(found, relative_to)
    return None if judged is None else judged.failure
