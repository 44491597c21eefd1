"""Plans with something wrong in them, or perhaps not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from random import Random

from iosched.runtime.plan import Buffer, ExecutionPlan, Space, Task, View, Wait

Lanes = list[list[Task]]


def mutated(plan: ExecutionPlan, draw: Random) -> ExecutionPlan:
    """`plan` with one change, or with two that may make up for each other; waits stay within their lanes."""
    for _ in range(draw.choice([1, 1, 2])):
        plan = draw.choice(MUTATIONS)(plan, draw)
    return plan


def drop_wait(plan: ExecutionPlan, draw: Random) -> ExecutionPlan:
    return _with_waits(plan, draw, lambda wait: None)


def wait_for_less(plan: ExecutionPlan, draw: Random) -> ExecutionPlan:
    return _with_waits(plan, draw, lambda wait: replace(wait, steps=draw.randint(0, wait.steps)))


def swap_neighbours(plan: ExecutionPlan, draw: Random) -> ExecutionPlan:
    """Two tasks of a lane change places; what they wait for stays where it was, or goes along."""
    lanes = _lanes(plan)
    lane = draw.choice([lane for lane in lanes if lane])
    step = draw.randrange(max(len(lane) - 1, 1))
    if step + 1 < len(lane):
        first, second = lane[step], lane[step + 1]
        stay = draw.random() < 0.5
        lane[step] = replace(second, waits=first.waits) if stay else second
        lane[step + 1] = replace(first, waits=second.waits) if stay else first
    return _planned(plan, lanes)


def swap_lanes(plan: ExecutionPlan, draw: Random) -> ExecutionPlan:
    """Tasks of two lanes change places."""
    lanes = _lanes(plan)
    one, other = (draw.choice([lane for lane in lanes if lane]) for _ in range(2))
    i, j = draw.randrange(len(one)), draw.randrange(len(other))
    one[i], other[j] = other[j], one[i]
    return _planned(plan, lanes)


def change_lane(plan: ExecutionPlan, draw: Random) -> ExecutionPlan:
    """A task goes to another place, perhaps on another lane."""
    lanes = _lanes(plan)
    source, target = draw.choice([lane for lane in lanes if lane]), draw.choice(lanes)
    task = source.pop(draw.randrange(len(source)))
    target.insert(draw.randint(0, len(target)), task)
    return _planned(plan, lanes)


def drop_task(plan: ExecutionPlan, draw: Random) -> ExecutionPlan:
    lanes = _lanes(plan)
    lane = draw.choice([lane for lane in lanes if lane])
    lane.pop(draw.randrange(len(lane)))
    return _planned(plan, lanes)


def repeat_task(plan: ExecutionPlan, draw: Random) -> ExecutionPlan:
    lanes = _lanes(plan)
    lane = draw.choice([lane for lane in lanes if lane])
    step = draw.randrange(len(lane))
    lane.insert(step, lane[step])
    return _planned(plan, lanes)


def move_buffer(plan: ExecutionPlan, draw: Random) -> ExecutionPlan:
    """A buffer of the arena goes elsewhere: a little, or onto another."""
    inside = [buffer for buffer in plan.buffers if buffer.space is Space.ARENA]
    if not inside:
        return plan
    buffer, other = draw.choice(inside), draw.choice(inside)
    nearby = buffer.offset + draw.choice([-64, 64, -256, 256])
    offset = max(draw.choice([other.offset, other.offset + other.nbytes, other.offset - buffer.nbytes, nearby]), 0)
    nbytes = max(plan.arena_nbytes, offset + buffer.nbytes)
    moved = _with_buffer(plan.buffers, replace(buffer, offset=offset))
    return replace(plan, buffers=moved, arena_nbytes=nbytes)


def change_view(plan: ExecutionPlan, draw: Random) -> ExecutionPlan:
    """A view of a task shrinks, grows, or is another's of the plan."""
    lanes = _lanes(plan)
    lane = draw.choice([lane for lane in lanes if lane])
    step = draw.randrange(len(lane))
    task = lane[step]
    reads, writes = list(task.reads), list(task.writes)
    views = draw.choice([views for views in (reads, writes) if views] or [reads])
    if views:
        at = draw.randrange(len(views))
        other = draw.choice([view for each in plan.lanes for t in each for view in (*t.reads, *t.writes)])
        views[at] = other if draw.random() < 0.4 else _resized(views[at], plan, draw)
    lane[step] = replace(task, reads=tuple(reads), writes=tuple(writes))
    return _planned(plan, lanes)


MUTATIONS: Sequence[Callable[[ExecutionPlan, Random], ExecutionPlan]] = (
    drop_wait, drop_wait, wait_for_less, swap_neighbours, swap_lanes, change_lane, drop_task, repeat_task, move_buffer,
    change_view, change_view,
)  # fmt: skip


def _resized(view: View, plan: ExecutionPlan, draw: Random) -> View:
    """Other columns of the same buffer, most often within it."""
    buffer = next(buffer for buffer in plan.buffers if buffer.name == view.buffer)
    if buffer.space is Space.DYNAMIC:
        return view
    rows = buffer.nbytes // buffer.pitch if buffer.pitch else 1
    width = buffer.pitch or buffer.nbytes
    columns = view.nbytes // max(rows, 1)
    start, stop = draw.choice(
        [
            (view.offset, view.offset + columns // 2),
            (view.offset + columns // 2, view.offset + columns),
            (view.offset + 4, view.offset + columns),
            (max(view.offset - 4, 0), view.offset + columns),
            (view.offset, min(view.offset + columns + 4, width)),
            (0, width),
        ]
    )
    nbytes = max(stop - start, 0) * rows
    return View(view.buffer, "uint8", (nbytes,), start, nbytes)


def _with_waits(plan: ExecutionPlan, draw: Random, change: Callable[[Wait], Wait | None]) -> ExecutionPlan:
    lanes = _lanes(plan)
    places = [(lane, step) for lane in lanes for step, task in enumerate(lane) if task.waits]
    if places:
        lane, step = draw.choice(places)
        chosen = draw.choice(lane[step].waits)
        changed = change(chosen)
        kept = tuple(wait for wait in lane[step].waits if wait is not chosen)
        lane[step] = replace(lane[step], waits=kept if changed is None else (*kept, changed))
    return _planned(plan, lanes)


def _with_buffer(buffers: Sequence[Buffer], changed: Buffer) -> tuple[Buffer, ...]:
    return tuple(changed if buffer.name == changed.name else buffer for buffer in buffers)


def _lanes(plan: ExecutionPlan) -> Lanes:
    return [list(lane) for lane in plan.lanes]


def _planned(plan: ExecutionPlan, lanes: Lanes) -> ExecutionPlan:
    length = {number: len(lane) for number, lane in enumerate(lanes)}
    return replace(
        plan, lanes=tuple(tuple(_waiting(task, number, length) for task in lane) for number, lane in enumerate(lanes))
    )


def _waiting(task: Task, own: int, length: Mapping[int, int]) -> Task:
    waits = (replace(wait, steps=min(wait.steps, length[wait.lane])) for wait in task.waits if wait.lane != own)
    return replace(task, waits=tuple(waits))
