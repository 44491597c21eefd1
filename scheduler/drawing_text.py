"""A schedule as text: one line for each group, operators in the order in which they run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from iosched.scheduler.drawing import (
    Look,
    block_latency_us,
    count_text,
    latency_text,
    look_of,
    schedule_latency_us,
    stage_latency_us,
)
from iosched.scheduler.schedule import Block, Schedule, Stage, Strategy

_UNICODE = {"only": "── ", "first": "┬─ ", "middle": "├─ ", "last": "└─ ", "then": " → "}
_ASCII = {"only": "-- ", "first": "+- ", "middle": "|- ", "last": "`- ", "then": " > "}


def draw_text(schedule: Schedule, *, title: str, looks: Mapping[str, Look], unicode: bool = True) -> str:
    """A picture for a terminal; ends with a newline.

    Args:
        schedule: what to draw.
        title: first line.
        looks: how operators are shown; those missing show as their names.
        unicode: line-drawing characters, else plain ASCII.
    """
    stages = sum(1 for _ in schedule.stages)
    total = latency_text(schedule_latency_us(schedule))
    lines = [title, f"{count_text(len(schedule.blocks), 'block')}, {count_text(stages, 'stage')}, {total}"]
    for block in schedule.blocks:
        lines += ["", _headline(block), *_stages(block, looks, _UNICODE if unicode else _ASCII)]
    text = "\n".join(lines) + "\n"
    return text if unicode else text.replace("µs", "us").replace("×", "x")  # noqa: RUF001


def _headline(block: Block) -> str:
    operators = sum(len(stage.operators) for stage in block.stages)
    proven = "" if block.optimal else ", not proven optimal"
    return (
        f"block {block.index}: {count_text(operators, 'operator')} in {count_text(len(block.stages), 'stage')}, "
        f"{latency_text(block_latency_us(block))}{proven}"
    )


def _stages(block: Block, looks: Mapping[str, Look], marks: Mapping[str, str]) -> Iterator[str]:
    heads = [_stage_head(index, stage) for index, stage in enumerate(block.stages)]
    width = max(map(len, heads), default=0)
    for head, stage in zip(heads, block.stages, strict=True):
        last = len(stage.groups) - 1
        for index, group in enumerate(stage.groups):
            lead = head if index == 0 else ""
            yield f"{lead:<{width}} {marks[_place(index, last)]}{_chain(group, looks, marks['then'])}"


def _stage_head(index: int, stage: Stage) -> str:
    latency_us = stage_latency_us(stage)
    latency = "" if latency_us is None else latency_text(latency_us)
    merge = " merge" if stage.strategy is Strategy.MERGE else ""
    return f"  {index + 1:>3} {latency:>10}{merge} "


def _place(index: int, last: int) -> str:
    if last == 0:
        return "only"
    if index == 0:
        return "first"
    return "last" if index == last else "middle"


def _chain(group: tuple[str, ...], looks: Mapping[str, Look], then: str) -> str:
    return then.join(_operator(name, looks) for name in group)


def _operator(name: str, looks: Mapping[str, Look]) -> str:
    look = look_of(name, looks)
    return f"{look.label} {name}" if look.type else name
