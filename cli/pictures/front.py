"""Variants of a study as SVG: two objectives, or one objective by trial."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from iosched.cli.pictures.svg import GREY, INK, picture, text
from iosched.jobs.exploring.objectives import LATENCY, Objective

if TYPE_CHECKING:
    from iosched.jobs.exploring.explore_result import Individual, StudyHistory

_WIDTH, _HEIGHT = 760, 480
_LEFT, _RIGHT, _TOP, _BOTTOM = 96, 36, 104, 74
_BEST, _OTHER, _BROKEN = "#c2410c", "#7d94b0", "#c9ced6"
_TICKS = 8
_MOST_NAMED = 12
_JOINED, _SO_FAR = "line: Pareto front", "line: best so far"


@dataclass(frozen=True)
class _Axis:
    """An axis: its range of values and of pixels."""

    title: str
    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)

    def ticks(self) -> Iterator[float]:
        step = _round_step((self.high - self.low) / _TICKS)
        first = math.ceil(self.low / step)
        yield from (place * step for place in range(first, math.floor(self.high / step) + 1))


def draw_front(found: StudyHistory) -> str:
    """A point for each evaluated variant, and a line through the Pareto front.

    With one objective, the x axis is the trial number and the line the best so far.
    """
    shown = [each for each in found.individuals if each.point is not None and each.feedback.reused is None]
    shown = [each for each in shown if all(map(math.isfinite, each.point.losses if each.point else ()))]
    parts = [text(24, 34, _heading(found), size=16, weight="600")]
    if not shown:
        return picture(_WIDTH, 120, [*parts, text(24, 64, "no variant has been evaluated", fill=GREY)])
    first, *others = found.card.objectives
    counts = f"{len(shown)} variants"
    if found.card.constraints:
        counts += f"; pale: violates {', '.join(map(str, found.card.constraints))}"
    parts.append(text(24, 56, f"{counts}; {_JOINED if others else _SO_FAR}", fill=GREY))
    best = [each for rank, each in found.ranked() if rank == 0]
    if others:
        return picture(_WIDTH, _HEIGHT, [*parts, *_against(first, others[0], shown, best)])
    return picture(_WIDTH, _HEIGHT, [*parts, *_in_turn(first, shown)])


def _against(a: Objective, b: Objective, shown: Sequence[Individual], best: Sequence[Individual]) -> Iterator[str]:
    across = _axis(_title(a), [_value(each, a) for each in shown], _LEFT, _WIDTH - _RIGHT)
    up = _axis(_title(b), [_value(each, b) for each in shown], _HEIGHT - _BOTTOM, _TOP)
    yield from _frame(across, up)
    line = sorted((across.at(_value(each, a)), up.at(_value(each, b)), each.number) for each in best)
    if len(line) > 1:
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in line)
        yield f'<polyline points="{path}" fill="none" stroke="{_BEST}" stroke-width="1.2" stroke-opacity="0.6"/>'
    numbers = {each.number for each in best}
    for each in shown:
        yield _dot(across.at(_value(each, a)), up.at(_value(each, b)), _colour(each, numbers))
    if len(line) <= _MOST_NAMED:
        yield from (text(x + 7, y - 6, str(number), size=11, fill=_BEST) for x, y, number in line)


def _in_turn(objective: Objective, shown: Sequence[Individual]) -> Iterator[str]:
    across = _axis("trial", [float(each.number) for each in shown], _LEFT, _WIDTH - _RIGHT)
    up = _axis(_title(objective), [_value(each, objective) for each in shown], _HEIGHT - _BOTTOM, _TOP)
    yield from _frame(across, up)
    best, path, records = math.inf, list[str](), set[int]()
    for each in shown:
        loss = objective.loss(_value(each, objective))
        if each.point is not None and each.point.violation <= 0 and loss < best:
            best = loss
            records.add(each.number)
            path.append(f"{across.at(each.number):.1f},{up.at(_value(each, objective)):.1f}")
    if path:
        steps = _steps(path, across.end)
        yield f'<polyline points="{steps}" fill="none" stroke="{_BEST}" stroke-width="1.2" stroke-opacity="0.6"/>'
    for each in shown:
        yield _dot(across.at(each.number), up.at(_value(each, objective)), _colour(each, records))


def _steps(path: Sequence[str], end: float) -> str:
    points = [path[0]]
    for before, after in pairwise(path):
        points += [f"{after.split(',')[0]},{before.split(',')[1]}", after]
    return " ".join([*points, f"{end:.1f},{path[-1].split(',')[1]}"])


def _frame(across: _Axis, up: _Axis) -> Iterator[str]:
    bottom = up.start
    for value in across.ticks():
        x = across.at(value)
        yield f'<path d="M{x:.1f} {bottom}V{_TOP}" stroke="#e6e9ee"/>'
        yield text(x, bottom + 20, _number(value), size=12, fill=GREY, anchor="middle")
    for value in up.ticks():
        y = up.at(value)
        yield f'<path d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}" stroke="#e6e9ee"/>'
        yield text(_LEFT - 8, y + 4, _number(value), size=12, fill=GREY, anchor="end")
    yield f'<path d="M{_LEFT} {_TOP}V{bottom}H{_WIDTH - _RIGHT}" fill="none" stroke="{GREY}"/>'
    yield text((across.start + across.end) / 2, bottom + 46, across.title, fill=INK, anchor="middle")
    yield text(24, _TOP - 10, up.title, fill=INK)


def _axis(title: str, values: Sequence[float], start: float, end: float) -> _Axis:
    low, high = min(values), max(values)
    margin = (high - low) * 0.06 or abs(high) * 0.06 or 1.0
    return _Axis(title, low - margin, high + margin, start, end)


def _heading(found: StudyHistory) -> str:
    name, space = found.card.name, found.card.space
    return name if name == space else f"{name} in {space}"


def _title(objective: Objective) -> str:
    better = "smaller is better" if objective.direction == "min" else "larger is better"
    if not objective.name.startswith(LATENCY):
        return f"{objective.name} ({better})"
    return f"latency on {objective.name.removeprefix(LATENCY)} in ms ({better})"


def _value(each: Individual, objective: Objective) -> float:
    value = each.feedback.values[objective.name]
    return value / 1000 if objective.name.startswith(LATENCY) else value


def _colour(each: Individual, best: set[int]) -> str:
    if each.point is not None and each.point.violation > 0:
        return _BROKEN
    return _BEST if each.number in best else _OTHER


def _dot(x: float, y: float, colour: str) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}" fill-opacity="0.85"/>'


def _round_step(step: float) -> float:
    """The next larger 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= step * (1 - 1e-9))


def _number(value: float) -> str:
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if unit == 'k' else size):.4g}{unit}"
    return f"{value:.6g}"
