"""`optimize --dry-run`: how large the search is and how long it takes, with nothing measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

from iosched.cli.json_objects import json_object
from iosched.cli.output import emit_json, note
from iosched.cli.tables import print_columns, print_pairs

if TYPE_CHECKING:
    from iosched.jobs.optimizing.estimate import Estimate
    from iosched.jobs.settings import OptimizeSettings
    from iosched.models.model import Model

_OBJECT = """
model device.kind=device_kind device.name=device_name cost pruning measurements seconds known disturbed blocks
"""
_COUNTS = ("operators", "width", "states", "stages", "signatures", "known", "measurements")


def print_estimate(model: Model, settings: OptimizeSettings, *, as_json: bool) -> None:
    """Prints how large the search that `optimize` would make with these settings is, block by block."""
    from iosched.jobs.optimizing.estimate import estimate
    from iosched.profiler.devices.resolve import remarks

    for line in remarks(settings.device):
        note(line)
    found = estimate(model, settings)
    for line in found.notes:
        note(line)
    if as_json:
        emit_json(as_object(model, settings, found))
        return
    rows = [[str(block.index), *(f"{getattr(block, key):,}" for key in _COUNTS)] for block in found.blocks]
    headers = ["block", "n", "d", "states", "stages", "signatures", "known", "to measure at most"]
    print_columns(headers, rows, title=f"{model.name} on {found.device_name}: the search that 'optimize' would make")
    print_pairs("in all", _rows(found), to_stderr=False)


def as_object(model: Model, settings: OptimizeSettings, found: Estimate) -> dict[str, object]:
    """The object that `optimize --dry-run --json` prints."""
    return json_object(found, _OBJECT, model=model.name, pruning=settings.pruning)


def _rows(found: Estimate) -> list[tuple[str, str]]:
    known = found.known
    rows = [
        ("operators", f"{sum(block.operators for block in found.blocks):,} in {len(found.blocks)} blocks"),
        ("signatures", f"{sum(block.signatures for block in found.blocks):,}: stages that differ in what they cost"),
    ]
    if found.cost == "analytic":
        measured = [("already known", f"{known:,} of them were measured on such a GPU elsewhere")] if known else []
        source = "the rest is computed" if known else "computed from the GPU's specification"
        return [*rows, *measured, ("to measure", f"nothing: the cost is analytic, {source}")]
    return [
        *rows,
        ("already known", f"{known:,} in the profile database, by all strategies{_disturbed(found)}"),
        ("to measure", f"{found.measurements:,} at most{_repeats(found)}; bounds often save more"),
        ("time", f"{_time(found.seconds)} at most: {_price(found)}, and comparing whole models"),
    ]


def _disturbed(found: Estimate) -> str:
    return f", {found.disturbed:,} of them disturbed" if found.disturbed else ""


def _repeats(found: Estimate) -> str:
    return f", {found.repeats:,} of them repeats" if found.repeats else ""


def _price(found: Estimate) -> str:
    return f"{found.measurement_s:.2g} s a stage{' as measured here' if found.stage_s else ''}"


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} minutes"
