"""A schedule as text: a line for each group, operators in execution order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from iosched.cli.common.text import count_text
from iosched.cli.pictures.theme import Style, latency_label, shown, style_of
from iosched.scheduler.proof import proof_text
from iosched.scheduler.schedule import Block, Schedule, Stage, total_us
from iosched.scheduler.strategies import STAGE_RULES

_UNICODE = {"only": "── ", "first": "┬─ ", "middle": "├─ ", "last": "└─ ", "then": " → "}
_ASCII = {"only": "-- ", "first": "+- ", "middle": "|- ", "last": "`- ", "then": " > "}


@dataclass(frozen=True)
class Remarks:
    """Text next to latencies: for all stages, and for each stage in columns of fixed width."""

    of_all: Callable[[Iterable[Stage]], str]
    of_stage: Callable[[Stage], str]


def draw_text(
    schedule: Schedule,
    *,
    title: str,
    styles: Mapping[str, Style],
    proven: str | None = None,
    unicode: bool = True,
    remarks: Remarks | None = None,
) -> str:
    """Picture for a terminal.

    Args:
        title: the first line.
        styles: by operator; others are shown by name.
        proven: the proof about the schedule in words, or None.
        unicode: use line-drawing characters instead of ASCII.
    """
    stages = list(schedule.stages)
    counts = (count_text(len(schedule.blocks), "block"), count_text(len(stages), "stage"))
    more = [] if proven is None else [proven]
    more += [] if remarks is None else [remarks.of_all(stages)]
    lines = [title, ", ".join([*counts, latency_label(total_us(schedule.stages)), *more])]
    for block in schedule.blocks:
        lines += ["", _headline(block), *_stages(block, styles, _UNICODE if unicode else _ASCII, remarks)]
    text = "\n".join(lines) + "\n"
    return text if unicode else text.replace("µs", "us").replace("×", "x")  # noqa: RUF001


def _headline(block: Block) -> str:
    operators = sum(len(stage.operators) for stage in block.stages)
    proven = "" if block.optimal else f", {proof_text(None)}"
    return (
        f"block {block.index}: {count_text(operators, 'operator')} in {count_text(len(block.stages), 'stage')}, "
        f"{latency_label(total_us(block.stages))}{proven}"
    )


def _stages(
    block: Block, styles: Mapping[str, Style], marks: Mapping[str, str], remarks: Remarks | None
) -> Iterator[str]:
    heads = [_stage_head(index, stage, remarks) for index, stage in enumerate(block.stages)]
    width = max(map(len, heads), default=0)
    for head, stage in zip(heads, block.stages, strict=True):
        last = len(stage.groups) - 1
        for index, group in enumerate(stage.groups):
            lead = head if index == 0 else ""
            chain = marks["then"].join(_operator(name, styles) for name in shown(stage, group)) + _lanes(stage, index)
            yield f"{lead:<{width}} {marks[_place(index, last)]}{chain}"


def _stage_head(index: int, stage: Stage, remarks: Remarks | None) -> str:
    latency_us = stage.latency_us
    latency = "" if latency_us is None else latency_label(latency_us)
    mark = STAGE_RULES[stage.strategy].mark
    more = "" if remarks is None else remarks.of_stage(stage)
    return f"  {index + 1:>3} {latency:>10}{more}{mark and f' {mark}'} "


def _place(index: int, last: int) -> str:
    if last == 0:
        return "only"
    if index == 0:
        return "first"
    return "last" if index == last else "middle"


def _lanes(stage: Stage, index: int) -> str:
    """Lanes of a group, unless each group simply has one."""
    if stage.division is None or sorted(stage.division.groups) == [(lane,) for lane in range(len(stage.groups))]:
        return ""
    own = stage.division.groups[index]
    in_a_row = len(own) > 2 and own == tuple(range(own[0], own[-1] + 1))
    numbers = f"{own[0]}-{own[-1]}" if in_a_row else ", ".join(map(str, own))
    return f"  ({'lane' if len(own) == 1 else 'lanes'} {numbers})"


def _operator(name: str, styles: Mapping[str, Style]) -> str:
    style = style_of(name, styles)
    return f"{style.label} {name}" if style.type else name
