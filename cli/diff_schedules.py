"""What `iosched diff` prints of two schedules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from iosched.cli.objects import json_object
from iosched.cli.tables import print_columns
from iosched.cli.terminal import say
from iosched.cli.words import count_text, latency_text
from iosched.scheduler.difference import Change
from iosched.scheduler.schedule import Stage, Strategy, total_us
from iosched.scheduler.strategies import STAGES

if TYPE_CHECKING:
    from iosched.jobs.difference.schedules import SchedulesDifference
    from iosched.scheduler.difference import OperatorChange, Place, StagePair
    from iosched.scheduler.document import ScheduleDocument

_PAIR = "a=before b=after a_us b_us alike"
_DOCUMENT = "model device cost shipped stages latency_us predicted_us=schedule.predicted_us"
_MOST_NAMES = 3
_WORDS = {
    Change.STAGE: "in another stage",
    Change.GROUP: "in another group",
    Change.STRATEGY: "run in another way",
    Change.MERGED: "merged with others",
    Change.ORDER: "in another order",
    Change.LANES: "on other lanes",
}


def as_object(found: SchedulesDifference) -> dict[str, object]:
    """The object that `diff --json` prints of two schedules."""
    before, after = list(found.before.schedule.stages), list(found.after.schedule.stages)
    stages = [
        json_object(pair, _PAIR, a_us=_latency(before, pair.before), b_us=_latency(after, pair.after))
        for pair in found.found.stages
    ]
    return {
        "kind": "schedule",
        **json_object(found.found, "equal count"),
        "a": _document(found.before),
        "b": _document(found.after),
        "operators": [json_object(each, "operator changes a=before b=after") for each in found.found.operators],
        "stages": stages,
        "remarks": found.remarks,
    }


def _document(document: ScheduleDocument) -> dict[str, object]:
    stages = list(document.schedule.stages)
    return json_object(document, _DOCUMENT, stages=len(stages), latency_us=total_us(stages))


def _latency(stages: list[Stage], number: int | None) -> float | None:
    return None if number is None else stages[number].latency_us


def print_difference(found: SchedulesDifference, *, whole: bool) -> None:
    """Prints the stages side by side, with `whole` also those that are alike, and then a line for each operator."""
    before, after = list(found.before.schedule.stages), list(found.after.schedule.stages)
    pairs = found.found.stages
    shown = [pair for pair in pairs if whole or not pair.alike]
    rows = [_row(before, after, pair) for pair in shown]
    if alike := [pair for pair in pairs if pair.alike and not whole]:
        same = [before[pair.before] for pair in alike if pair.before is not None]
        also = [after[pair.after] for pair in alike if pair.after is not None]
        rows.append([f"{count_text(len(alike), 'stage')} alike", "", *_totals(same, also)])
    rows.append(["all", "", *_totals(before, after)])
    print_columns(["stages that differ" if not whole else "stages", "A | B", "A", "B"], rows)
    for each in found.found.operators:
        say(f"{each.operator}: {_sentence(each)}")
    if found.found.equal:
        say(f"All {count_text(found.found.count, 'operator')} run alike.")


def _totals(before: list[Stage], after: list[Stage]) -> list[str]:
    return [latency_text(total_us(stages)) for stages in (before, after)]


def _row(before: list[Stage], after: list[Stage], pair: StagePair) -> list[str]:
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


def _where(operator: str, place: Place) -> str:
    others = [name for name in place.together if name != operator]
    if STAGES[place.strategy].is_one_operator:
        how = f"merged with {_few(others)}" if others else "merged"
    else:
        in_session = "in a session, " if place.strategy is Strategy.SESSION else ""
        how = f"{in_session}group {place.group}" + (f" with {_few(others)}" if others else "")
    lanes = "" if place.lanes is None else f", lanes {' '.join(map(str, place.lanes))}"
    return f"stage {place.stage}, {how}{lanes}"


def _few(names: tuple[str, ...] | list[str]) -> str:
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more
