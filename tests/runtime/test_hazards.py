"""A plan passes exactly when no interleaving of its lanes can change what its tasks read."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from calls import count_calls
from hypothesis import given, settings
from hypothesis import strategies as st

from iosched.runtime.hazards import HazardError, check
from iosched.runtime.plan import Buffer, ExecutionPlan, MemorySpace, PlanTask, View, Wait


def seen(buffer: str, nbytes: int = 64, offset: int = 0) -> View:
    return View(buffer, "uint8", (nbytes,), offset, nbytes)


def task(name: str, reads: list[View], writes: list[View], *waits: tuple[int, int]) -> PlanTask:
    return PlanTask(name, 0, tuple(reads), tuple(writes), tuple(Wait(*wait) for wait in waits))


def concat_plan() -> ExecutionPlan:
    """x -> a | b side by side -> both into slices of c -> y; t is scratch of `left` on a's bytes."""
    lanes = (
        (
            task("a", [seen("x")], [seen("a")]),
            task("left", [seen("a")], [seen("c", 64)]),
            task("y", [seen("c", 192)], [seen("y", 192)], (1, 2)),
        ),
        (
            task("b", [seen("x")], [seen("b", 128)]),
            task("right", [seen("b", 128), seen("a")], [seen("c", 128, 64)], (0, 1)),
        ),
    )
    buffers = (
        Buffer("x", MemorySpace.INPUT, 64),
        Buffer("a", MemorySpace.ARENA, 64, 0),
        Buffer("b", MemorySpace.ARENA, 128, 64),
        Buffer("c", MemorySpace.ARENA, 192, 192),
        Buffer("y", MemorySpace.OUTPUT, 192),
    )
    return ExecutionPlan(lanes, buffers, 384)


def with_task(plan: ExecutionPlan, lane: int, step: int, changed: PlanTask) -> ExecutionPlan:
    lanes = [list(tasks) for tasks in plan.lanes]
    lanes[lane][step] = changed
    return replace(plan, lanes=tuple(map(tuple, lanes)))


def with_buffer(plan: ExecutionPlan, name: str, **changes: object) -> ExecutionPlan:
    return replace(plan, buffers=tuple(replace(b, **changes) if b.name == name else b for b in plan.buffers))


def test_a_sound_plan_passes() -> None:
    check(concat_plan())


@pytest.mark.parametrize("changes", [{"offset": 193}, {"offset": 384}, {"offset": -1}, {"nbytes": 193}], ids=str)
def test_buffer_is_completely_inside_the_arena(changes: dict[str, int]) -> None:
    with pytest.raises(HazardError, match="buffer 'c' is outside the arena of 384 bytes"):
        check(with_buffer(concat_plan(), "c", **changes))


@pytest.mark.parametrize(("lane", "step"), [(0, 2), (1, 1)])
def test_dropping_any_wait_is_caught(lane: int, step: int) -> None:
    plan = concat_plan()
    with pytest.raises(HazardError, match=plan.lanes[lane][step].name):
        check(with_task(plan, lane, step, replace(plan.lanes[lane][step], waits=())))


def test_a_wait_one_step_short_is_caught_and_names_both_tasks() -> None:
    plan = concat_plan()
    with pytest.raises(HazardError, match=r"'right' and 'y'|'y' and 'right'"):
        check(with_task(plan, 0, 2, replace(plan.lanes[0][2], waits=(Wait(1, 1),))))


@pytest.mark.parametrize(("moved", "offset"), [("a", 64), ("a", 300), ("b", 0), ("b", 200), ("c", 0), ("c", 127)])
def test_moving_a_buffer_onto_a_live_one_is_caught(moved: str, offset: int) -> None:
    with pytest.raises(HazardError):
        check(with_buffer(concat_plan(), moved, offset=offset))


def test_swapping_the_slices_of_a_concat_is_caught() -> None:
    plan = concat_plan()
    left, right = plan.lanes[0][1], plan.lanes[1][1]
    swapped = with_task(plan, 0, 1, replace(left, writes=(seen("c", 64, 64),)))
    swapped = with_task(swapped, 1, 1, replace(right, writes=(seen("c", 128, 0),)))
    with pytest.raises(HazardError, match=r"'left' and 'right'|'right' and 'left'"):
        check(swapped)


