"""Interval map: values on disjoint ranges of integers."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Generic, TypeVar

Value = TypeVar("Value")


class Intervals(Generic[Value]):
    """A sorted map of half-open ranges `[start, stop)` to values.

    A new range replaces what it overlaps. Replaced pieces are at most those added, plus two for each `put`, so walks
    over replaced pieces are linear in the number of puts.
    """

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []
        self._values: list[Value] = []

    def within(self, start: int, stop: int) -> list[tuple[int, int, Value]]:
        """The parts of ranges inside `[start, stop)`; O(log ranges + parts)."""
        found = self._touching(start, stop)
        first = found.start
        if first == found.stop:
            return []
        if self._starts[first] <= start and stop <= self._stops[first]:
            return [(start, stop, self._values[first])]
        parts = zip(self._starts[found], self._stops[found], self._values[found], strict=True)
        return [(max(low, start), min(high, stop), value) for low, high, value in parts]

    def put(self, start: int, stop: int, value: Value) -> None:
        """Set the value of `[start, stop)`, which is not empty; O(log ranges), plus shifting later ranges."""
        found = self._touching(start, stop)
        first, last = found.start, found.stop - 1
        if first > last:
            self._starts.insert(first, start)
            self._stops.insert(first, stop)
            self._values.insert(first, value)
            return
        parts = [(start, stop, value)]
        if self._starts[first] < start:
            parts.insert(0, (self._starts[first], start, self._values[first]))
        if self._stops[last] > stop:
            parts.append((stop, self._stops[last], self._values[last]))
        self._starts[found] = [part[0] for part in parts]
        self._stops[found] = [part[1] for part in parts]
        self._values[found] = [part[2] for part in parts]

    def __iter__(self) -> Iterator[tuple[int, int, Value]]:
        return zip(self._starts, self._stops, self._values, strict=True)

    def _touching(self, start: int, stop: int) -> slice:
        return slice(bisect_right(self._stops, start), bisect_left(self._starts, stop))
