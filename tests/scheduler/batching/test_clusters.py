"""Clusters hold every model once, each cluster fits, and similar models come together."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from iosched.scheduler.batching.clusters import Fits, arrival_clusters, similar_clusters
from iosched.scheduler.batching.similarity import similarities

LIMIT = 10
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


def test_likeness_to_any_member_counts() -> None:
    """The third is like the second alone, which is in the cluster already."""
    square = ((1.0, 0.9, 0.0, 0.1), (0.9, 1.0, 0.8, 0.0), (0.0, 0.8, 1.0, 0.0), (0.1, 0.0, 0.0, 1.0))
    assert similar_clusters(square, lambda models: len(models) <= 3) == ((0, 1, 2), (3,))


def test_a_model_that_does_not_fit_alone_is_a_cluster_of_its_own() -> None:
    assert similar_clusters(similarities(["a", "a", "a"]), within([11, 4, 4])) == ((0,), (1, 2))


def test_those_that_arrive_are_not_reordered() -> None:
    assert arrival_clusters(4, within([6, 6, 4, 1])) == ((0,), (1, 2), (3,))
