"""`iosched diff`: compare two schedules, or two results of `bench` with a regression gate."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from iosched.cli.common.json_objects import json_object
from iosched.cli.common.options import json_option, verbosity_options
from iosched.cli.common.output import emit_result, note, say, verbose
from iosched.cli.common.source import STDIN, read_schedule_or_result
from iosched.cli.common.tables import print_columns
from iosched.cli.common.text import count_text, latency_text
from iosched.cli.help import Command
from iosched.models.errors import IoschedError, UsageError
from iosched.profiler.measuring.interleave import speedup_text
from iosched.profiler.measuring.statistics import CONFIDENCE
from iosched.scheduler.schedule import Stage, Strategy, total_us
from iosched.scheduler.strategies import STAGE_RULES

if TYPE_CHECKING:
    from iosched.jobs.difference.bench_file import BenchFile
    from iosched.jobs.difference.results import Gate, ResultsDifference, RowDifference
    from iosched.jobs.difference.schedule_difference import SchedulesDifference
    from iosched.models.model import Model
    from iosched.scheduler.difference import OperatorChange, OperatorPosition, StagePair
    from iosched.scheduler.document import ScheduleDocument

    Scheduled = tuple[ScheduleDocument, Model | None]

_ROW = "batch_size name a=before b=after ratio low=interval.low high=interval.high samples verdict"
_PAIR = "a=before b=after a_us b_us alike"
_DOCUMENT = "model device cost shipped stages latency_us predicted_us=schedule.predicted_us"
_SCHEDULES = "kind equal=found.equal count=found.count a b operators stages remarks"
_MOST_NAMES = 3
_WORDS = {
    "stage": "in another stage",
    "group": "in another group",
    "strategy": "run differently",
    "merged": "merged differently",
    "order": "in another order",
    "lanes": "on other lanes",
}
"""By the values of `Change`, which `--help` need not import."""


def parse_percent(ctx: click.Context, param: click.Parameter, text: str | None) -> float | None:
    """Click callback that turns `3%` into 0.03."""
    del ctx, param
    if text is None:
        return None
    found = re.fullmatch(r"(\d{1,6}(?:\.\d{1,6})?) ?%", text.strip(), re.ASCII)
    if found is None:
        raise click.BadParameter(f"{text!r} is not a number of percent, such as 3% or 0.5%.")
    return float(found[1]) / 100


@click.command(
    name="diff",
    cls=Command,
    short_help="Compare two schedules, or two bench results with a regression gate.",
    basic="max-regression relative-to json",
)
@click.argument("before", metavar="A")
@click.argument("after", metavar="B")
@click.option(
    "--max-regression",
    callback=parse_percent,
    metavar="P%",
    help="Exit 4 if a row is slower in B by more than P %.\n\nThe whole interval of its ratio must be above P %.",
)
@click.option(
    "--row",
    "rows",
    multiple=True,
    metavar="NAME",
    help="Row that --max-regression checks. Repeat for several.  [default: iosched]",
)
@click.option(
    "--relative-to",
    metavar="NAME",
    help="Divide all rows by this one, round by round.\n\nThis removes differences in the machine's speed.",
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
    help="Schedule to compare in files for several batch sizes. Default: the smallest.\n\nIf repeated, the first N "
    "is for A and the second for B.",
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

    For schedules (schedule files or optimized models), it lists operators that run in another stage or group, are
    merged differently, or are in one schedule only. A table shows both schedules' stages with latencies; -v adds equal
    stages. Exit 0 if all operators run alike, else 4. Latencies alone are no difference.

    For results, it compares medians: B over A, with a 95 % bootstrap interval. Exit 0, or 4 if --max-regression fails.

    \b
    Examples:
      iosched diff old.schedule.json model.iosched.onnx
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
            raise UsageError("--batch-size is for schedules; results of 'iosched bench --json' contain theirs")
        if rows and max_regression is None:
            raise UsageError("--row names what --max-regression checks: add --max-regression")
        failure = _results(first, second, (max_regression, rows), (relative_to, seed, anyway), as_json)
    else:
        schedule, result = (before, after) if isinstance(first, tuple) else (after, before)
        raise UsageError(f"{schedule} is a schedule and {result} a result of 'bench': give two of the same kind")
    if failure is not None:
        raise failure


def _sizes(batch_sizes: tuple[int, ...]) -> tuple[int | None, int | None]:
    if len(batch_sizes) > 2:
        raise UsageError("--batch-size is given more than twice: give it once for both, or once for A and once for B")
    return (batch_sizes[0], batch_sizes[-1]) if batch_sizes else (None, None)


def _schedules(first: Scheduled, second: Scheduled, anyway: bool, as_json: bool) -> IoschedError | None:
    from iosched.jobs.difference.schedule_difference import compare_schedules

    found = compare_schedules(first, second, anyway=anyway)
    for remark in found.remarks:
        note(remark)
    if as_json:
        emit_result(schedules_object(found))
    else:
        _print_schedules(found, whole=verbose())
    return found.failure


def _results(
    first: BenchFile,
    second: BenchFile,
    limit: tuple[float | None, tuple[str, ...]],
    how: tuple[str | None, int, bool],
    as_json: bool,
) -> IoschedError | None:
    from iosched.jobs.difference.results import compare_results, gate

    (max_regression, rows), (relative_to, seed, anyway) = limit, how
    found = compare_results(first, second, seed=seed, relative_to=relative_to, anyway=anyway)
    judged = None if max_regression is None else gate(found, max_regression, rows)
    for remark in found.remarks:
        note(f"The two are {remark}.")
    if as_json:
        emit_result(results_object(found, judged, seed=seed, relative_to=relative_to), {"bootstrap": seed})
    else:
        _print_results(found, relative_to)
    return None if judged is None else judged.failure


def results_object(
    found: ResultsDifference, judged: Gate | None, *, seed: int, relative_to: str | None
) -> dict[str, object]:
    """JSON object of `diff --json` for two results."""
    how = {"kind": "bench", "level": CONFIDENCE, "seed": seed, "relative_to": relative_to}
    only = {"only_in_a": _named(found.only_before), "only_in_b": _named(found.only_after)}
    rows = [json_object(row, _ROW) for row in found.rows]
    return {**how, "rows": rows, **only, "gate": judged and _gate(judged), "remarks": found.remarks}


def _named(rows: Sequence[tuple[int | None, str]]) -> list[dict[str, object]]:
    return [{"batch_size": batch_size, "name": name} for batch_size, name in rows]


def _gate(judged: Gate) -> dict[str, object]:
    rows, failed = ([json_object(row, "batch_size name") for row in each] for each in (judged.rows, judged.failed))
    return json_object(judged, "max_regression passed rows failed", passed=not failed, rows=rows, failed=failed)


def _print_results(found: ResultsDifference, relative_to: str | None) -> None:
    """Print a table for each batch size; rows without a counterpart go to stderr."""
    for where, only in (("A", found.only_before), ("B", found.only_after)):
        for name in dict.fromkeys(name for _, name in only):
            note(f"{name} is in {where} only.")
    for batch_size in dict.fromkeys(row.batch_size for row in found.rows):
        rows = [row for row in found.rows if row.batch_size == batch_size]
        title = f"batch {batch_size}" + ("" if relative_to is None else f", relative to {relative_to}")
        cells = [[row.name, *_medians(row, relative_to), _ratio(row), row.verdict or ""] for row in rows]
        print_columns(["", "A", "B", "B over A (95 % interval)", ""], cells, title=title)


def _medians(row: RowDifference, relative_to: str | None) -> list[str]:
    if relative_to is not None:
        return [f"{each:.3f}x" for each in (row.before, row.after)]
    return [latency_text(each) for each in (row.before, row.after)]


def _ratio(row: RowDifference) -> str:
    found = row.interval
    return f"{row.ratio:.3f}x (too few samples for an interval)" if found is None else speedup_text(found)


def schedules_object(found: SchedulesDifference) -> dict[str, object]:
    """JSON object of `diff --json` for two schedules."""
    before, after = list(found.before.schedule.stages), list(found.after.schedule.stages)
    stages = [
        json_object(pair, _PAIR, a_us=_latency(before, pair.before), b_us=_latency(after, pair.after))
        for pair in found.found.stages
    ]
    operators = [json_object(each, "operator changes a=before b=after") for each in found.found.operators]
    both = {"kind": "schedule", "a": _document(found.before), "b": _document(found.after)}
    return json_object(found, _SCHEDULES, **both, operators=operators, stages=stages)


def _document(document: ScheduleDocument) -> dict[str, object]:
    stages = list(document.schedule.stages)
    return json_object(document, _DOCUMENT, stages=len(stages), latency_us=total_us(stages))


def _latency(stages: list[Stage], number: int | None) -> float | None:
    return None if number is None else stages[number].latency_us


def _print_schedules(found: SchedulesDifference, *, whole: bool) -> None:
    """Print both schedules' stages, equal ones only with `whole`, and a line for each operator that differs."""
    before, after = list(found.before.schedule.stages), list(found.after.schedule.stages)
    pairs = found.found.stages
    shown = [pair for pair in pairs if whole or not pair.alike]
    rows = [_stage_row(before, after, pair) for pair in shown]
    if alike := [pair for pair in pairs if pair.alike and not whole]:
        same = [before[pair.before] for pair in alike if pair.before is not None]
        also = [after[pair.after] for pair in alike if pair.after is not None]
        rows.append([f"{count_text(len(alike), 'equal stage')}", "", *_totals(same, also)])
    rows.append(["all", "", *_totals(before, after)])
    print_columns(["stages that differ" if not whole else "stages", "A | B", "A", "B"], rows)
    for each in found.found.operators:
        say(f"{each.operator}: {_sentence(each)}")
    if found.found.equal:
        say(f"All {count_text(found.found.count, 'operator')} run alike.")


