"""Parts of a buffer that no task views together become buffers, whose memory is reused separately."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from iosched.runtime.arena import ALIGNMENT_NBYTES, place
from iosched.runtime.buffer_parts import place_parts, split_buffers
from iosched.runtime.plan import Buffer, MemorySpace, PlanTask, View


def seen(name: str, nbytes: int, offset: int = 0) -> View:
    return View(name, "uint8", (nbytes,), offset, nbytes)


def task(*writes: View, reads: tuple[View, ...] = (), in_place: tuple[View, ...] = ()) -> PlanTask:
    return PlanTask("t", 0, reads, writes, in_place=in_place)


def test_lanes_that_never_meet_need_two_tensors_each() -> None:
    nbytes, n_tensors, n_lanes = ALIGNMENT_NBYTES, 10, 4
    lanes = tuple(
        tuple(
            task(
                seen(f"t{number}", nbytes, lane * nbytes),
                reads=(seen(f"t{number - 1}", nbytes, lane * nbytes),) if number else (),
            )
            for number in range(n_tensors)
        )
        for lane in range(n_lanes)
    )
    whole = [Buffer(f"t{number}", MemorySpace.ARENA, n_lanes * nbytes) for number in range(n_tensors)]
    assert place(lanes, whole)[1] == n_tensors * n_lanes * nbytes
    assert place_parts(lanes, whole)[2] == 2 * n_lanes * nbytes


def test_parts_that_make_the_arena_larger_stay_together() -> None:
    """Every tensor has two parts, written on one lane after all is read: two groups cannot share memory."""
    big, small = 4 * ALIGNMENT_NBYTES, ALIGNMENT_NBYTES
    a, b, c = (seen("a", big), seen("a", small, big)), (seen("b", small), seen("b", big, small)), seen("c", 1)
    lanes = ((task(*a), task(c, reads=a), task(*b, reads=(c,)), task(seen("d", 1), reads=b)),)
    sizes = {"a": big + small, "b": big + small, "c": 1, "d": 1}
    buffers = [Buffer(name, MemorySpace.ARENA, nbytes) for name, nbytes in sizes.items()]
    tasks, groups = split_buffers(lanes, buffers)
    assert place_parts(lanes, buffers) == (lanes, *place(lanes, buffers))
    assert place(tasks, *groups)[1] > place(lanes, buffers)[1]


def test_a_view_across_parts_keeps_them_together() -> None:
    lanes = ((task(seen("a", 64)), task(seen("a", 64, 64)), task(seen("b", 8), reads=(seen("a", 96, 32),))),)
    buffers = (Buffer("a", MemorySpace.ARENA, 128), Buffer("b", MemorySpace.ARENA, 8))
    assert split_buffers(lanes, buffers) == (lanes, [[*buffers]])


def test_arrays_of_the_caller_and_tables_stay_whole() -> None:
    lanes = ((task(seen("a", 4)), task(seen("a", 4, 4))),)
    for buffer in (Buffer("a", MemorySpace.OUTPUT, 8), Buffer("a", MemorySpace.ARENA, 8, pitch=8)):
        assert split_buffers(lanes, (buffer,)) == (lanes, [[buffer]])


def test_a_task_that_adds_in_place_still_does() -> None:
    second = seen("a", 4, 4)
    lanes = ((task(seen("a", 4)), task(second), task(second, reads=(second,), in_place=(second,))),)
    (lane,), groups = split_buffers(lanes, (Buffer("a", MemorySpace.ARENA, 8),))
    assert groups == [[], [Buffer("a#0", MemorySpace.ARENA, 4)], [Buffer("a#4", MemorySpace.ARENA, 4)]]
    assert lane[2].in_place == lane[2].reads == lane[2].writes == (seen("a#4", 4),)


def test_names_of_parts_are_new() -> None:
    lanes = ((task(seen("a", 4)), task(seen("a", 4, 4)), task(seen("a#4", 1))),)
    _, groups = split_buffers(lanes, [Buffer("a", MemorySpace.ARENA, 8), Buffer("a#4", MemorySpace.ARENA, 1)])
    assert [buffer.name for group in groups for buffer in group] == ["a#4", "a##0", "a##4"]


@st.composite
def ranges(draw: st.DrawFn) -> list[tuple[int, int]]:
    """Offsets and sizes of views of 32 bytes, some empty."""
    starts = draw(st.lists(st.integers(0, 31), min_size=1, max_size=8))
    return [(start, draw(st.integers(0, min(32 - start, 9)))) for start in starts]


@given(ranges())
def test_views_share_bytes_exactly_as_before(views: list[tuple[int, int]]) -> None:
    lanes = (tuple(task(seen("a", nbytes, offset)) for offset, nbytes in views),)
    (lane,), groups = split_buffers(lanes, (Buffer("a", MemorySpace.ARENA, 32),))
    buffers = [buffer for group in groups for buffer in group]
    start, starts = 0, {}
    for buffer in buffers:
        starts[buffer.name] = start
        start += buffer.nbytes
    assert start == 32, "the parts are the whole buffer, in order"
    moved = [each.writes[0] for each in lane]
    assert [(starts[view.buffer] + view.offset, view.nbytes) for view in moved] == views
    size = {buffer.name: buffer.nbytes for buffer in buffers}
    assert all(view.offset + view.nbytes <= size[view.buffer] for view in moved)
    used = {offset + byte for offset, nbytes in views for byte in range(nbytes)}
    across = {offset + byte for offset, nbytes in views for byte in range(1, nbytes)}
    first_used = sorted(byte for byte in used if byte not in across)
    assert len(buffers) == max(len(first_used), 1), "a part begins at each used byte that no view runs across"