def test_read_of_another_buffers_bytes_is_refused() -> None:
    lane = (
        task("a", [], [seen("a")]),
        task("b", [], [seen("b")]),
        task("y", [seen("a")], [seen("y")]),
    )
    buffers = (
        Buffer("a", MemorySpace.ARENA, 64, 0),
        Buffer("b", MemorySpace.ARENA, 64, 0),
        Buffer("y", MemorySpace.OUTPUT, 64),
    )
    with pytest.raises(HazardError, match="'y' reads 'a' where task 'b' has last written 'b'"):
        check(ExecutionPlan((lane,), buffers, 64))


@pytest.mark.parametrize("offsets", [(0, 64), (64, 0)])
def test_a_buffer_on_the_bytes_of_two_comes_after_both(offsets: tuple[int, int]) -> None:
    lane = (
        task("a", [], [seen("a")]), task("u", [seen("a")], [seen("u")]),
        task("b", [], [seen("b")]), task("v", [seen("b")], [seen("v")]),
    )  # fmt: skip
    buffers = (
        *(Buffer(name, MemorySpace.ARENA, 64, offset) for name, offset in zip("ab", offsets, strict=True)),
        *(Buffer(name, MemorySpace.OUTPUT, 64) for name in "uv"),
        Buffer("c", MemorySpace.ARENA, 128),
    )
    for steps in range(4):
        with pytest.raises(HazardError, match="'c'"):
            check(ExecutionPlan((lane, (task("c", [], [seen("c", 128)], (0, steps)),)), buffers, 128))
    check(ExecutionPlan((lane, (task("c", [], [seen("c", 128)], (0, 4)),)), buffers, 128))


@pytest.mark.parametrize(
    ("reads", "writes", "words"),
    [
        ([seen("a")], [seen("y")], "no task before it has written"),
        ([seen("x")], [seen("y", 32)], "never written"),
        ([seen("x")], [seen("y"), seen("y", 8)], "a second time"),
        ([], [seen("y"), seen("x")], "input 'x' is written"),
        ([seen("x", 65)], [seen("y")], "which has 64"),
        ([seen("x", 8, -8)], [seen("y")], "which has 64"),
        ([View("x", "float32", (64,), 0, 64)], [seen("y")], "as float32"),
        ([seen("z")], [seen("y")], "which the plan does not have"),
        ([View("d", "int64", None)], [seen("y")], "no task before it has written"),
    ],
)
def test_invalid_views_are_caught(reads: list[View], writes: list[View], words: str) -> None:
    buffers = [
        Buffer("x", MemorySpace.INPUT, 64),
        Buffer("a", MemorySpace.ARENA, 64),
        Buffer("y", MemorySpace.OUTPUT, 64),
    ]
    if "d" in (view.buffer for view in reads):
        buffers.append(Buffer("d", MemorySpace.DYNAMIC, 0))
    with pytest.raises(HazardError, match=words):
        check(ExecutionPlan(((task("t", reads, writes),),), tuple(buffers), 64))


def test_task_must_not_write_its_reads() -> None:
    lane = (task("a", [], [seen("a")]), task("b", [seen("a", 32)], [seen("a", 32, 16)]))
    with pytest.raises(HazardError, match="'b' writes bytes of 'a' that it reads"):
        check(ExecutionPlan((lane,), (Buffer("a", MemorySpace.ARENA, 64),), 64))


def adding_plan(reads: list[View], in_place: tuple[View, ...], *waits: tuple[int, int]) -> ExecutionPlan:
    """A task adds to the second half of `a`, which another lane reads too."""
    other = task("other", [seen("a")], [seen("y")], (0, 1))
    adds = replace(task("adds", reads, [seen("a", 32, 32)], *waits), in_place=in_place)
    lanes = ((task("a", [], [seen("a")]), adds), (other,))
    return ExecutionPlan(lanes, (Buffer("a", MemorySpace.ARENA, 64), Buffer("y", MemorySpace.OUTPUT, 64)), 64)


