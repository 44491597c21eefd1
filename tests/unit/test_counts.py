"""The counts of the thesis's table 3.1, by the definition of an ending (the printed table misses legal endings)."""

from __future__ import annotations

from itertools import combinations

import pytest
from by_definition import dags, graph_of, schedules_of
from hypothesis import given, settings
from table_blocks import BLOCKS

from iosched.models.graph import ComputationGraph
from iosched.scheduler import lattice as lattices
from iosched.scheduler.counts import count, count_schedules, upper_bound, width
from iosched.scheduler.lattice import NO_PRUNING, Pruning
from iosched.scheduler.schedule import Stage, Strategy
from iosched.scheduler.signature import stage_signature

# network, d, bound, states, then without pruning and with r=3, s=8: transitions, schedules, distinct stages
TABLE = [
    ("squeezenet", 3, 216.0, 12, (60, 152, 37), (51, 138, 29)),
    ("inception_v3", 6, 25648.712279639796, 180, (5040, 4410136, 1011), (4631, 4226508, 790)),
    (
        "nasnet_large", 8, 5175333.760114922, 2200,
        (335331, 8839301008800, 40601), (234533, 8169505528894, 12963),
    ),
    (
        "randwire_large", 8, 3682643991.737477, 5420,
        (3560808, 118464662394143512150016, 1068115), (843754, 84684769005243574900521, 86747),
    ),
]  # fmt: skip


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row[0])
@pytest.mark.parametrize("pruned", [False, True], ids=["no-pruning", "r3-s8"])
def test_table_3_1(row: tuple, pruned: bool) -> None:
    network, d, bound, states, plain, cut = row
    n, edges = BLOCKS[network]
    order = lattices.relation(graph_of(n, edges), [str(index) for index in range(n)])
    lattice = lattices.build(order, Pruning(3, 8) if pruned else NO_PRUNING)

    assert width(order) == d
    assert upper_bound(n, d) == pytest.approx(bound, rel=1e-12)
    assert len(lattice.states) - 1 == states
    assert (len(lattice.sources), count_schedules(lattice), len(lattice.stages)) == (cut if pruned else plain)
    assert len(lattice.sources) <= bound


@settings(max_examples=40, deadline=None)
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
