"""Parts of a buffer conflict exactly if they share a byte or column."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from iosched.runtime.waits import LaneStep, Span, find_waits

PARTS = st.lists(st.integers(0, 6), min_size=2, max_size=2, unique=True).map(sorted)


@given(PARTS, PARTS)
def test_parts_overlap_where_they_have_a_byte_in_common(one: list[int], other: list[int]) -> None:
    common = set(range(*one)) & set(range(*other))
    first, second = Span("a", *one), Span("a", *other)
    assert first.overlaps(second) == second.overlaps(first) == bool(common)
    assert not first.overlaps(Span("b", *other))


@given(PARTS, PARTS)
def test_a_step_waits_for_the_lane_that_writes_a_byte_that_it_reads(one: list[int], other: list[int]) -> None:
    writer = LaneStep(0, (), (Span("a", *one),))
    reader = LaneStep(1, (Span("a", *other),), ())
    none, waits = find_waits([writer, reader], 2)
    assert none == ()
    assert bool(waits) == bool(set(range(*one)) & set(range(*other)))