def test_task_may_add_in_place() -> None:
    half = seen("a", 32, 32)
    check(adding_plan([half, seen("a", 32)], (half,), (1, 1)))
    with pytest.raises(HazardError, match="'adds' writes bytes of 'a' that it reads"):
        check(adding_plan([half], (), (1, 1)))


def test_in_place_operand_has_no_other_read() -> None:
    half = seen("a", 32, 32)
    for reads in ([half, seen("a")], [half, seen("a", 8, 40)], [seen("a")]):
        with pytest.raises(HazardError, match="'adds' writes bytes of 'a' that it reads"):
            check(adding_plan(reads, (half,), (1, 1)))


def test_in_place_addition_follows_other_readers() -> None:
    half = seen("a", 32, 32)
    with pytest.raises(HazardError, match="not ordered"):
        check(adding_plan([half], (half,)))


@pytest.mark.parametrize(
    ("wait", "words"),
    [
        (Wait(2, 0), "lane 2 of 2"),
        (Wait(-1, 0), "lane -1"),
        (Wait(0, 1), "lane 0 of 2"),
        (Wait(1, 2), "which has 1"),
        (Wait(1, -1), "step -1"),
    ],
)
def test_waits_for_unknown_steps_are_refused(wait: Wait, words: str) -> None:
    lanes = ((PlanTask("a", 0, (), (), (wait,)),), (PlanTask("b", 0, (), ()),))
    with pytest.raises(HazardError, match=words):
        check(ExecutionPlan(lanes, (), 0))


def test_lanes_that_wait_for_each_other_are_caught() -> None:
    lanes = ((task("a", [], [], (1, 1)),), (task("b", [], [], (0, 1)),))
    with pytest.raises(HazardError, match="in a deadlock"):
        check(ExecutionPlan(lanes, (), 0))


def test_dynamic_values_need_their_writer_first() -> None:
    view = View("d", "int64", None)
    buffers = (Buffer("d", MemorySpace.DYNAMIC, 0), Buffer("y", MemorySpace.OUTPUT, 64))
    lanes = ((task("d", [], [view]),), (task("y", [view], [seen("y")], (0, 1)),))
    with pytest.raises(HazardError, match="written 2 times"):
        check(ExecutionPlan(((*lanes[0], *lanes[0]), (replace(lanes[1][0], waits=(Wait(0, 2),)),)), buffers, 0))
    check(ExecutionPlan(lanes, buffers, 0))
    with pytest.raises(HazardError, match=r"'d' and 'y'|'y' and 'd'"):
        check(ExecutionPlan((lanes[0], (replace(lanes[1][0], waits=()),)), buffers, 0))


def test_empty_tensors_share_no_bytes() -> None:
    lane = (task("a", [], [seen("a")]), task("e", [seen("a")], [seen("e", 0)]), task("y", [seen("e", 0)], [seen("y")]))
    buffers = (
        Buffer("a", MemorySpace.ARENA, 64),
        Buffer("e", MemorySpace.ARENA, 0, 32),
        Buffer("y", MemorySpace.OUTPUT, 64),
    )
    check(ExecutionPlan((lane,), buffers, 64))


def test_plan_outputs_must_be_existing_output_buffers() -> None:
    plan = concat_plan()
    check(replace(plan, outputs=(seen("y", 192),)))
    with pytest.raises(HazardError, match="space 'arena'"):
        check(replace(plan, outputs=(seen("c", 192),)))
    with pytest.raises(HazardError, match="does not have"):
        check(replace(plan, outputs=(seen("z", 192),)))


# --- against brute force --------------------------------------------------------------------------------------------

BUFFERS = (
    Buffer("x", MemorySpace.INPUT, 2),
    Buffer("a", MemorySpace.ARENA, 2, 0),
    Buffer("b", MemorySpace.ARENA, 2, 2),
    Buffer("c", MemorySpace.ARENA, 3, 1),
)


@st.composite
def plans(draw: st.DrawFn) -> ExecutionPlan:
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3).filter(lambda sizes: sum(sizes) <= 6))
    name = iter("abcdefgh")
    lanes = []
    for lane, size in enumerate(sizes):
        others = [other for other in range(len(sizes)) if other != lane]
        lanes.append(tuple(draw(tasks(next(name), others, sizes)) for _ in range(size)))
    return ExecutionPlan(tuple(lanes), BUFFERS, 4)


