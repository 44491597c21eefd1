"""Clusters similar models that fit in memory together (DPBat, algorithms 1 and 2)."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

Fits = Callable[[Sequence[int]], bool]
"""Whether these models fit in memory together; every subset of fitting models fits."""

Clusters = tuple[tuple[int, ...], ...]
"""Models by position; every model is in one cluster, whose models ascend."""


def similar_clusters(similarity: Sequence[Sequence[float]], fits: Fits) -> Clusters:
    """Clusters of similar models, from `similarities`.

    Each starts with the first remaining model and repeatedly adds the model most similar to any member that fits. A
    model that does not fit is skipped; the paper closes the cluster at the first such model, loses the last cluster,
    and starts with a random model. A model that does not even fit alone is a separate cluster. Complexity: O(models
    squared), besides O(models) calls of `fits` for each cluster.
    """
    left = list(range(len(similarity)))
    found: list[tuple[int, ...]] = []
    while left:
        cluster = [left.pop(0)]
        closeness = {model: similarity[cluster[0]][model] for model in left}
        while closeness:
            model = max(closeness, key=lambda other: (closeness[other], -other))
            del closeness[model]
            if not fits([*cluster, model]):
                continue
            cluster.append(model)
            left.remove(model)
            for other in closeness:
                closeness[other] = max(closeness[other], similarity[model][other])
        found.append(tuple(sorted(cluster)))
    return tuple(found)


def arrival_clusters(count: int, fits: Fits) -> Clusters:
    """Clusters of models in the order of arrival; the first that does not fit starts the next cluster."""
    found: list[list[int]] = []
    for model in range(count):
        if found and fits([*found[-1], model]):
            found[-1].append(model)
        else:
            found.append([model])
    return tuple(map(tuple, found))


def common_length(one: Sequence[Hashable], other: Sequence[Hashable]) -> int:
    """Length of the longest common subsequence.

    Bit i of a number is `one[i]`, so a row of the table is one addition of long integers (Crochemore et al., 2001).
    Complexity: O(len(other) * len(one) / 64) besides hashing.
    """
    bits_of: dict[Hashable, int] = {}
    for index, item in enumerate(one):
        bits_of[item] = bits_of.get(item, 0) | 1 << index
    whole = (1 << len(one)) - 1
    row = whole
    for item in other:
        hits = row & bits_of.get(item, 0)
        row = (row + hits | row - hits) & whole
    return len(one) - row.bit_count()


def similarity(one: Sequence[Hashable], other: Sequence[Hashable]) -> float:
    """2 * (length of the longest common subsequence) / (total length): 1 for equal sequences, 0 for disjoint ones."""
    total = len(one) + len(other)
    return 2 * common_length(one, other) / total if total else 1.0


def similarities(sequences: Sequence[Sequence[Hashable]]) -> tuple[tuple[float, ...], ...]:
    """The similarity of every two sequences, as a symmetric matrix."""
    keys = [tuple(sequence) for sequence in sequences]
    known: dict[tuple[tuple[Hashable, ...], tuple[Hashable, ...]], float] = {}
    square = [[1.0] * len(keys) for _ in keys]
    for row, one in enumerate(keys):
        for column in range(row):
            pair = one, keys[column]
            if pair not in known:
                known[pair] = similarity(*pair)
            square[row][column] = square[column][row] = known[pair]
    return tuple(map(tuple, square))
