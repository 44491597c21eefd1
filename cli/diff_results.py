"""What `iosched diff` prints of two results of `bench`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from iosched.cli.objects import json_object
from iosched.cli.output import note
from iosched.cli.tables import print_columns
from iosched.cli.words import latency_text
from iosched.profiler.measuring.statistics import CONFIDENCE

if TYPE_CHECKING:
    from iosched.jobs.difference.results import Gate, ResultsDifference, RowDifference

_ROW = "batch_size name a=before b=after ratio low high samples verdict"


def as_object(
    found: ResultsDifference, judged: Gate | None, *, seed: int, relative_to: str | None
) -> dict[str, object]:
    """The object that `diff --json` prints of two results."""
    return {
        "kind": "bench",
        "level": CONFIDENCE,
        "seed": seed,
        "relative_to": relative_to,
        "rows": [json_object(row, _ROW) for row in found.rows],
        "only_in_a": _named(found.only_before),
        "only_in_b": _named(found.only_after),
        "gate": None if judged is None else _gate(judged),
        "remarks": found.remarks,
    }


def _named(rows: Sequence[tuple[int | None, str]]) -> list[dict[str, object]]:
    return [{"batch_size": batch_size, "name": name} for batch_size, name in rows]


def _gate(judged: Gate) -> dict[str, object]:
    rows, failed = ([json_object(row, "batch_size name") for row in each] for each in (judged.rows, judged.failed))
    return json_object(judged, "max_regression passed rows failed", passed=not failed, rows=rows, failed=failed)


def print_difference(found: ResultsDifference, relative_to: str | None) -> None:
    """Prints a table for each batch size, and on stderr which rows have nothing to be compared with."""
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
    if row.low is None:
        return f"{row.ratio:.3f}x (too few samples for an interval)"
    return f"{row.ratio:.3f}x ({row.low:.3f} to {row.high:.3f})"