@st.composite
def tasks(draw: st.DrawFn, name: str, others: list[int], sizes: list[int]) -> PlanTask:
    waits = [Wait(lane, draw(st.integers(0, sizes[lane]))) for lane in others if draw(st.booleans())]
    reads = draw(st.lists(views(("x", "a", "b", "c")), max_size=1))
    return PlanTask(name, 0, tuple(reads), tuple(draw(st.lists(views(("a", "b", "c")), max_size=1))), tuple(waits))


@st.composite
def views(draw: st.DrawFn, names: tuple[str, ...]) -> View:
    name = draw(st.sampled_from(names))
    size = {buffer.name: buffer.nbytes for buffer in BUFFERS}[name]
    offset = draw(st.integers(0, size - 1))
    return seen(name, draw(st.integers(1, size - offset)), offset)


def interleavings(plan: ExecutionPlan, done: tuple[int, ...]) -> list[list[tuple[int, int]] | None]:
    """Every order in which the tasks can run; None represents one that deadlocks."""
    ready = [
        lane
        for lane, tasks in enumerate(plan.lanes)
        if done[lane] < len(tasks) and all(done[wait.lane] >= wait.steps for wait in tasks[done[lane]].waits)
    ]
    if not ready:
        return [[]] if all(d == len(tasks) for d, tasks in zip(done, plan.lanes, strict=True)) else [None]
    found: list[list[tuple[int, int]] | None] = []
    for lane in ready:
        for rest in interleavings(plan, tuple(d + (i == lane) for i, d in enumerate(done))):
            found.append(None if rest is None else [(lane, done[lane]), *rest])
    return found


def touched(view: View) -> set[tuple[str, int]]:
    if view.buffer == "x":
        return {("x", byte) for byte in range(view.offset, view.offset + view.nbytes)}
    base = {buffer.name: buffer.offset for buffer in BUFFERS}[view.buffer] + view.offset
    return {("", byte) for byte in range(base, base + view.nbytes)}


def whole(name: str) -> set[tuple[str, int]]:
    """All bytes of a buffer."""
    return touched(next(seen(name, buffer.nbytes) for buffer in BUFFERS if buffer.name == name))


def meet(first: View, second: View) -> bool:
    """Two buffers that lie on the same bytes touch each other whole."""
    if first.buffer == second.buffer:
        return not touched(first).isdisjoint(touched(second))
    return not whole(first.buffer).isdisjoint(whole(second.buffer))


def writers_of_reads(plan: ExecutionPlan, run: list[tuple[int, int]]) -> dict[tuple[int, int], list[object]] | None:
    """The writers of the bytes that each task reads; None if one reads bytes of another buffer."""
    memory: dict[tuple[str, int], tuple[str, tuple[int, int]]] = {("x", byte): ("x", (-1, -1)) for byte in range(2)}
    result = {}
    for place in run:
        current = plan.lanes[place[0]][place[1]]
        for view in current.reads:
            if any(memory.get(byte, ("?",))[0] != view.buffer for byte in touched(view)):
                return None
        result[place] = [sorted(memory[byte] for byte in touched(view)) for view in current.reads]
        for view in current.writes:
            taken = {name for name in "abc" if name != view.buffer and not whole(name).isdisjoint(whole(view.buffer))}
            memory = {byte: writer for byte, writer in memory.items() if writer[0] not in taken}
            memory.update(dict.fromkeys(touched(view), (view.buffer, place)))
    return result


def conflict_order(plan: ExecutionPlan, run: list[tuple[int, int]]) -> set[tuple[tuple[int, int], tuple[int, int]]]:
    """Pairs of tasks with conflicting accesses, in the order of this run."""

    def clash(first: tuple[int, int], second: tuple[int, int]) -> bool:
        one, other = (plan.lanes[lane][index] for lane, index in (first, second))
        read = any(meet(a, b) for a, b in (*product(one.reads, other.writes), *product(one.writes, other.reads)))
        return read or (first != second and any(meet(a, b) for a, b in product(one.writes, other.writes)))

    return {(a, b) for i, a in enumerate(run) for b in run[i:] if clash(a, b)}


