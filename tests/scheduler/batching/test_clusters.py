"""Clusters hold every model once and fit, and join models that are similar by their common subsequence."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from hypothesis import given
from hypothesis import strategies as st

from iosched.scheduler.batching.clusters import (
    Fits,
    arrival_clusters,
    common_length,
    similar_clusters,
    similarities,
    similarity,
)

LIMIT = 10
sequences = st.lists(st.integers(0, 3), max_size=9)
sizes = st.lists(st.integers(1, 12), min_size=1, max_size=8)


def within(nbytes: Sequence[int]) -> Fits:
    return lambda models: sum(nbytes[model] for model in models) <= LIMIT


@given(sizes, st.data())
def test_every_model_is_in_one_cluster_that_fits(nbytes: list[int], data: st.DataObject) -> None:
    names = [data.draw(st.text("ab", max_size=3)) for _ in nbytes]
    for found in (similar_clusters(similarities(names), within(nbytes)), arrival_clusters(len(nbytes), within(nbytes))):
        assert sorted(model for cluster in found for model in cluster) == list(range(len(nbytes)))
        assert all(len(cluster) == 1 or within(nbytes)(cluster) for cluster in found)


@given(sizes)
def test_no_model_of_a_later_cluster_fits_in_an_earlier_one(nbytes: list[int]) -> None:
    """The paper's algorithm closes a cluster at the first model that does not fit."""
    found = similar_clusters(similarities(["a"] * len(nbytes)), within(nbytes))
    for index, cluster in enumerate(found):
        later = [model for other in found[index + 1 :] for model in other]
        assert not any(within(nbytes)([*cluster, model]) for model in later)


def test_the_most_similar_model_comes_first() -> None:
    square = similarities(["aaaa", "bbbb", "aaab", "aabb"])
    assert similar_clusters(square, lambda models: len(models) <= 3) == ((0, 2, 3), (1,))
    assert arrival_clusters(4, lambda models: len(models) <= 3) == ((0, 1, 2), (3,))


def test_similarity_to_any_member_counts() -> None:
    """The third is similar only to the second, which is in the cluster already."""
    square = ((1.0, 0.9, 0.0, 0.1), (0.9, 1.0, 0.8, 0.0), (0.0, 0.8, 1.0, 0.0), (0.1, 0.0, 0.0, 1.0))
    assert similar_clusters(square, lambda models: len(models) <= 3) == ((0, 1, 2), (3,))


def test_a_model_that_does_not_fit_alone_is_a_separate_cluster() -> None:
    assert similar_clusters(similarities(["a", "a", "a"]), within([11, 4, 4])) == ((0,), (1, 2))


def test_clusters_by_arrival_keep_the_order() -> None:
    assert arrival_clusters(4, within([6, 6, 4, 1])) == ((0,), (1, 2), (3,))


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


def test_sequences_longer_than_a_machine_word_are_compared() -> None:
    one = [index % 7 for index in range(500)]
    assert common_length(one, one) == 500
    assert common_length(one, one[::2]) == 250


def test_similarity_is_1_for_equal_and_0_for_disjoint_models() -> None:
    assert similarity("abc", "abc") == 1
    assert similarity("abc", "xyz") == 0
    assert similarity("abcd", "bd") == 2 * 2 / 6
    assert similarity("", "") == 1


def test_the_similarity_matrix_is_symmetric() -> None:
    assert similarities(["ab", "ab", "b"]) == ((1, 1, 2 / 3), (1, 1, 2 / 3), (2 / 3, 2 / 3, 1))
