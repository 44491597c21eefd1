"""The search for the most that is free, against trying everything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hypothesis import given
from hypothesis import strategies as st

from iosched.jobs.headroom.result import Ratio
from iosched.jobs.headroom.search import climb

FREE, DEAR = Ratio(1.0, 0.99, 1.01, is_free=True), Ratio(1.2, 1.1, 1.3, is_free=False)
LENGTHS = st.lists(st.integers(1, 9).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))), max_size=4)


def named(lengths: Sequence[tuple[int, int]]) -> list[list[str]]:
    return [[f"{ladder}.{rung}" for rung in range(length)] for ladder, (length, _) in enumerate(lengths)]


@given(LENGTHS)
def test_the_most_that_is_free_is_found_on_every_ladder_with_few_attempts(lengths: list[tuple[int, int]]) -> None:
    """Of each ladder so many rungs are free."""
    asked: list[str] = []

    def attempt(names: Sequence[str]) -> Mapping[str, Ratio]:
        asked.extend(names)
        pairs = (tuple(map(int, name.split("."))) for name in names)
        return {f"{ladder}.{rung}": FREE if rung < lengths[ladder][1] else DEAR for ladder, rung in pairs}

    found = climb(named(lengths), attempt, None)
    assert len(asked) == len(set(asked))
    for (length, n_free), best in zip(lengths, found, strict=True):
        assert best is not None
        assert (best.rung, best.ratio) == ((n_free - 1, FREE) if n_free else (0, DEAR))
        assert best.tried <= 1 + length.bit_length()


def test_what_looked_free_is_judged_by_a_second_attempt_alone() -> None:
    again = Ratio(1.03, 1.01, 1.05, is_free=False)
    (found,) = climb([["a", "b"]], lambda names: dict.fromkeys(names, FREE), lambda names: dict.fromkeys(names, again))
    assert found is not None
    assert (found.rung, found.ratio) == (1, again)


def test_what_was_not_tried_again_is_not_promised() -> None:
    assert climb([["a"]], lambda names: dict.fromkeys(names, FREE), lambda names: {}) == [None]


def test_nothing_is_said_of_a_ladder_that_could_not_be_tried() -> None:
    assert climb([["a"], ["b"], []], lambda names: {"b": DEAR}, None)[::2] == [None, None]


def test_a_search_that_ends_early_says_what_it_knows() -> None:
    """Rung a was free; the ones above were not allowed any more."""
    (found,) = climb([["a", "b", "c"]], lambda names: {"a": FREE} if names == ["a"] else {}, None)
    assert found is not None
    assert (found.rung, found.tried) == (0, 1)
