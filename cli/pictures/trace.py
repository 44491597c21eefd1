"""A schedule, or a run by one, in Chrome's trace event format, for Perfetto and Chrome.

The process "measured" has a row for each lane, "predicted" one for each group. Both start at 0.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from iosched.cli.common.text import cost_remark, count_text
from iosched.cli.pictures.theme import Style, style_of
from iosched.runtime.executor import TracedRuns, TracedTask
from iosched.scheduler.schedule import Schedule, Stage
from iosched.scheduler.strategies import STAGE_RULES

if TYPE_CHECKING:
    from iosched.scheduler.document import ScheduleDocument

_MEASURED, _PREDICTED = 1, 2  # processes, in the order in which they are shown
_LANES = 1000  # number of the row of lane 0: rows of stages have smaller numbers
_GROUPS = 1
_UNKNOWN_US = 10.0  # drawn length of a stage with unknown latency

Event = dict[str, object]


@dataclass(frozen=True)
class _PlacedStage:
    """A stage with its block and number, both from 0."""

    block: int
    number: int
    stage: Stage

    @property
    def name(self) -> str:
        """The stage as text."""
        return f"block {self.block} stage {self.number}"

    def args(self, operators: Iterable[str], groups: Sequence[int]) -> dict[str, object]:
        """Details of an event; `group` is a list for several groups."""
        return {
            "block": self.block,
            "stage": self.number,
            "group": groups[0] if len(groups) == 1 else list(groups),
            "strategy": self.stage.strategy.value,
            "operators": list(operators),
        }


def predicted_facts(document: ScheduleDocument) -> dict[str, str]:
    """Facts of the file on predicted latencies."""
    how = cost_remark(document.launch, document.measured_share) or ", measured stage by stage when it was scheduled"
    what = f"of each stage on {document.device_name}{how}"
    facts = {"predicted": f"{what}; groups are drawn as long as their stage, because single groups are not predicted"}
    unknown = sum(stage.predicted_us is None for stage in document.schedule.stages)
    if unknown:
        count = count_text(unknown, "stage")
        facts["unknown"] = f"{count} without a predicted latency; their length, {_UNKNOWN_US:g} us, means nothing"
    return facts


def draw_trace(
    schedule: Schedule,
    *,
    facts: Mapping[str, str],
    styles: Mapping[str, Style],
    runs: TracedRuns | None = None,
) -> str:
    """Text of the JSON file.

    Stages without a predicted latency get a marked placeholder length. The process "predicted" is omitted if `runs` is
    given and no stage has one.

    Args:
        facts: of the whole file, such as the model and the device.
        styles: by operator; others are shown by name.
        runs: measured task times; None for predictions only.
    """
    places = [
        _PlacedStage(block.index, number, stage)
        for block in schedule.blocks
        for number, stage in enumerate(block.stages)
    ]
    events = [] if runs is None else list(_measured(places, runs, styles))
    if runs is None or any(place.stage.predicted_us is not None for place in places):
        events += _predicted(places, styles)
    head = json.dumps({"displayTimeUnit": "ns", "otherData": dict(facts)})[:-1]
    lines = ",\n".join(map(json.dumps, events))
    return f'{head}, "traceEvents": [\n{lines}\n]}}\n'


def _measured(places: Sequence[_PlacedStage], runs: TracedRuns, styles: Mapping[str, Style]) -> Iterator[Event]:
    lanes = 1 + max((task.origin.lane for task in runs.tasks), default=0)
    spans = _stage_spans(runs.tasks)
    rows = _rows(spans.values())
    yield from _process(_MEASURED, "measured")
    for row in range(1 + max(rows, default=0)):
        yield _row(_MEASURED, row, "stages" if row == 0 else "stages, overlapping")
    for lane in range(lanes):
        yield _row(_MEASURED, _LANES + lane, f"lane {lane}")
    for (number, (begin_us, end_us)), row in zip(spans.items(), rows, strict=True):
        place = places[number]
        args = place.args(place.stage.operators, range(len(place.stage.groups)))
        args["predicted_us"] = place.stage.predicted_us
        yield _event(_MEASURED, row, place.name, "stage", begin_us, end_us, args)
    group_of = {name: number for place in places for number, own in enumerate(place.stage.groups) for name in own}
    for task in runs.tasks:
        own = task.origin.operators
        groups = sorted({group_of[name] for name in own if name in group_of})
        args = {**places[task.origin.stage].args(own, groups), "kernels": task.origin.name}
        name = _name(own, styles) or task.origin.name
        yield _event(_MEASURED, _LANES + task.origin.lane, name, "task", task.begin_us, task.end_us, args)


def _stage_spans(tasks: Iterable[TracedTask]) -> dict[int, tuple[float, float]]:
    """Start and end of each stage that has tasks, in order of start."""
    found: dict[int, tuple[float, float]] = {}
    for task in tasks:
        begin_us, end_us = found.get(task.origin.stage, (task.begin_us, task.end_us))
        found[task.origin.stage] = min(begin_us, task.begin_us), max(end_us, task.end_us)
    return dict(sorted(found.items(), key=lambda item: (item[1], item[0])))


def _rows(spans: Iterable[tuple[float, float]]) -> list[int]:
    """A row for each span, in order of start, so that spans of a row do not overlap."""
    ends: list[float] = []
    found = []
    for begin_us, end_us in spans:
        row = next((row for row, last in enumerate(ends) if last <= begin_us), len(ends))
        ends[row : row + 1] = [end_us]
        found.append(row)
    return found


def _predicted(places: Sequence[_PlacedStage], styles: Mapping[str, Style]) -> Iterator[Event]:
    yield from _process(_PREDICTED, "predicted")
    yield _row(_PREDICTED, 0, "stages")
    for group in range(max((len(_parts(place.stage)) for place in places), default=0)):
        yield _row(_PREDICTED, _GROUPS + group, f"group {group}")
    begin_us = 0.0
    for place in places:
        latency_us = place.stage.predicted_us
        end_us = begin_us + (_UNKNOWN_US if latency_us is None else latency_us)
        groups = range(len(place.stage.groups))
        args = {**place.args(place.stage.operators, groups), "predicted_us": latency_us}
        name = place.name if latency_us is not None else f"{place.name} (latency unknown)"
        yield _event(_PREDICTED, 0, name, "stage", begin_us, end_us, args)
        for row, part in enumerate(_parts(place.stage)):
            own = [name for group in part for name in place.stage.groups[group]]
            name = _name(own, styles)
            yield _event(_PREDICTED, _GROUPS + row, name, "group", begin_us, end_us, place.args(own, part))
        begin_us = end_us


def _parts(stage: Stage) -> list[list[int]]:
    """Groups that run in parallel; all together if they run as one or in order."""
    rule, groups = STAGE_RULES[stage.strategy], list(range(len(stage.groups)))
    return [groups] if rule.is_one_operator or rule.is_in_order else [[group] for group in groups]


def _name(operators: Sequence[str], styles: Mapping[str, Style]) -> str:
    if not operators:
        return ""
    style = style_of(operators[0], styles)
    first = f"{style.label} {operators[0]}" if style.type else operators[0]
    return first if len(operators) == 1 else f"{first} + {len(operators) - 1} more"


def _process(process: int, name: str) -> Iterator[Event]:
    yield {"ph": "M", "pid": process, "tid": 0, "name": "process_name", "args": {"name": name}}
    yield {"ph": "M", "pid": process, "tid": 0, "name": "process_sort_index", "args": {"sort_index": process}}


def _row(process: int, row: int, name: str) -> Event:
    return {"ph": "M", "pid": process, "tid": row, "name": "thread_name", "args": {"name": name}}


def _event(
    process: int, row: int, name: str, kind: str, begin_us: float, end_us: float, args: Mapping[str, object]
) -> Event:
    begin = round(begin_us, 3)  # rounded first, so that no event overlaps the next
    times = {"ts": begin, "dur": round(round(end_us, 3) - begin, 3)}
    return {"ph": "X", "pid": process, "tid": row, "name": name, "cat": kind, **times, "args": dict(args)}