def is_sound(plan: ExecutionPlan) -> bool:
    runs = interleavings(plan, (0,) * len(plan.lanes))
    complete = [run for run in runs if run is not None]
    if len(complete) < len(runs):
        return False
    values = [writers_of_reads(plan, run) for run in complete]
    orders = [conflict_order(plan, run) for run in complete]
    return None not in values and all(a != b for a, b in orders[0]) and all(order == orders[0] for order in orders)


@pytest.mark.slow
@settings(max_examples=250)
@given(plans())
def test_the_check_agrees_with_running_every_interleaving(plan: ExecutionPlan) -> None:
    try:
        check(plan)
    except HazardError:
        assert not is_sound(plan)
    else:
        assert is_sound(plan)


def relay(n: int) -> ExecutionPlan:
    """Two lanes that hand a tensor to each other, n times."""
    lanes: tuple[list[PlanTask], list[PlanTask]] = ([], [])
    buffers = [Buffer("t0", MemorySpace.INPUT, 1024)]
    for i in range(1, n):
        lane = i % 2
        buffers.append(Buffer(f"t{i}", MemorySpace.ARENA, 1024, i % 50 * 1024))
        wait = (1 - lane, len(lanes[1 - lane]))
        lanes[lane].append(task(f"k{i}", [seen(f"t{i - 1}", 1024)], [seen(f"t{i}", 1024)], wait))
    return ExecutionPlan(tuple(map(tuple, lanes)), tuple(buffers), 50 * 1024)


def test_the_check_scales_far_better_than_quadratically() -> None:
    short, long = relay(600), relay(2400)
    assert count_calls(lambda: check(long)) < 8 * count_calls(lambda: check(short))


def table_plan(*columns: tuple[str, int, int]) -> ExecutionPlan:
    """Lane k writes columns [start, start + width) of a table of 4 rows of 16 bytes; then lane 0 reads all of it."""
    writers = [task(name, [seen("x")], [View("t", "uint8", None, at, 4 * width)]) for name, at, width in columns]
    waits = tuple((lane, 1) for lane in range(1, len(writers)))
    reader = task("read", [View("t", "uint8", None, 0, 64)], [seen("y")], *waits)
    lanes = tuple((writer, reader) if lane == 0 else (writer,) for lane, writer in enumerate(writers))
    buffers = (
        Buffer("x", MemorySpace.INPUT, 64),
        Buffer("t", MemorySpace.ARENA, 64, 0, pitch=16),
        Buffer("y", MemorySpace.OUTPUT, 64),
    )
    return ExecutionPlan(lanes, buffers, 64)


def test_columns_of_a_table_are_written_side_by_side() -> None:
    check(table_plan(("a", 0, 4), ("b", 4, 12)))


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ((("a", 0, 5), ("b", 4, 12)), "not ordered"),
        ((("a", 0, 4), ("b", 5, 11)), "no task before it has written"),
        ((("a", 0, 4), ("b", 4, 13)), "sees bytes"),
    ],
)
def test_columns_that_overlap_or_miss_some_are_caught(columns: tuple[tuple[str, int, int], ...], words: str) -> None:
    with pytest.raises(HazardError, match=words):
        check(table_plan(*columns))


def test_another_buffer_on_the_bytes_of_a_table_touches_all_of_its_columns() -> None:
    """Its own bytes lie in the first rows alone, but every column has bytes there."""
    plan = table_plan(("a", 0, 4), ("b", 4, 12))
    intruder = task("intruder", [seen("x")], [seen("z", 16)])
    lanes = (plan.lanes[0], (*plan.lanes[1], intruder))
    with pytest.raises(HazardError, match="'t'"):
        check(replace(plan, lanes=lanes, buffers=(*plan.buffers, Buffer("z", MemorySpace.ARENA, 16, 0))))


def test_weights_are_read_and_never_written() -> None:
    good = ExecutionPlan(
        ((task("a", [seen("w")], [seen("y")]),),),
        (Buffer("w", MemorySpace.WEIGHT, 64), Buffer("y", MemorySpace.OUTPUT, 64)),
        0,
    )
    check(good)
    with pytest.raises(HazardError, match="weight 'w' is written"):
        check(with_task(good, 0, 0, task("a", [], [seen("y"), seen("w")])))
