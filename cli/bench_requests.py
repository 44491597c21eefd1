"""`iosched bench --requests`: compare ways to serve several models while requests arrive."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from iosched.cli.common.complete import complete_file
from iosched.cli.common.json_objects import json_object
from iosched.cli.common.named_models import NamedModel, files_of, parse_numbered, read_models
from iosched.cli.common.options import Binding, F, flags_given, gathered
from iosched.cli.common.output import INPUTS_SEED, check_destinations, emit_result, note, note_before
from iosched.cli.common.progress import progress_bar
from iosched.cli.common.quantities import ByName, by_name, for_models, parse_duration, parse_rate, parse_seconds
from iosched.cli.common.tables import print_items, print_pairs
from iosched.cli.common.text import count_text, latency_text
from iosched.models.errors import UsageError
from iosched.profiler.baselines.names import UNDER_LOAD

if TYPE_CHECKING:
    from iosched.jobs.load_test.latencies import LoadRow
    from iosched.jobs.load_test.load_test import LoadResult
    from iosched.profiler.measuring.statistics import Interval

_OBJECT = "device threads seconds rows lag_us latencies_us missing notes"
_ENDS = (("", "value"), ("_low", "low"), ("_high", "high"))
_QUANTILES = " ".join(f"{name}{end}_us=quantiles.{name}.{key}" for name in ("p50", "p90", "p99") for end, key in _ENDS)
_ROW = f"name model rate_per_s requests {_QUANTILES} deadline_us goodput_per_s unanswered"
_OTHERS = "baseline schedule rounds background_load profile_db plot"
"""Options of `bench` without requests."""


@dataclass(frozen=True)
class RequestOptions:
    """The options of a load test; `rates` or `arrivals` is set if there is one."""

    rates: ByName
    arrivals: Path | None
    duration_s: float | None
    deadlines_s: ByName

    @property
    def are_given(self) -> bool:
        """Whether requests are wanted."""
        return bool(self.rates) or self.arrivals is not None


def request_options(function: F) -> F:
    """`--requests`, `--arrivals`, `--duration` and `--deadline` as `requests: RequestOptions`."""
    function = gathered("requests", RequestOptions)(function)
    function = click.option(
        "--deadline",
        "deadlines_s",
        callback=by_name(parse_duration),
        metavar="50ms",
        help="Latency that is in time, or NAME=50ms,…. Default: five times that of the model alone.",
    )(function)
    function = click.option(
        "--duration",
        "duration_s",
        callback=lambda ctx, param, text: None if text is None else parse_seconds(text),
        metavar="SECONDS",
        help="Time of the requests to each row. Default: all end within a minute.",
    )(function)
    function = click.option(
        "--arrivals",
        type=click.Path(path_type=Path, exists=True, dir_okay=False),
        shell_complete=complete_file,
        metavar="F",
        help="File of requests instead, with a line 'SECONDS NAME' for each.",
    )(function)
    return click.option(
        "--requests",
        "rates",
        callback=by_name(parse_rate),
        metavar="20/s",
        help="Rate of random requests to each MODEL, or NAME=20/s,…: compare ways to serve them.\n\nOf two equal "
        "stems, the second is NAME-2.",
    )(function)


def bench_requests(
    models: Sequence[str],
    names: tuple[str, ...],
    requests: RequestOptions,
    binding: Binding,
    device: str,
    threads: int | None,
    as_json: bool,
) -> None:
    """Run `bench` with requests, and print its result."""
    from iosched.jobs.load_test.arrivals import parse_arrivals
    from iosched.jobs.load_test.load_test import LoadSettings, load_test
    from iosched.jobs.loading.plan import path_in

    if others := flags_given(*_OTHERS.split()):
        raise UsageError(f"--requests and --arrivals do not use {others[0]}: leave it out")
    if requests.rates and requests.arrivals is not None:
        raise UsageError("--requests and --arrivals contradict each other: leave one out")
    if device not in ("auto", "cpu"):
        raise UsageError(f"--requests measures CPUs only: leave --device {device} out")
    if unknown := [name for name in names if name not in UNDER_LOAD]:
        raise UsageError(f"--with {unknown[0]} does not serve several models: choose from {', '.join(UNDER_LOAD)}")
    named = [NamedModel(each.name, str(path_in(each.source))) for each in parse_numbered(models)]
    check_destinations([], inputs=files_of(named), as_json=as_json)
    own = [each.name for each in named]
    path = requests.arrivals
    settings = LoadSettings(
        rates=for_models(requests.rates, own, "--requests") if path is None else {},
        arrivals=() if path is None else parse_arrivals(path.read_text(errors="replace"), own, str(path)),
        duration_s=requests.duration_s,
        deadlines_s=for_models(requests.deadlines_s, own, "--deadline") if requests.deadlines_s else {},
        names=names,
        threads=threads,
    )
    loaded = read_models(named, binding, skips_broken=False)
    note_before(["cpu"], threads)
    with progress_bar() as observer:
        result = load_test(loaded, settings, observer)
    _emit(result, as_json)


def _emit(result: LoadResult, as_json: bool) -> None:
    for line in (*(f"{name} is skipped: {reason}" for name, reason in result.missing.items()), *result.notes):
        note(line)
    if as_json:
        emit_result(as_object(result), {**INPUTS_SEED, "arrivals": result.seed})
        return
    loads = ", ".join(f"{row.model} {row.rate_per_s:g}/s" for row in result.first)
    counts = ", ".join(f"{row.requests:,} of {row.model}" for row in result.first)
    cores = count_text(result.threads, "thread")
    title = f"{loads} on {cores} of {result.device}: {counts} in {result.seconds:.1f} s"
    print_items(result.rows, LOAD_COLUMNS, title=title)
    print_pairs("rows", [(name, UNDER_LOAD[name]) for name in result.names], to_stderr=False)


def as_object(result: LoadResult) -> dict[str, object]:
    """JSON object of `bench --requests --json`."""
    latencies_us = {
        name: {row.model: row.latencies_us for row in result.rows if row.name == name} for name in result.names
    }
    rows = [load_row_object(row) for row in result.rows]
    return json_object(result, _OBJECT, rows=rows, latencies_us=latencies_us)


def load_row_object(row: LoadRow) -> dict[str, object]:
    """JSON object of a row."""
    return json_object(row, _ROW)


def _quantile(found: Interval | None) -> str:
    if found is None:
        return "unknown"
    ends = (found.value, found.low, found.high)
    value, low, high = (latency_text(each, unknown="no answer", digits=1) for each in ends)
    return f"{value} ({low} to {high})"


LOAD_COLUMNS: list[tuple[str, Callable[[LoadRow], str]]] = [
    ("model", lambda row: row.model),
    ("", lambda row: row.name),
    ("p50 (95 % interval)", lambda row: _quantile(row.quantiles["p50"])),
    ("p90 (95 % interval)", lambda row: _quantile(row.quantiles["p90"])),
    ("p99 (95 % interval)", lambda row: _quantile(row.quantiles["p99"])),
    ("in time", lambda row: f"{row.goodput_per_s:,.1f}/s"),
    ("unanswered", lambda row: f"{row.unanswered:,}"),
]
