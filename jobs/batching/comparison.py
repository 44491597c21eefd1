"""Compares ways to run several models, and decides which one ships."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import inf, isfinite
from typing import cast

from iosched.jobs.batching.result import Compared
from iosched.jobs.batching.rivals import Rival, predicted_us
from iosched.jobs.decision import decide
from iosched.jobs.interrupt import compared_in_turn
from iosched.jobs.pace import OPENED, Pace
from iosched.jobs.row import Row
from iosched.models.errors import DeviceError, ExecutionError, IoschedError, MismatchError
from iosched.profiler.devices.device import OpenModelHere
from iosched.profiler.measuring.in_turn import closing_all, interference_notes
from iosched.profiler.measuring.statistics import Interval, Measurement
from iosched.runtime.executor import Candidate
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

UNBATCHED: tuple[RowName, ...] = ("serial", "packed")
"""What people do who do not batch."""

_NO_TIME = "For lack of time OpenVINO was not compared in all ways: that takes a larger --budget."


_LEAST_GAIN = 1.005
"""How many times as fast something has to be by computed latencies: less is no difference that a table would show."""

_Choice = tuple[RowName, str, Interval | None]
"""The row to ship, the reason, and its ratio to what it was compared with."""

_Choose = Callable[[Mapping[str, Measurement], RowName, Sequence[RowName]], _Choice]
"""Chooses by latencies what ships: the plain row, or one of the others."""


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
        KeyboardInterrupt: the user interrupts, and does not want the fastest way known.
    """
    ready: dict[Rival, Candidate] = {}
    with closing_all(ready):
        notes = _open(rivals, inputs, pace, ready)
        usual_us = _usual_us(here, ready, pace)
        best = _best_of_rows(usual_us)
        candidates: dict[str, Candidate] = {row: ready[rival] for row, rival in best.items()}
        budget = pace.comparison_of(here.measuring.budget, [usual_us[rival] for rival in best.values()])
        measured = compared_in_turn(here, candidates, budget, pace.interrupt, observer)
        return replace(_compared(best, measured, _choose_measured), notes=(*interference_notes(measured), *notes))


def _open(rivals: Sequence[Rival], inputs: Arrays, pace: Pace, ready: dict[Rival, Candidate]) -> tuple[str, ...]:
    """Makes rivals ready, OpenVINO last; returns sentences about what is left out."""
    refused: list[IoschedError] = []
    notes: dict[str, None] = {}
    is_late = pace.is_over(OPENED)
    for rival in sorted(rivals, key=_opens_slowly):
        pace.ask()
        if _opens_slowly(rival) and is_late():
            notes |= {} if pace.interrupt.accepted else {_NO_TIME: None}
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


def _usual_us(here: OpenModelHere, ready: Mapping[Rival, Candidate], pace: Pace) -> dict[Rival, float]:
    """About how long each way takes: its usual latency in some rounds in turn, or the second of two runs.

    Not the least: threads that spin may find each other at once now and then.
    """
    pace.ask()
    second_us = {rival: each.time(2)[-1] for rival, each in ready.items()} if isfinite(pace.remaining_s()) else {}
    budget = pace.choice(second_us.values())
    if budget is None:
        return second_us
    names = {str(index): rival for index, rival in enumerate(ready)}
    measured = here.in_turn({name: ready[rival] for name, rival in names.items()}, budget)
    return {rival: measured[name].median_us for name, rival in names.items()}


def _best_of_rows(usual_us: Mapping[Rival, float]) -> dict[RowName, Rival]:
    rows = {row: [rival for rival in usual_us if rival.row == row] for row in ROW_NAMES}
    return {row: min(ways, key=lambda way: usual_us[way]) for row, ways in rows.items() if ways}


def _choose_measured(measured: Mapping[str, Measurement], plain: RowName, others: Sequence[RowName]) -> _Choice:
    found = decide(measured, plain, others)
    return cast(RowName, found.chosen), found.reason(WORDS), found.ratio()


def predict_rivals(rivals: Sequence[Rival]) -> Compared:
    """Compares rivals by computed latencies, on a device that is not at hand; of equals one without batching ships."""
    best = _best_of_rows({rival: predicted_us(rival.found.schedule) for rival in rivals})
    return _compared(best, {row: _predicted(rival) for row, rival in best.items()}, _choose_predicted)


def _choose_predicted(predicted: Mapping[str, Measurement], plain: RowName, others: Sequence[RowName]) -> _Choice:
    chosen, plain_us = plain, predicted[plain].median_us
    for name in others:
        chosen = name if predicted[name].median_us * _LEAST_GAIN < predicted[chosen].median_us else chosen
    if chosen == plain:
        return plain, f"by the analytic model nothing is faster than {WORDS[plain]}", None
    times = plain_us / predicted[chosen].median_us
    return chosen, f"by the analytic model {WORDS[chosen]} is {times:.2f}x as fast as {WORDS[plain]}", None


def _compared(rivals: Mapping[RowName, Rival], latencies: Mapping[str, Measurement], choose: _Choose) -> Compared:
    """The comparison of rivals.

    Of one after another and side by side the one that took less is what batching has to beat, and ships if nothing is
    faster. Where nothing is batched, it is compared with the other one.
    """
    rows = tuple(Row(name, latencies[name], rival.text) for name, rival in rivals.items())
    if len(rows) == 1:
        (only,) = rivals
        return Compared(rivals, rows, only, f"{WORDS[only]} is all that was asked for", None)
    fastest_first = sorted(rivals, key=lambda name: latencies[name].median_us)
    plain, *slower = [name for name in fastest_first if name in UNBATCHED] or [*rivals][:1]
    others = [name for name in rivals if name not in (*UNBATCHED, plain)] or slower
    chosen, reason, ratio = choose(latencies, plain, others)
    if not rivals[chosen].may_ship:
        chosen = next(name for name in fastest_first if rivals[name].may_ship)
        reason += f"; since models were to share inputs, {WORDS[chosen]} ships all the same"
    return Compared(rivals, rows, chosen, reason, ratio)


def _predicted(rival: Rival) -> Measurement:
    known, schedule = rival.site.opened.details.uncertainty, rival.found.schedule
    found = Interval(0.0, 0.0, inf) if known is None else known.latency_us(tuple(schedule.stages))
    return Measurement(schedule.predicted_us or 0.0, found.low, found.high, ())
