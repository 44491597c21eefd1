"""Compares ways to run several models, and decides which one ships."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from iosched.jobs.batching.pace import Pace
from iosched.jobs.batching.result import Row
from iosched.jobs.batching.rivals import Rival, fastest_by_prediction
from iosched.jobs.decision import Ratio, decide
from iosched.models.errors import DeviceError, ExecutionError, IoschedError
from iosched.profiler.devices.device import OpenModelHere
from iosched.profiler.measuring.in_turn import Candidate, close_all
from iosched.profiler.measuring.statistics import Measurement
from iosched.profiler.peers.onnxruntime import QUICK
from iosched.runtime.inputs import Arrays
from iosched.scheduler.batching.policy_names import ROW_NAMES, RowName

WORDS: Mapping[str, str] = {
    "serial": "one model after another",
    "packed": "running models side by side",
    "batched": "making one operator of those of several models",
    "mixed": "batching and running side by side, layer by layer,",
}
"""What the rows are called in sentences."""


@dataclass(frozen=True)
class Compared:
    """The ways that were compared, and which one ships.

    Attributes:
        rivals: for each row its fastest way.
        rows: their latencies, in the order of `ROW_NAMES`.
        shipped: the row that ships.
        reason: a text that says why.
        ratio: compares it, or else the first other row, with the first row; None if there is one row, or too few runs.
    """

    rivals: Mapping[RowName, Rival]
    rows: tuple[Row, ...]
    shipped: RowName
    reason: str
    ratio: Ratio | None


def compare_rivals(
    here: OpenModelHere, rivals: Sequence[Rival], inputs: Arrays, pace: Pace, observer: Callable[[int, int], None]
) -> Compared:
    """Measures rivals in turn: all ways of each row for a moment, and then the fastest of each.

    A way that the device cannot run takes no part, as long as its row has another one.

    Args:
        here: a model that is open on the device.
        rivals: ways to run the same models, at least one.
        inputs: of the composed model.
        pace: how much time there is.
        observer: is called after each round with the rounds done and the rounds in all.

    Raises:
        DeviceError: the device can run none of them.
        ExecutionError: a kernel fails.
    """
    ready: dict[Rival, Candidate] = {}
    try:
        _open(rivals, here, inputs, ready)
        best = _best_of_rows(here, ready)
        candidates: dict[str, Candidate] = {row: ready[rival] for row, rival in best.items()}
        budget = pace.comparison(here.budget, len(candidates))
        return _decided(best, here.in_turn(candidates, budget, observer))
    finally:
        close_all(ready.values())


def _open(rivals: Sequence[Rival], here: OpenModelHere, inputs: Arrays, ready: dict[Rival, Candidate]) -> None:
    refused: list[IoschedError] = []
    for rival in rivals:
        try:
            ready[rival] = rival.ready(here, inputs)
        except (DeviceError, ExecutionError) as error:
            refused.append(error)
    if not ready:
        raise refused[0]


def _best_of_rows(here: OpenModelHere, ready: Mapping[Rival, Candidate]) -> dict[RowName, Rival]:
    rows = {row: [rival for rival in ready if rival.row == row] for row in ROW_NAMES}
    several = [rival for ways in rows.values() if len(ways) > 1 for rival in ways]
    if not several:
        return {row: ways[0] for row, ways in rows.items() if ways}
    found = here.in_turn({str(index): ready[rival] for index, rival in enumerate(several)}, QUICK)
    quickest_us = {rival: found[str(index)].min_us for index, rival in enumerate(several)}
    return {row: min(ways, key=lambda way: quickest_us.get(way, 0.0)) for row, ways in rows.items() if ways}


def _decided(rivals: Mapping[RowName, Rival], measured: Mapping[str, Measurement]) -> Compared:
    rows = tuple(_row(name, rival, measured[name]) for name, rival in rivals.items())
    first, *others = rivals
    if not others:
        return Compared(rivals, rows, first, f"{WORDS[first]} is all that was asked for", None)
    decided = decide(measured, first, others)
    shipped = next(name for name in rivals if name == decided.chosen)
    return Compared(rivals, rows, shipped, decided.reason(WORDS), decided.ratio())


def _row(name: RowName, rival: Rival, measured: Measurement) -> Row:
    rested = measured.rested
    rested_us = None if rested is None else rested.median_us
    return Row(name, measured.median_us, measured.low_us, measured.high_us, rested_us, rival.text)


def predict_rivals(rivals: Sequence[Rival]) -> Compared:
    """Compares rivals by computed latencies, on a device that is not at hand; the first of equally fast rows ships."""
    ways = {row: [rival for rival in rivals if rival.row == row] for row in ROW_NAMES}
    best = {row: fastest_by_prediction(each) for row, each in ways.items() if each}
    rows = tuple(_predicted_row(name, rival) for name, rival in best.items())
    shipped = rows[0]
    for row in rows[1:]:  # sums of the same latencies in another order differ in the last bits
        shipped = row if row.latency_us < shipped.latency_us * (1 - 1e-9) else shipped
    if len(rows) == 1:
        return Compared(best, rows, shipped.name, f"{WORDS[shipped.name]} is all that was asked for", None)
    first = rows[0]
    times = f"{first.latency_us / shipped.latency_us:.2f}x as fast as {WORDS[first.name]}"
    reason = f"by the analytic model {WORDS[shipped.name]} is {times}"
    if shipped is first:
        reason = f"by the analytic model nothing is faster than {WORDS[first.name]}"
    return Compared(best, rows, shipped.name, reason, None)


def _predicted_row(name: RowName, rival: Rival) -> Row:
    latency_us = rival.found.schedule.predicted_us or 0.0
    known = rival.site.opened.uncertainty
    row = Row(name, latency_us, None, None, None, rival.text)
    if known is None:
        return row
    interval = known.latency_us(tuple(rival.found.schedule.stages))
    return replace(row, low_us=interval.low, high_us=interval.high)
