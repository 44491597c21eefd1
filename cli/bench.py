"""`iosched bench`: compare schedules and other runtimes by interleaved runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from warnings import catch_warnings

import click

from iosched.cli.bench_requests import RequestOptions, bench_requests, request_options
from iosched.cli.common.complete import complete_file, complete_model
from iosched.cli.common.json_objects import json_object
from iosched.cli.common.options import (
    Binding,
    device_options,
    flags_given,
    input_shape_option,
    json_option,
    output_option,
    profile_db_option,
    verbosity_options,
)
from iosched.cli.common.output import (
    INPUTS_SEED,
    Destination,
    check_destinations,
    emit_result,
    note,
    note_before,
    notes_after,
    write,
)
from iosched.cli.common.progress import progress_bar
from iosched.cli.common.source import input_file, read_model, refuse_both_on_stdin, schedule_for
from iosched.cli.common.tables import print_items, print_pairs
from iosched.cli.common.text import latency_text
from iosched.cli.help import Command
from iosched.cli.pictures.charts import draw_bars
from iosched.jobs.row import ROWS
from iosched.models.errors import OtherDeviceWarning, UsageError
from iosched.profiler.baselines.names import UNDER_LOAD
from iosched.profiler.measuring.interleave import speedup_text
from iosched.scheduler.strategies import is_searched

if TYPE_CHECKING:
    from iosched.jobs.bench import BenchResult
    from iosched.jobs.row import Row
    from iosched.models.model import Model
    from iosched.profiler.measuring.statistics import Interval

_OBJECT = "model device batch_size baseline rows samples_us runs_us missing notes"
_ROW = """
name median_us p10_us p90_us min_us samples speedup speedup_low speedup_high
rested_us runs p99_us p99_low_us p99_high_us in_flight images_per_s
speedup_over_baseline speedup_over_baseline_low=over_baseline.low speedup_over_baseline_high=over_baseline.high
"""


@click.command(
    name="bench",
    cls=Command,
    short_help="Compare schedules of MODEL and other runtimes by interleaved runs.",
    basic="with baseline batch-size device background-load plot json",
)
@click.argument("models", metavar="MODEL...", nargs=-1, required=True, shell_complete=complete_model)
@click.option(
    "--with",
    "names",
    type=click.Choice(tuple({**ROWS, **UNDER_LOAD})),
    multiple=True,
    metavar="NAME",
    help=f"Row to measure. Repeat for several.\n\n'sequential' is always measured, and 'iosched' if MODEL has a "
    f"schedule. Rows: {', '.join(ROWS)}. Default: all except dos, onnxruntime-tensorrt and "
    "torch-compile (minutes), and onnxruntime-sessions and openvino-streams (concurrent requests). With --requests: "
    + ", ".join(UNDER_LOAD)
    + ".",
)
@click.option(
    "--baseline",
    type=click.Choice(tuple(ROWS)),
    metavar="NAME",
    help="Also show each row's speedup over this one.",
)
@click.option(
    "--schedule",
    shell_complete=complete_file,
    metavar="F",
    help="Schedule of the row 'iosched'; '-' is stdin. Default: that in MODEL.",
)
@click.option(
    "--batch-size",
    "batch_sizes",
    type=click.IntRange(min=1),
    multiple=True,
    metavar="N",
    help="Batch size. Repeat for several: a table, or a line of JSON, for each.",
)
@input_shape_option
@device_options
@click.option(
    "--rounds",
    type=click.IntRange(min=3),
    default=50,
    show_default=True,
    metavar="N",
    help="Samples of each row.\n\np99 takes 368 runs; a round has up to ten if they are short.",
)
@click.option(
    "--background-load",
    type=click.IntRange(min=0, max=1024),
    default=0,
    show_default=True,
    metavar="N",
    help="Keep N cores busy with other processes meanwhile.",
)
@request_options
@profile_db_option
@output_option("--plot", metavar="F.svg", text="Write a bar chart as SVG; '-' is stdout.")
@json_option
@verbosity_options
def command(
    models: tuple[str, ...],
    names: tuple[str, ...],
    baseline: str | None,
    schedule: str | None,
    batch_sizes: tuple[int, ...],
    input_shapes: dict[str, tuple[int, ...]],
    device: str,
    threads: int | None,
    rounds: int,
    background_load: int,
    requests: RequestOptions,
    profile_db: Path | None,
    plot: Destination | None,
    as_json: bool,
) -> None:
    """Compare schedules of MODEL, plain onnxruntime and other runtimes.

    Rows are interleaved, so that interference affects all of them. In each round, a row runs once after idle (a column
    of its own), and then several times.

    p50 is the median of the rounds. p90, p99, p10 and min are of all single runs. The speedup is the p50 of
    'sequential' divided by that of the row, with a 95 % interval. A difference within it is none.

    \b
    Examples:
      iosched bench squeezenet.iosched.onnx --with onnxruntime --baseline onnxruntime
      iosched bench model.onnx --batch-size 1 --batch-size 8 --json > bench.json
    """
    if requests.are_given:
        binding = Binding(batch_sizes[0] if batch_sizes else None, input_shapes)
        bench_requests(models, names, requests, binding, device, threads, as_json)
        return
    if len(models) > 1 or flags_given("duration_s", "deadlines_s"):
        raise UsageError("several MODELs, --duration and --deadline need --requests, as in --requests 20/s")
    from iosched.jobs.bench import bench

    (model,) = models
    check_destinations([plot], inputs=[input_file(model), input_file(schedule or "-")], as_json=as_json)
    _refuse_twice_on_stdin(model, schedule, batch_sizes)
    if plot is not None and len(batch_sizes) > 1:
        raise UsageError("--plot draws one batch size: give --batch-size once")
    for batch_size in batch_sizes or (None,):
        loaded = read_model(model, Binding(batch_size, input_shapes))
        taken = schedule_for(loaded, model, schedule, device)
        if taken is None and "iosched" in (*names, baseline):
            raise UsageError(f"{model} has no schedule to measure as 'iosched': make one with 'iosched optimize'")
        note_before([device], threads)
        with progress_bar() as observer, catch_warnings(action="ignore", category=OtherDeviceWarning):
            result = bench(
                loaded,
                None if taken is None else taken.document,
                names=names,
                baseline=baseline,
                device=device,
                threads=threads,
                rounds=rounds,
                background_load=background_load,
                profile_db=profile_db,
                observer=observer,
                on_start=partial(_note_start, loaded, rounds),
            )
        _emit(loaded, result, plot, as_json)


def _refuse_twice_on_stdin(model: str, schedule: str | None, batch_sizes: tuple[int, ...]) -> None:
    if "-" in (model, schedule) and len(batch_sizes) > 1:
        raise UsageError("'-' can be read only once: for several batch sizes, save it to a file")
    refuse_both_on_stdin(schedule, model)


def _note_start(model: Model, rounds: int, names: Sequence[str]) -> None:
    from iosched.jobs.bench import MAX_SECONDS

    searched = ", ".join(filter(is_searched, names))
    search = f" The search for {searched} comes first and has no time limit." if searched else ""
    limit = f"{rounds} rounds, fewer if runs take {MAX_SECONDS / 60:.0f} minutes"
    note(f"Measuring {', '.join(names)} at batch size {model.batch_size}: {limit}.{search}")


def _emit(model: Model, result: BenchResult, plot: Destination | None, as_json: bool) -> None:
    for name, reason in result.missing:
        note(f"{name} is skipped: {reason}")
    for line in notes_after(result.notes):
        note(line)
    if as_json:
        emit_result(as_object(model, result), INPUTS_SEED, background_load=result.background_load)
    elif plot is None or plot.path is not None:
        _print(model, result)
    if plot is not None:
        rows = [(row.name, row.latency_us, row.p10_us, row.p90_us) for row in result.rows]
        write(plot, draw_bars(_title(model, result), rows).encode())


def as_object(model: Model, result: BenchResult) -> dict[str, object]:
    """JSON object of `bench --json`."""
    rows = [json_object(row, _ROW) for row in result.rows]
    of_model = {"model": model.name, "batch_size": model.batch_size}
    return json_object(result, _OBJECT, rows=rows, missing=dict(result.missing), **of_model)


def _title(model: Model, result: BenchResult) -> str:
    load = f", background load {result.background_load}" if result.background_load else ""
    return f"{model.name}, batch {model.batch_size}, {result.device}{load}"


def _print(model: Model, result: BenchResult) -> None:
    columns: list[tuple[str, Callable[[Row], str]]] = [
        ("", lambda row: row.name),
        ("p50", lambda row: latency_text(row.latency_us)),
        ("p90", lambda row: latency_text(row.p90_us)),
        ("p99", lambda row: latency_text(row.p99_us)),
        ("p10", lambda row: latency_text(row.p10_us)),
        ("min", lambda row: latency_text(row.min_us)),
    ]
    if result.rows[0].latency.rested_us:
        columns.append(("after idle", lambda row: latency_text(row.rested_us)))
    if any(row.in_flight > 1 for row in result.rows):
        columns.append(("images/s", lambda row: f"{row.images_per_s or 0:,.1f}"))
    columns.append(("speedup (95 % interval)", lambda row: _ratio(row.over_sequential)))
    if result.baseline is not None:
        columns.append((f"over {result.baseline} (95 % interval)", lambda row: _ratio(row.over_baseline)))
    print_items(result.rows, columns, title=_title(model, result))
    print_pairs("rows", [(row.name, ROWS[row.name]) for row in result.rows], to_stderr=False)


def _ratio(found: Interval | None) -> str:
    return "too few rounds" if found is None else speedup_text(found)
