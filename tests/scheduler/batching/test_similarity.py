"""Similarity is that of the longest common subsequence."""

from __future__ import annotations

from functools import cache

from hypothesis import given
from hypothesis import strategies as st

from iosched.scheduler.batching.similarity import common_length, similarities, similarity

sequences = st.lists(st.integers(0, 3), max_size=9)


def by_definition(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    @cache
    def length(i: int, j: int) -> int:
        if i == len(one) or j == len(other):
            return 0
        both = 1 + length(i + 1, j + 1) if one[i] == other[j] else 0
        return max(both, length(i + 1, j), length(i, j + 1))

    return length(0, 0)


@given(sequences, sequences)
def test_the_common_length_is_that_of_the_definition(one: list[int], other: list[int]) -> None:
    assert common_length(one, other) == by_definition(tuple(one), tuple(other))


def test_long_sequences_need_more_than_one_word() -> None:
    one = [index % 7 for index in range(500)]
    assert common_length(one, one) == 500
    assert common_length(one, one[::2]) == 250


def test_equal_models_are_wholly_alike_and_others_not_at_all() -> None:
    assert similarity("abc", "abc") == 1
    assert similarity("abc", "xyz") == 0
    assert similarity("abcd", "bd") == 2 * 2 / 6
    assert similarity("", "") == 1


def test_the_square_is_symmetric() -> None:
    assert similarities(["ab", "ab", "b"]) == ((1, 1, 2 / 3), (1, 1, 2 / 3), (2 / 3, 2 / 3, 1))
