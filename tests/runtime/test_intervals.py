"""An interval map returns the same values as a dictionary of all numbers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from iosched.runtime.intervals import Intervals

ranges = st.tuples(st.integers(0, 12), st.integers(1, 6)).map(lambda pair: (pair[0], sum(pair)))


@given(st.lists(ranges, max_size=12), ranges)
def test_last_put_value_is_found(puts: list[tuple[int, int]], asked: tuple[int, int]) -> None:
    found: Intervals[int] = Intervals()
    wanted: dict[int, int] = {}
    for value, (start, stop) in enumerate(puts):
        found.put(start, stop, value)
        wanted.update(dict.fromkeys(range(start, stop), value))
    for parts, inside in ((list(found), range(30)), (found.within(*asked), range(*asked))):
        told = [(number, value) for start, stop, value in parts for number in range(start, stop)]
        assert told == sorted((number, value) for number, value in wanted.items() if number in inside)
