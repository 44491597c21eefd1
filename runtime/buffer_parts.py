"""Splits buffers into parts that no task views together, so that each part has a lifetime of its own.

Lanes that compute different images never wait for one another. As one buffer, all images of a tensor would be in use
until the end of the run, and no later tensor could have their memory.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import pairwise

from iosched.runtime.arena import place
from iosched.runtime.plan import Buffer, MemorySpace, PlanTask, View

_Tasks = tuple[tuple[PlanTask, ...], ...]


def place_parts(lanes: _Tasks, buffers: Sequence[Buffer]) -> tuple[_Tasks, tuple[Buffer, ...], int]:
    """Tasks, placed buffers and the size of the arena: of parts where that makes the arena smaller, see `place`."""
    whole = (lanes, *place(lanes, buffers))
    tasks, groups = split_buffers(lanes, buffers)
    if len(groups) == 1:
        return whole
    return min(whole, (tasks, *place(tasks, *groups)), key=lambda placed: placed[2])


def split_buffers(lanes: _Tasks, buffers: Sequence[Buffer]) -> tuple[_Tasks, Sequence[Sequence[Buffer]]]:
    """The tasks with an ARENA buffer for each separately viewed part, and groups of buffers for `place`.

    The first group has the buffers that stay whole, and the next ones the first, the second, ... parts of the others.
    Buffers with a pitch stay whole, since each view has bytes in all rows. O(views log views).
    """
    views: dict[str, set[View]] = {}
    for task in (task for lane in lanes for task in lane):
        for view in (*task.reads, *task.writes):
            views.setdefault(view.buffer, set()).add(view)
    mark = "#"
    while any(mark in buffer.name for buffer in buffers):
        mark += "#"
    groups: list[list[Buffer]] = [[]]
    moved: dict[View, View] = {}
    for buffer in buffers:
        own = views.get(buffer.name, ())
        starts = _starts(own) if buffer.space is MemorySpace.ARENA and not buffer.pitch else [0]
        if len(starts) == 1:
            groups[0].append(buffer)
            continue
        groups += [[] for _ in range(len(groups), 1 + len(starts))]
        for number, (start, stop) in enumerate(pairwise([*starts, buffer.nbytes]), 1):
            groups[number].append(replace(buffer, name=f"{buffer.name}{mark}{start}", nbytes=stop - start))
        for view in own:
            start = starts[bisect_right(starts, view.offset) - 1]
            moved[view] = replace(view, buffer=f"{buffer.name}{mark}{start}", offset=view.offset - start)
    return tuple(tuple(_moved(task, moved) for task in lane) for lane in lanes), groups


def _starts(views: Collection[View]) -> list[int]:
    """The first byte of each part, in order."""
    starts, end = [0], 0
    for view in sorted((view for view in views if view.nbytes), key=lambda view: view.offset):
        if 0 < end <= view.offset:
            starts.append(view.offset)
        end = max(end, view.offset + view.nbytes)
    return starts


def _moved(task: PlanTask, moved: dict[View, View]) -> PlanTask:
    reads, writes, in_place = (
        tuple(moved.get(view, view) for view in views) for views in (task.reads, task.writes, task.in_place)
    )
    return replace(task, reads=reads, writes=writes, in_place=in_place)
