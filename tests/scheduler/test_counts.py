"""The counts of the thesis's table 3.1, by the definition of an ending (the printed table misses legal endings)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from math import comb

import pytest
from by_definition import dags, graph_of, groups_of, schedules_of
from hypothesis import given

from iosched.models.graph import ComputationGraph
from iosched.scheduler import counts
from iosched.scheduler import lattice as lattices
from iosched.scheduler.counts import count, count_schedules, pruned_growth, upper_bound, width
from iosched.scheduler.pruning import NO_PRUNING, Pruning
from iosched.scheduler.schedule import Stage, Strategy
from iosched.scheduler.signature import stage_signature

# fmt: off
BLOCKS: dict[str, tuple[int, list[tuple[int, int]]]] = {
    "squeezenet": (
        6,
        [
            (0, 1), (0, 2), (1, 3), (2, 3), (3, 5), (4, 5),
        ],
    ),
    "inception_v3": (
        11,
        [
            (0, 10), (1, 2), (1, 3), (2, 10), (3, 10), (4, 5), (5, 6), (5, 7), (6, 10), (7, 10), (8, 9), (9, 10),
        ],
    ),
    "nasnet_large": (
        18,
        [
            (0, 2), (1, 2), (2, 8), (2, 10), (2, 13), (2, 14), (2, 17), (3, 4), (3, 6), (3, 12), (3, 15), (3, 17),
            (4, 5), (5, 17), (6, 7), (7, 17), (8, 9), (9, 17), (10, 11), (11, 17), (12, 17), (13, 17), (14, 17),
            (15, 16), (16, 17),
        ],
    ),
    "randwire_large": (
        33,
        [
            (0, 1), (0, 13), (1, 19), (1, 21), (2, 20), (2, 25), (3, 4), (3, 19), (4, 5), (4, 19), (4, 31), (5, 28),
            (5, 29), (6, 7), (6, 8), (6, 29), (7, 12), (7, 25), (8, 9), (8, 12), (8, 17), (8, 22), (8, 28), (9, 10),
            (9, 11), (9, 17), (9, 30), (10, 27), (11, 17), (11, 21), (11, 24), (12, 13), (12, 16), (12, 27), (13, 21),
            (14, 15), (14, 16), (14, 17), (14, 22), (14, 29), (15, 24), (16, 17), (16, 20), (17, 18), (18, 19),
            (19, 26), (19, 27), (20, 21), (20, 22), (20, 26), (20, 30), (21, 25), (21, 28), (22, 23), (22, 30),
            (23, 24), (23, 25), (24, 26), (25, 26), (26, 27), (27, 28), (27, 29), (28, 29), (29, 32), (30, 31),
            (31, 32),
        ],
    ),
}


# network, d, bound, states, then without pruning, with r=3, s=8, and as printed: transitions, schedules, stages
TABLE = [
    ("squeezenet", 3, 216.0, 12, (60, 152, 37), (51, 138, 29), (51, 131, 29)),
    (
        "inception_v3", 6, 25648.712279639796, 180,
        (5040, 4410136, 1011), (4631, 4226508, 790), (4871, 3757392, 842),
    ),
    (
        "nasnet_large", 8, 5175333.760114922, 2200,
        (335331, 8839301008800, 40601), (234533, 8169505528894, 12963), (307841, 7150961274600, 31867),
    ),
    (
        "randwire_large", 8, 3682643991.737477, 5420,
        (3560808, 118464662394143512150016, 1068115), (843754, 84684769005243574900521, 86747),
        (1170663, 91973106270886052032664, 154400),
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    "row", [pytest.param(row, marks=pytest.mark.slow if row[3] > 5000 else (), id=row[0]) for row in TABLE]
)
@pytest.mark.parametrize("how", ["no-pruning", "r3-s8", "as-printed"])
def test_table_3_1(row: tuple, how: str) -> None:
    network, d, bound, states, plain, cut, printed = row
    expected = {"no-pruning": plain, "r3-s8": cut, "as-printed": printed}[how]
    n, edges = BLOCKS[network]
    order = lattices.relation(graph_of(n, edges), [str(index) for index in range(n)])
    pruning = Pruning(3, 8) if how == "r3-s8" else NO_PRUNING
    lattice = lattices.build(order, pruning, single_source=how == "as-printed")

    assert width(order) == d
    assert upper_bound(n, d) == pytest.approx(bound, rel=1e-12)
    assert len(lattice.states) - 1 == states
    assert (len(lattice.sources), count_schedules(lattice), len(lattice.stages)) == expected
    assert len(lattice.sources) <= bound


@pytest.mark.parametrize(("d", "c", "pairs"), [(1, 3, 10), (2, 2, 36), (3, 4, 3375), (4, 2, 1296), (2, 8, 2025)])
def test_the_bound_on_transitions_is_attained_by_chains_of_one_length(d: int, c: int, pairs: int) -> None:
    """Figure 3.5: d chains of c operators have C(c + 2, 2)^d pairs of a state and an ending, the empty one included."""
    chains = [(c * chain + step, c * chain + step + 1) for chain in range(d) for step in range(c - 1)]
    graph = graph_of(d * c, chains)
    found = count(graph, list(graph.by_name), NO_PRUNING)
    with_the_empty_state = found.states + 1

    assert found.width == d
    assert found.transitions + with_the_empty_state == pairs == comb(c + 2, 2) ** d == found.upper_bound


def test_figure_3_4_has_twelve_transitions() -> None:
    """a -> b, and c beside them: six states, the empty one included."""
    found = count(graph_of(3, [(0, 1)]), ["0", "1", "2"], NO_PRUNING)
    assert (found.states + 1, found.transitions) == (6, 12)


def test_the_growth_under_pruning_is_a_product_of_states_and_stages() -> None:
    assert pruned_growth(11, 6, Pruning(3, 8)) == pytest.approx((11 / 6 + 1) ** 6 * 4**8)
    assert pruned_growth(4, 2, Pruning(1, 2)) == 9 * 4
    assert (pruned_growth(4, 2, NO_PRUNING), pruned_growth(4, 2, Pruning(1, None))) == (None, None)
    assert pruned_growth(4, 2, Pruning(10**6, 10**6)) == math.inf
    assert pruned_growth(4, 2, Pruning(10**400, 1)) == math.inf


@given(dags(6))
def test_counts_of_small_graphs_by_brute_force(graph: ComputationGraph) -> None:
    names = [operator.name for operator in graph.operators]
    found = count(graph, names, Pruning(2, 3))
    schedules = list(schedules_of(graph, frozenset(names), 2, 3))
    lattice = lattices.build(lattices.relation(graph, names), Pruning(2, 3))
    stages = [
        Stage(Strategy.CONCURRENT, tuple(tuple(names[i] for i in lattices.bits(g)) for g in lattice.order.groups(mask)))
        for mask in lattice.stages.tolist()
    ]

    assert found.schedules == len(schedules)
    assert found.stages == len({stage for schedule in schedules for stage in schedule})
    assert found.width == widest(graph)
    assert found.signatures == len({stage_signature(graph, stage) for stage in stages})


@given(dags(6))
def test_published_endings_are_those_whose_groups_have_a_single_source(graph: ComputationGraph) -> None:
    names = [operator.name for operator in graph.operators]
    lattice = lattices.build(lattices.relation(graph, names), NO_PRUNING, single_source=True)
    found = {frozenset(names[index] for index in lattices.bits(mask)) for mask in lattice.stages.tolist()}
    endings = {
        ending for schedule in schedules_of(graph, frozenset(names), None, None) for ending in schedule
        if all(
            sum(not any(before in group for before in graph.predecessors[name]) for name in group) == 1
            for group in groups_of(graph, ending)
        )
    }  # fmt: skip

    assert found == endings


def test_blocks_that_are_alike_are_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = graph_of(7, [(0, 1), (0, 2), (1, 6), (2, 6), (3, 4), (3, 5), (4, 6), (5, 6)])
    blocks = [("0", "1", "2"), ("3", "4", "5"), ("0", "1")]
    plain = [count(graph, block, Pruning(2, 2)) for block in blocks]
    asked: list[Sequence[str]] = []

    def counted(graph: ComputationGraph, operators: Sequence[str], *rest: object, **others: object) -> counts.Counts:
        asked.append(operators)
        return count(graph, operators, Pruning(2, 2))

    monkeypatch.setattr(counts, "count", counted)

    assert list(counts.count_blocks(graph, blocks, Pruning(2, 2))) == plain
    assert asked == [("0", "1", "2"), ("0", "1")]


def widest(graph: ComputationGraph) -> int:
    """The largest set without two operators on one path, by trying all sets."""
    above: dict[str, set[str]] = {}
    for name, before in graph.predecessors.items():
        above[name] = set(before).union(*(above[other] for other in before))
    sets = (
        chosen for size in range(len(above), 0, -1) for chosen in combinations(above, size)
        if not any(a in above[b] for a in chosen for b in chosen)
    )  # fmt: skip
    return len(next(sets))
