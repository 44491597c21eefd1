"""The check refuses the same plans as a comparison of all pairs of accesses: random plans, and mutated real ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, wraps
from random import Random
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lowering import random_schedule
from lowering import random_schedule as random_units
from networks import zoo_model
from scripted import fire
from small_models import sliced

from iosched.models import zoo
from iosched.models.graph import TensorSpec
from iosched.models.model import Model
from iosched.runtime.cpu.backend import CpuBackend
from iosched.runtime.cuda.kernel import Precision
from iosched.runtime.cuda.lower.lowered_model import LoweredModel
from iosched.runtime.cuda.lower.lowering import lower, lower_stage
from iosched.runtime.hazards import HazardError, Order, check, happens_before
from iosched.runtime.plan import Buffer, ExecutionPlan, MemorySpace, PlanTask, View, Wait
from iosched.scheduler.baselines import greedy, sequential

Lanes = list[list[PlanTask]]
Mutation = Callable[[ExecutionPlan, Random], ExecutionPlan]


def mutated(plan: ExecutionPlan, draw: Random) -> ExecutionPlan:
    """`plan` with one change, or with two that may make up for each other; waits stay within their lanes."""
    for _ in range(draw.choice([1, 1, 2])):
        plan = draw.choice(MUTATIONS)(plan, draw)
    return plan


def of_lanes(change: Callable[[Lanes, Random, ExecutionPlan], None]) -> Mutation:
    """A mutation that changes the lanes in place."""

    @wraps(change)
    def mutate(plan: ExecutionPlan, draw: Random) -> ExecutionPlan:
        lanes = [list(lane) for lane in plan.lanes]
        change(lanes, draw, plan)
        waiting = (tuple(_waiting(task, own, lanes) for task in lane) for own, lane in enumerate(lanes))
        return replace(plan, lanes=tuple(waiting))

    return mutate


def _waiting(task: PlanTask, own: int, lanes: Lanes) -> PlanTask:
    waits = (replace(wait, steps=min(wait.steps, len(lanes[wait.lane]))) for wait in task.waits if wait.lane != own)
    return replace(task, waits=tuple(waits))


def _some(lanes: Lanes, draw: Random) -> list[PlanTask]:
    return draw.choice([lane for lane in lanes if lane])


def _change_wait(lanes: Lanes, draw: Random, change: Callable[[Wait], tuple[Wait, ...]]) -> None:
    places = [(lane, step) for lane in lanes for step, task in enumerate(lane) if task.waits]
    if places:
        lane, step = draw.choice(places)
        chosen = draw.choice(lane[step].waits)
        kept = (wait for wait in lane[step].waits if wait is not chosen)
        lane[step] = replace(lane[step], waits=(*kept, *change(chosen)))


@of_lanes
def drop_wait(lanes: Lanes, draw: Random, _: ExecutionPlan) -> None:
    _change_wait(lanes, draw, lambda wait: ())


@of_lanes
def wait_for_less(lanes: Lanes, draw: Random, _: ExecutionPlan) -> None:
    _change_wait(lanes, draw, lambda wait: (replace(wait, steps=draw.randint(0, wait.steps)),))


@of_lanes
def swap_neighbours(lanes: Lanes, draw: Random, _: ExecutionPlan) -> None:
    """Two tasks of a lane change places; their waits stay in place, or move along."""
    lane = _some(lanes, draw)
    step = draw.randrange(max(len(lane) - 1, 1))
    if step + 1 < len(lane):
        first, second = lane[step], lane[step + 1]
        stay = draw.random() < 0.5
        lane[step] = replace(second, waits=first.waits) if stay else second
        lane[step + 1] = replace(first, waits=second.waits) if stay else first


@of_lanes
def swap_lanes(lanes: Lanes, draw: Random, _: ExecutionPlan) -> None:
    """Tasks of two lanes change places."""
    one, other = _some(lanes, draw), _some(lanes, draw)
    i, j = draw.randrange(len(one)), draw.randrange(len(other))
    one[i], other[j] = other[j], one[i]


@of_lanes
def change_lane(lanes: Lanes, draw: Random, _: ExecutionPlan) -> None:
    """A task goes to another place, perhaps on another lane."""
    source, target = _some(lanes, draw), draw.choice(lanes)
    task = source.pop(draw.randrange(len(source)))
    target.insert(draw.randint(0, len(target)), task)


@of_lanes
def drop_task(lanes: Lanes, draw: Random, _: ExecutionPlan) -> None:
    lane = _some(lanes, draw)
    lane.pop(draw.randrange(len(lane)))


@of_lanes
def repeat_task(lanes: Lanes, draw: Random, _: ExecutionPlan) -> None:
    lane = _some(lanes, draw)
    step = draw.randrange(len(lane))
    lane.insert(step, lane[step])


@of_lanes
def change_view(lanes: Lanes, draw: Random, plan: ExecutionPlan) -> None:
    """A view of a task shrinks, grows, or becomes another view of the plan."""
    lane = _some(lanes, draw)
    step = draw.randrange(len(lane))
    reads, writes = list(lane[step].reads), list(lane[step].writes)
    views = draw.choice([views for views in (reads, writes) if views] or [reads])
    if views:
        at = draw.randrange(len(views))
        other = draw.choice([view for each in plan.lanes for t in each for view in (*t.reads, *t.writes)])
        views[at] = other if draw.random() < 0.4 else _resized(views[at], plan, draw)
    lane[step] = replace(lane[step], reads=tuple(reads), writes=tuple(writes))


def move_buffer(plan: ExecutionPlan, draw: Random) -> ExecutionPlan:
    """A buffer of the arena goes elsewhere: a little, or onto another."""
    inside = [buffer for buffer in plan.buffers if buffer.space is MemorySpace.ARENA]
    if not inside:
        return plan
    buffer, other = draw.choice(inside), draw.choice(inside)
    nearby = buffer.offset + draw.choice([-64, 64, -256, 256])
    offset = max(draw.choice([other.offset, other.offset + other.nbytes, other.offset - buffer.nbytes, nearby]), 0)
    moved = tuple(replace(each, offset=offset) if each is buffer else each for each in plan.buffers)
    return replace(plan, buffers=moved, arena_nbytes=max(plan.arena_nbytes, offset + buffer.nbytes))


MUTATIONS: tuple[Mutation, ...] = (
    drop_wait, drop_wait, wait_for_less, swap_neighbours, swap_lanes, change_lane, drop_task, repeat_task, move_buffer,
    change_view, change_view,
)  # fmt: skip


def _resized(view: View, plan: ExecutionPlan, draw: Random) -> View:
    """Other columns of the same buffer, most often within it."""
    buffer = next(buffer for buffer in plan.buffers if buffer.name == view.buffer)
    if buffer.space is MemorySpace.DYNAMIC:
        return view
    rows = buffer.nbytes // buffer.pitch if buffer.pitch else 1
    width, start = buffer.pitch or buffer.nbytes, view.offset
    columns = view.nbytes // max(rows, 1)
    middle, stop = start + columns // 2, start + columns
    resized = [(start, middle), (middle, stop), (start + 4, stop), (max(start - 4, 0), stop), (0, width)]
    first, last = draw.choice([*resized, (start, min(stop + 4, width))])
    nbytes = max(last - first, 0) * rows
    return View(view.buffer, "uint8", (nbytes,), first, nbytes)


def of_cpus(model: Model) -> Iterator[ExecutionPlan]:
    for lanes in (1, 2, 3):
        with CpuBackend(model, lanes=lanes) as backend:
            for schedule in (sequential(backend.graph), greedy(backend.graph), random_units(backend.graph, lanes)):
                yield backend.lower(schedule).plan


def of_gpus(model: Model) -> Iterator[ExecutionPlan]:
    network = LoweredModel(model, Precision("fp32"))
    schedules = [sequential(model.graph), greedy(model.graph), *(random_schedule(model.graph, seed) for seed in (1, 2))]
    for schedule in schedules:
        for barriers in (True, False):
            yield lower(network, schedule, barriers=barriers).plan
    for stage in schedules[-1].stages:
        alone = lower_stage(network, stage)
        assert alone is not None
        yield alone.plan


@cache
def small_plans() -> tuple[ExecutionPlan, ...]:
    squeezed = zoo_model("light_squeezenet")
    models = fire(), sliced()
    plans = (*of_cpus(squeezed), *(plan for model in models for plan in (*of_cpus(model), *of_gpus(model))))
    return tuple(plan for plan in plans if sum(map(len, plan.lanes)) > 2)


READ_ONLY = (MemorySpace.INPUT, MemorySpace.WEIGHT)


class Access(NamedTuple):
    """An access of a task: columns of a buffer, and the bytes at which the whole buffer lies in its space."""

    index: int
    task: int
    buffer: int
    start: int
    stop: int
    space: int
    first: int
    last: int
    writes: bool
    adds: bool


def is_sound(plan: ExecutionPlan) -> bool:
    """The property that `runtime.hazards` proves, by comparing all pairs of accesses: slow, but simple.

    For every interleaving that lanes and waits allow: tasks that touch the same bytes, one of them writing, are
    ordered; every byte that is read was last written to the very buffer it is read from; every output is written whole.
    A task may write what it reads where it says that it adds to those very bytes.
    """
    try:
        order = happens_before(plan.lanes)
    except HazardError:
        return False
    buffers = {buffer.name: buffer for buffer in plan.buffers}
    views = [*plan.outputs, *(view for task in order.tasks for view in (*task.reads, *task.writes))]
    return (
        len(buffers) == len(plan.buffers)
        and all(fits(buffer, plan.arena_nbytes) for buffer in plan.buffers)
        and all(view.buffer in buffers and is_inside(view, buffers[view.buffer]) for view in views)
        and all(buffers[view.buffer].space in (MemorySpace.OUTPUT, MemorySpace.DYNAMIC) for view in plan.outputs)
        and not any(buffers[view.buffer].space in READ_ONLY for task in order.tasks for view in task.writes)
        and has_no_hazard(order, plan.buffers)
    )


def fits(buffer: Buffer, arena_nbytes: int) -> bool:
    inside = buffer.offset >= 0 and buffer.offset + buffer.nbytes <= arena_nbytes
    return buffer.nbytes >= 0 and (buffer.space is not MemorySpace.ARENA or inside)


def rows(buffer: Buffer) -> int:
    return buffer.nbytes // buffer.pitch if buffer.pitch else 1


def is_inside(view: View, buffer: Buffer) -> bool:
    if buffer.space is MemorySpace.DYNAMIC:
        return True
    if not rows(buffer) or view.nbytes % rows(buffer) or view.offset < 0 or view.nbytes < 0:
        return False
    spec = TensorSpec(view.buffer, view.dtype, view.shape)
    is_wide_enough = view.offset + view.nbytes // rows(buffer) <= (buffer.pitch or buffer.nbytes)
    return is_wide_enough and (not spec.is_static or spec.nbytes == view.nbytes)


def has_no_hazard(order: Order, buffers: Sequence[Buffer]) -> bool:
    before, found = all_before(order), accesses(order, buffers)
    columns = Access(*np.array(found, np.int64).reshape(-1, len(Access._fields)).T)  # type: ignore[arg-type]
    for one in found:
        touching = np.flatnonzero(touches(one, columns))
        task, space = columns.task[touching], buffers[one.buffer].space
        if one.writes:
            is_ordered = before[task, one.task] | before[one.task, task] | is_own(one, columns)[touching]
            if not is_ordered.all():
                return False
        elif space not in (*READ_ONLY, MemorySpace.INOUT):
            earlier = touching[(columns.writes[touching] == 1) & before[task, one.task]]
            if not is_there(one, [found[index] for index in earlier[::-1]]):
                return False
    writes: list[list[Access]] = [[] for _ in buffers]
    for one in found:
        if one.writes:
            writes[one.buffer].append(one)
    return all(map(is_written, buffers, writes))


def all_before(order: Order) -> np.ndarray:
    """`(tasks, tasks) bool`: what a task follows or waits for, and all that is before that, is done when it starts."""
    before = np.zeros((len(order.tasks),) * 2, np.bool_)
    first = {lane: order.lane.index(lane) for lane in set(order.lane)}
    for number in order.sequence:
        awaited = [first[wait.lane] + wait.steps - 1 for wait in order.tasks[number].waits if wait.steps]
        for other in (*awaited, *([number - 1] if order.step[number] > 1 else [])):
            before[:, number] |= before[:, other]
            before[other, number] = True
    return before


def accesses(order: Order, buffers: Sequence[Buffer]) -> list[Access]:
    """All of the plan, in an order in which the tasks may run."""
    found: list[Access] = []
    for number in order.sequence:
        task = order.tasks[number]
        for view, writes in (*((view, False) for view in task.reads), *((view, True) for view in task.writes)):
            place = next(index for index, buffer in enumerate(buffers) if buffer.name == view.buffer)
            buffer, in_arena = buffers[place], buffers[place].space is MemorySpace.ARENA
            start, stop = view.offset, view.offset + view.nbytes // (rows(buffer) or 1)
            if buffer.space is MemorySpace.DYNAMIC:  # one object whose bytes are not known
                start, stop = 0, 1
            lies = (-1, buffer.offset, buffer.offset + buffer.nbytes) if in_arena else (place, 0, 1)
            if start < stop:
                adds = view in task.in_place and view in task.reads
                found.append(Access(len(found), number, place, start, stop, *lies, writes, adds))
    return found


def touches(one: Access, columns: Access) -> np.ndarray:
    """Of two buffers that lie on the same bytes, all of the one is taken to touch all of the other."""
    inside = (columns.start < one.stop) & (columns.stop > one.start)
    across = (columns.first < one.last) & (columns.last > one.first)
    return np.where(columns.buffer == one.buffer, inside, (columns.space == one.space) & across)


def is_own(one: Access, columns: Access) -> np.ndarray:
    """Whether an access is the write `one`, or by its task the read of the very bytes that it adds to."""
    is_equal = (columns.buffer == one.buffer) & (columns.start == one.start) & (columns.stop == one.stop)
    reads = (columns.task == one.task) & (columns.writes == 0)
    return np.asarray((columns.index == one.index) | (is_equal & reads & one.adds))


def is_there(read: Access, latest_first: Sequence[Access]) -> bool:
    """Whether every byte was last written to the buffer that it is read from.

    Writes that touch the same bytes are ordered, so the last in any order is the last in all of them.
    """
    missing = [(read.start, read.stop)]
    for write in latest_first:
        if missing and write.buffer != read.buffer:
            return False
        missing = without(missing, write.start, write.stop)
    return not missing


def is_written(buffer: Buffer, writes: Sequence[Access]) -> bool:
    """Outputs are written whole, dynamic buffers by one task."""
    if buffer.space is MemorySpace.DYNAMIC:
        return len(writes) == 1
    missing = [(0, buffer.nbytes)] if buffer.space is MemorySpace.OUTPUT and buffer.nbytes else []
    for write in writes:
        missing = without(missing, write.start * rows(buffer), write.stop * rows(buffer))
    return not missing


def without(ranges: Sequence[tuple[int, int]], start: int, stop: int) -> list[tuple[int, int]]:
    """The disjoint ranges without `[start, stop)`."""
    parts = [part for low, high in ranges for part in ((low, min(high, start)), (max(low, stop), high))]
    return [(low, high) for low, high in parts if low < high]


def verdicts(plan: ExecutionPlan) -> tuple[bool, bool]:
    """Whether the check passes the plan, and whether looking at all pairs does."""
    return passes(plan), is_sound(plan)


def passes(plan: ExecutionPlan) -> bool:
    try:
        check(plan)
    except HazardError:
        return False
    return True


@pytest.mark.slow
def test_mutated_plans_with_conflicting_accesses_are_refused() -> None:
    seen: Counter[bool] = Counter()

    @settings(max_examples=400)
    @given(st.integers(0, len(small_plans()) - 1), st.integers(0, 2**32))
    def agree(number: int, seed: int) -> None:
        plan = mutated(small_plans()[number], Random(seed))
        found, wanted = verdicts(plan)
        assert found == wanted
        seen[found] += 1

    agree()
    assert min(seen[True], seen[False]) > 50, "both verdicts are common"


TABLES = (
    Buffer("x", MemorySpace.INPUT, 8),
    Buffer("p", MemorySpace.ARENA, 8, 0, pitch=4),
    Buffer("q", MemorySpace.ARENA, 4, 4),
    Buffer("r", MemorySpace.ARENA, 4, 8),
    Buffer("s", MemorySpace.INOUT, 6, pitch=3),
    Buffer("d", MemorySpace.DYNAMIC, 0),
    Buffer("y", MemorySpace.OUTPUT, 4, pitch=2),
)


@st.composite
def drawn_views(draw: st.DrawFn, names: str) -> View:
    buffer = draw(st.sampled_from([buffer for buffer in TABLES if buffer.name in names]))
    if buffer.space is MemorySpace.DYNAMIC:
        return View(buffer.name, "int64", None)
    width, rows = buffer.pitch or buffer.nbytes, buffer.nbytes // buffer.pitch if buffer.pitch else 1
    start = draw(st.sampled_from([0, 0, 0, 1, 2]).filter(lambda start: start < width))
    nbytes = draw(st.sampled_from([width - start, width - start, 1, 0])) * rows
    return View(buffer.name, "uint8", (nbytes,), start, nbytes)


@st.composite
def drawn_plans(draw: st.DrawFn) -> ExecutionPlan:
    """Plans on tables, in few bytes; a task waits for most of what comes before it in one order of all."""
    n_lanes = draw(st.integers(1, 3))
    lanes: list[list[PlanTask]] = [[] for _ in range(n_lanes)]
    for number in range(draw(st.integers(1, 10))):
        lane = draw(st.integers(0, n_lanes - 1))
        others = [other for other in range(n_lanes) if other != lane and draw(st.sampled_from([True, True, False]))]
        waits = tuple(Wait(other, len(lanes[other])) for other in others)
        written = draw(st.sampled_from([1, 1, 1, 0, 2]))
        writes = tuple(draw(drawn_views("pqrsdy")) for _ in range(written))
        known = {view.buffer for tasks in lanes for task in tasks for view in task.writes} | {"x", "s"}
        reads = tuple(draw(drawn_views("".join(known))) for _ in range(draw(st.integers(0, 2))))
        added = draw(st.sampled_from([True, False, False]))
        in_place = tuple(view for view in writes if added and view.buffer in known)
        reads += tuple(view for view in in_place if draw(st.sampled_from([True, True, True, False])))
        lanes[lane].append(PlanTask(f"k{number}", 0, reads, writes, waits, in_place=in_place))
    named = {view.buffer for tasks in lanes for task in tasks for view in (*task.reads, *task.writes)}
    buffers = tuple(buffer for buffer in TABLES if buffer.name in named or draw(st.sampled_from([True, *[False] * 9])))
    return ExecutionPlan(tuple(map(tuple, lanes)), buffers, 12)


@pytest.mark.slow
def test_random_plans_with_conflicting_accesses_are_refused() -> None:
    seen: Counter[bool] = Counter()

    @settings(max_examples=600)
    @given(drawn_plans())
    def agree(plan: ExecutionPlan) -> None:
        found, wanted = verdicts(plan)
        assert found == wanted
        seen[found] += 1

    agree()
    assert min(seen[True], seen[False]) > 50, "both verdicts are common"


@pytest.mark.parametrize("mutation", dict.fromkeys(MUTATIONS), ids=lambda mutation: mutation.__name__)
def test_every_mutation_is_refused_for_some_plan(mutation: object) -> None:
    draw = Random(0)
    assert any(not passes(mutation(draw.choice(small_plans()), draw)) for _ in range(40))  # type: ignore[operator]


@pytest.mark.slow
@pytest.mark.parametrize("name", zoo.names())
def test_mutated_plans_of_the_networks(name: str) -> None:
    model = zoo_model(name)
    network, draw = LoweredModel(model, Precision("fp32")), Random(0)
    plans = [lower(network, schedule).plan for schedule in (greedy(model.graph), random_schedule(model.graph, 3))]
    with CpuBackend(model, lanes=2) as backend:
        plans += [backend.lower(schedule).plan for schedule in (greedy(backend.graph), random_units(backend.graph, 3))]
    for plan in plans:
        assert verdicts(plan) == (True, True)
        for _ in range(12):
            found, wanted = verdicts(mutated(plan, draw))
            assert found == wanted
