"""Which models are put together: those that are alike, as many as fit in the memory (DPBat, algorithm 2).

Two models are as alike as they have operators in the same order (DPBat, algorithm 1).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

Fits = Callable[[Sequence[int]], bool]
"""Whether these models fit in the memory together; if some do, so do any of them alone."""

Clusters = tuple[tuple[int, ...], ...]
"""Models by their positions; every model is in one cluster, and the models of each stand in ascending order."""


def similar_clusters(similarity: Sequence[Sequence[float]], fits: Fits) -> Clusters:
    """Clusters of similar models.

    Each begins with the first model that is in none, and takes the model that is most like any of its own, again and
    again, while one is left that fits. A model that does not fit is passed over, and those after it are tried: the
    paper closes the cluster at the first such model, and loses the last cluster. The paper begins with a model at
    random.

    A model that does not even fit alone is a cluster of its own.

    Args:
        similarity: of every two models, as `similarities` gives it.
        fits: see `Fits`; it is asked O(models) times for each cluster.

    Complexity: O(models squared), beside `fits`.
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
    """Clusters of models in the order in which they came; the first that does not fit begins the next cluster."""
    found: list[list[int]] = []
    for model in range(count):
        if found and fits([*found[-1], model]):
            found[-1].append(model)
        else:
            found.append([model])
    return tuple(map(tuple, found))


def common_length(one: Sequence[Hashable], other: Sequence[Hashable]) -> int:
    """Length of the longest common subsequence.

    Bit i of a number stands for `one[i]`, so a row of the table is one addition of long integers (Crochemore et al.,
    2001). Complexity: O(len(other) * len(one) / 64) beside hashing.
    """
    places: dict[Hashable, int] = {}
    for index, item in enumerate(one):
        places[item] = places.get(item, 0) | 1 << index
    whole = (1 << len(one)) - 1
    row = whole
    for item in other:
        hits = row & places.get(item, 0)
        row = (row + hits | row - hits) & whole
    return len(one) - row.bit_count()


def similarity(one: Sequence[Hashable], other: Sequence[Hashable]) -> float:
    """2 * (length of the longest common subsequence) / (length of both): 1 for equal sequences, 0 for unlike ones."""
    total = len(one) + len(other)
    return 2 * common_length(one, other) / total if total else 1.0


def similarities(sequences: Sequence[Sequence[Hashable]]) -> tuple[tuple[float, ...], ...]:
    """The similarity of every two sequences, as a symmetric square; equal pairs are computed once."""
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
