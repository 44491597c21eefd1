"""The benchmark networks fall into the thesis's blocks, and those of table 3.1 have its counts."""

from __future__ import annotations

import pytest
from networks import zoo_model

from iosched.scheduler.blocks import partition
from iosched.scheduler.counts import count
from iosched.scheduler.pruning import Pruning

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("name", "sizes"), [
    ("squeezenet", [2, 6, 5, 6, 1, 5, 6, 5, 6, 1, 5, 2]),
    ("inception_v3", [7, 9, 9, 9, 6, 12, 12, 12, 12, 8, 11, 11, 1]),
    ("randwire", [1, 17, 33, 33, 33, 3]),
    ("nasnet_a", [1, 18, 21, 18, 16, 16, 16, 16, 16, 19, 18, 16, 16, 16, 16, 16, 19, 18, 16, 16, 16, 16, 16, 2]),
])  # fmt: skip
def test_a_network_falls_into_its_blocks(name: str, sizes: list[int]) -> None:
    parts = partition(zoo_model(name).graph)

    assert [len(part.operators) for part in parts] == sizes
    assert all(part.narrow for part in parts)


@pytest.mark.parametrize(("name", "n", "d", "states", "transitions", "schedules", "stages"), [
    ("squeezenet", 6, 3, 12, 51, 138, 29),
    ("inception_v3", 11, 6, 180, 4631, 4226508, 790),
    ("nasnet_a", 18, 8, 2200, 234533, 8169505528894, 12963),
    ("randwire", 33, 8, 5420, 843754, 84684769005243574900521, 86747),
])  # fmt: skip
def test_the_largest_block_has_the_counts_of_table_3_1(
    name: str, n: int, d: int, states: int, transitions: int, schedules: int, stages: int
) -> None:
    graph = zoo_model(name).graph
    sized = [part.operators for part in partition(graph) if len(part.operators) == n]
    found = (count(graph, operators, Pruning(3, 8)) for operators in sized)

    assert any(
        (one.width, one.states, one.transitions, one.schedules, one.stages)
        == (d, states, transitions, schedules, stages)
        for one in found
    )