def _totals(before: list[Stage], after: list[Stage]) -> list[str]:
    return [latency_text(total_us(stages)) for stages in (before, after)]


def _stage_row(before: list[Stage], after: list[Stage], pair: StagePair) -> list[str]:
    stage = after[pair.after] if pair.before is None and pair.after is not None else before[pair.before or 0]
    numbers = " | ".join("-" if each is None else str(each) for each in (pair.before, pair.after))
    sides = (before, pair.before), (after, pair.after)
    cells = ["" if number is None else latency_text(stages[number].latency_us) for stages, number in sides]
    return [_few(stage.operators), numbers, *cells]


def _sentence(each: OperatorChange) -> str:
    if each.before is None or each.after is None:
        place = each.before or each.after
        assert place is not None
        return f"in {'B' if each.before is None else 'A'} only, {_where(each.operator, place)}"
    what = ", ".join(_WORDS[change] for change in each.changes)
    return f"{what}: {_where(each.operator, each.before)} -> {_where(each.operator, each.after)}"


_GROUPS = {Strategy.SESSION: "in a session, group", Strategy.LANES: "lane"}


def _where(operator: str, place: OperatorPosition) -> str:
    others = [name for name in place.together if name != operator]
    if STAGE_RULES[place.strategy].is_one_operator:
        how = f"merged with {_few(others)}" if others else "merged"
    else:
        how = f"{_GROUPS.get(place.strategy, 'group')} {place.group}" + (f" with {_few(others)}" if others else "")
    lanes = "" if place.lanes is None else f", lanes {' '.join(map(str, place.lanes))}"
    return f"stage {place.stage}, {how}{lanes}"


def _few(names: tuple[str, ...] | list[str]) -> str:
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more
