"""Compares ways to run several models, and decides which one ships."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from iosched.jobs.batching.pace import OPENED, Pace
from iosched.jobs.batching.result import Row
from iosched.jobs.batching.rivals import Rival, fastest_by_prediction
from iosched.jobs.decision import Ratio, decide
from iosched.models.errors import DeviceError, ExecutionError, IoschedError, MismatchError
from iosched.profiler.devices.device import OpenModelHere
from iosched.profiler.measuring.in_turn import Candidate, close_all
from iosched.profiler.measuring.statistics import Measurement
from iosched.runtime.inputs import Arrays
from iosched.scheduler.batching.policy_names import ROW_NAMES, RowName
from iosched.scheduler.document import OPENVINO

WORDS: Mapping[str, str] = {
    "serial": "one model after another",
    "packed": "running models side by side",
    "batched": "computing once what is equal, and as one operator what is alike,",
    "mixed": "one schedule for all of them",
}
"""What the rows are called in sentences."""

_NO_TIME = "For lack of time OpenVINO was not compared in all ways: that takes a larger --budget."

UNBATCHED: tuple[RowName, ...] = ("serial", "packed")
"""What people do who do not batch."""


@dataclass(frozen=True)
class Compared:
    """The ways that were compared, and which one ships.

    Attributes:
        rivals: for each row its fastest way.
        rows: their latencies, in the order of `ROW_NAMES`.
        shipped: the row that ships.
        reason: a text that says why.
        ratio: compares it, or else the first other row, with the faster of serial and packed; None if there is one row,
            or too few runs.
        notes: sentences that a user should read about what was not compared.
    """

    rivals: Mapping[RowName, Rival]
    rows: tuple[Row, ...]
    shipped: RowName
    reason: str
    ratio: Ratio | None
    notes: tuple[str, ...] = ()


def compare_rivals(
    here: OpenModelHere, rivals: Sequence[Rival], inputs: Arrays, pace: Pace, observer: Callable[[int, int], None]
) -> Compared:
    """Measures rivals in turn: all ways of each row for a moment, and then the fastest of each.

    A way that the device cannot run takes no part, as long as its row has another one. Nor does OpenVINO where it
    computes something else than onnxruntime, or where there is no time to open it, which it does slowly.

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
        notes = _open(rivals, inputs, pace, ready)
        best = _best_of_rows(here, ready, pace)
        candidates: dict[str, Candidate] = {row: ready[rival] for row, rival in best.items()}
        budget = pace.comparison(here.budget, len(candidates))
        return replace(_decided(best, here.in_turn(candidates, budget, observer)), notes=notes)
    finally:
        close_all(ready.values())


def _open(rivals: Sequence[Rival], inputs: Arrays, pace: Pace, ready: dict[Rival, Candidate]) -> tuple[str, ...]:
    """Makes rivals ready, OpenVINO last; returns sentences about what is left out."""
    refused: list[IoschedError] = []
    notes: dict[str, None] = {}
    is_late = pace.is_over(OPENED)
    for rival in sorted(rivals, key=_opens_slowly):
        if _opens_slowly(rival) and is_late():
            notes[_NO_TIME] = None
            continue
        try:
            ready[rival] = rival.ready(inputs)
        except MismatchError as error:
            notes[f"OpenVINO computes something else than onnxruntime, so it was not compared: {error}."] = None
        except (DeviceError, ExecutionError) as error:
            refused.append(error)
    if not ready:
        raise refused[0]
    return tuple(notes)


def _opens_slowly(rival: Rival) -> bool:
    return rival.library == OPENVINO


def _best_of_rows(here: OpenModelHere, ready: Mapping[Rival, Candidate], pace: Pace) -> dict[RowName, Rival]:
    rows = {row: [rival for rival in ready if rival.row == row] for row in ROW_NAMES}
    several = [rival for ways in rows.values() if len(ways) > 1 for rival in ways]
    if not several:
        return {row: ways[0] for row, ways in rows.items() if ways}
    found = here.in_turn({str(index): ready[rival] for index, rival in enumerate(several)}, pace.choice())
    # Not the least: threads that spin may find each other at once now and then.
    usual_us = {rival: found[str(index)].median_us for index, rival in enumerate(several)}
    return {row: min(ways, key=lambda way: usual_us.get(way, 0.0)) for row, ways in rows.items() if ways}


def _decided(rivals: Mapping[RowName, Rival], measured: Mapping[str, Measurement]) -> Compared:
    rows = tuple(_row(name, rival, measured[name]) for name, rival in rivals.items())
    if len(rows) == 1:
        return Compared(rivals, rows, rows[0].name, _unrivalled(rows[0].name), None)
    plain, others = _against(rows)
    decided = decide(measured, plain, others)
    shipped = next(name for name in rivals if name == decided.chosen)
    return Compared(rivals, rows, shipped, decided.reason(WORDS), decided.ratio())


def _against(rows: Sequence[Row]) -> tuple[RowName, list[RowName]]:
    """What people do without batching, which ships if nothing is faster, and what has to be faster.

    Of one after another and side by side the one that took less is what batching has to beat. Where nothing is batched,
    it is compared with the other one.
    """
    latency_us = {row.name: row.latency_us for row in rows}
    unbatched = sorted((name for name in latency_us if name in UNBATCHED), key=lambda name: latency_us[name])
    if not unbatched:
        first, *others = latency_us
        return first, others
    ours = [name for name in latency_us if name not in UNBATCHED]
    return unbatched[0], ours or unbatched[1:]


def _unrivalled(name: RowName) -> str:
    return f"{WORDS[name]} is all that was asked for"


def _row(name: RowName, rival: Rival, measured: Measurement) -> Row:
    rested = measured.rested
    rested_us = None if rested is None else rested.median_us
    low_us, high_us = measured.low_us, measured.high_us
    return Row(name, measured.median_us, low_us, high_us, rested_us, rival.text, measured.samples_us)


def predict_rivals(rivals: Sequence[Rival]) -> Compared:
    """Compares rivals by computed latencies, on a device that is not at hand; of equals one without batching ships."""
    ways = {row: [rival for rival in rivals if rival.row == row] for row in ROW_NAMES}
    best = {row: fastest_by_prediction(each) for row, each in ways.items() if each}
    rows = tuple(_predicted_row(name, rival) for name, rival in best.items())
    if len(rows) == 1:
        return Compared(best, rows, rows[0].name, _unrivalled(rows[0].name), None)
    latency_us = {row.name: row.latency_us for row in rows}
    plain, others = _against(rows)
    shipped = plain
    for name in others:  # sums of the same latencies in another order differ in the last bits
        shipped = name if latency_us[name] < latency_us[shipped] * (1 - 1e-9) else shipped
    reason = f"by the analytic model nothing is faster than {WORDS[plain]}"
    if shipped != plain:
        times = f"{latency_us[plain] / latency_us[shipped]:.2f}x as fast as {WORDS[plain]}"
        reason = f"by the analytic model {WORDS[shipped]} is {times}"
    return Compared(best, rows, shipped, reason, None)


def _predicted_row(name: RowName, rival: Rival) -> Row:
    latency_us = rival.found.schedule.predicted_us or 0.0
    known = rival.site.opened.uncertainty
    row = Row(name, latency_us, None, None, None, rival.text)
    if known is None:
        return row
    interval = known.latency_us(tuple(rival.found.schedule.stages))
    return replace(row, low_us=interval.low, high_us=interval.high)
