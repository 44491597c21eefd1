"""What `iosched rank` says of its result: the JSON object, and the table for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from iosched.cli.objects import json_object
from iosched.cli.output import note
from iosched.cli.tables import print_columns
from iosched.cli.words import count_text, latency_text, share_text

if TYPE_CHECKING:
    from iosched.jobs.rank import RankResult, RankRow, RankSettings
    from iosched.jobs.ranking.cost import ModelCost

_ROW = "model device flops params error"
_COST = (
    "cost latency_us low_us high_us level sequential_us shipped sum_us share_of_peak hit_rate measured_share"
    " search_seconds comparison_seconds notes"
)
_HEADERS = (
    *("model", "device", "latency", "lies in", "one after another", "parameters", "FLOPs", "share of peak"),
    *("from", "in database"),
)


def as_object(result: RankResult, settings: RankSettings) -> dict[str, object]:
    """The object that `rank --json` prints."""
    rows = [{**json_object(row, _ROW), **json_object(row.cost, _COST)} for row in result.rows]
    keys = "rows measure hit_rate interrupted=was_interrupted seconds notes"
    return json_object(result, keys, rows=rows, measure=settings.measure)


def print_table(result: RankResult) -> None:
    """Prints a row for each model on each device, and below it what users should know of the latencies."""
    print_columns(_HEADERS, [_cells(row) for row in result.rows], title=_title(result))
    for row in result.rows:
        if row.error is not None and not row.is_unreached:
            note(f"{row.model} on {row.device}: {row.error}")
    said = [
        line for row in result.rows if row.cost is not None and row.cost.cost == "estimated" for line in row.cost.notes
    ]
    for line in dict.fromkeys(said):
        note(line)


def _title(result: RankResult) -> str:
    rate = "" if result.hit_rate is None else f", {share_text(result.hit_rate)} of the stages known before"
    return f"{count_text(len({row.model for row in result.rows}), 'model')}{rate}"


def _cells(row: RankRow) -> list[str]:
    cost = row.cost
    size = [_scaled(row.params), _scaled(row.flops)]
    if cost is None:
        return [row.model, row.device, "", "", "", *size, "", "interrupted" if row.is_unreached else "error", ""]
    return [
        row.model,
        row.device,
        latency_text(cost.latency_us),
        _interval(cost),
        latency_text(cost.sequential_us),
        *size,
        "" if cost.share_of_peak is None else f"{cost.share_of_peak:.1%}",
        _source(cost),
        "" if cost.hit_rate is None else share_text(cost.hit_rate),
    ]


def _interval(cost: ModelCost) -> str:
    if cost.low_us is None or cost.high_us is None or cost.level is None:
        return "not known"
    return f"{latency_text(cost.low_us)} to {latency_text(cost.high_us)} ({cost.level:.0%})"


def _source(cost: ModelCost) -> str:
    """What the latency was computed from."""
    if cost.measured_share:
        return f"{cost.cost}, {share_text(cost.measured_share)} measured"
    return f"{cost.cost}, {cost.shipped}" if cost.cost == "measured" and cost.shipped else cost.cost


def _scaled(count: int | None) -> str:
    """A count with a letter for its thousands: `1.2M`."""
    if count is None:
        return ""
    for letter, unit in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if count >= unit:
            return f"{count / unit:.2f} {letter}"
    return str(count)
