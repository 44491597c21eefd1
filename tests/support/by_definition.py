"""Small graphs, and oracles that apply the definitions to them by brute force."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations

from hypothesis import strategies as st

from iosched.models.graph import ComputationGraph, Operator, TensorSpec
from iosched.scheduler.schedule import Stage

Edges = list[tuple[int, int]]


def graph_of(n: int, edges: Edges) -> ComputationGraph:
    """Operators "0" to "n - 1"; those without predecessors read the graph's input "x"."""
    before = {index: [str(a) for a, b in edges if b == index] for index in range(n)}
    operators = tuple(
        Operator(str(index), "Op", (str(index),), tuple(before[index]) or ("x",), (str(index),)) for index in range(n)
    )
    return ComputationGraph("random", (TensorSpec("x", "float32", (1,)),), (str(n - 1),), operators, ())


@st.composite
def dags(draw: st.DrawFn, most: int = 8) -> ComputationGraph:
    n = draw(st.integers(1, most))
    pairs = list(combinations(range(n), 2))
    chosen = draw(st.lists(st.booleans(), min_size=len(pairs), max_size=len(pairs)))
    return graph_of(n, [pair for pair, keep in zip(pairs, chosen, strict=True) if keep])


def groups_of(graph: ComputationGraph, ending: frozenset[str]) -> list[frozenset[str]]:
    """Weakly connected components, by uniting until nothing changes."""
    groups = [frozenset([name]) for name in ending]
    edges = [(a, b) for b in ending for a in graph.predecessors[b] if a in ending]
    for a, b in edges:
        one = next(group for group in groups if a in group)
        two = next(group for group in groups if b in group)
        if one != two:
            groups = [group for group in groups if group not in (one, two)] + [one | two]
    return groups


def endings_of(
    graph: ComputationGraph, state: frozenset[str], r: int | None, s: int | None
) -> Iterator[frozenset[str]]:
    """Subsets of `state` that no edge leaves towards the rest of it, under pruning."""
    names = sorted(state)
    for size in range(1, len(names) + 1):
        for chosen in combinations(names, size):
            ending = frozenset(chosen)
            if any(before in ending for name in state - ending for before in graph.predecessors[name]):
                continue
            groups = groups_of(graph, ending)
            if (s is None or len(groups) <= s) and (r is None or all(len(group) <= r for group in groups)):
                yield ending


def schedules_of(
    graph: ComputationGraph, state: frozenset[str], r: int | None, s: int | None
) -> Iterator[tuple[frozenset[str], ...]]:
    """Every schedule of `state`: its stages, last one first."""
    if not state:
        yield ()
        return
    for ending in endings_of(graph, state, r, s):
        for rest in schedules_of(graph, state - ending, r, s):
            yield (ending, *rest)


def best_us(
    graph: ComputationGraph,
    latency_us: Callable[[frozenset[str]], float],
    r: int | None,
    s: int | None,
    whole: frozenset[str] | None = None,
) -> float:
    """The least total latency of any schedule of the whole graph: state by state, from the definition of an ending.

    Args:
        whole: the operators that are scheduled, where that is only a block of the graph.
    """
    best: dict[frozenset[str], float] = {frozenset(): 0.0}

    def least(state: frozenset[str]) -> float:
        if state not in best:
            best[state] = min(latency_us(ending) + least(state - ending) for ending in endings_of(graph, state, r, s))
        return best[state]

    return least(frozenset(graph.by_name) if whole is None else whole)


class TableCost:
    """An arbitrary but fixed latency for each stage; counts the questions."""

    def __init__(self, seed: int, bound_factor: float = 0.0) -> None:
        self.seed = seed
        self.bound_factor = bound_factor
        self.asked: list[Stage] = []

    def latency_us(self, names: frozenset[str], way: str = "concurrent") -> float:
        import hashlib

        digest = hashlib.sha256(f"{self.seed} {way} {sorted(names)}".encode()).digest()
        return 1.0 + int.from_bytes(digest[:2]) % 40 + len(names) * (digest[2] % 8)

    def stage_latency_us(self, stage: Stage) -> float:
        self.asked.append(stage)
        return self.latency_us(frozenset(stage.operators), stage.strategy.value)

    def lower_bound_us(self, stage: Stage) -> float:
        return self.bound_factor * self.latency_us(frozenset(stage.operators), stage.strategy.value)
