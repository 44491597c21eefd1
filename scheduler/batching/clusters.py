"""Which models are put together: those that are alike, as many as fit in the memory (DPBat, algorithm 2)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

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
