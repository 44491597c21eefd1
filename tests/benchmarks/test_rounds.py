"""Tables of the possible speedup of a search by several machines, and the counts behind them."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from by_definition import graph_of
from lane_costs import alone

from iosched.scheduler.cost import CostQuestion, operator_question


@pytest.fixture
def rounds(script: Callable[[str], ModuleType]) -> ModuleType:
    return script("rounds")


def test_the_speedup_limit_assumes_consecutive_rounds(rounds: ModuleType) -> None:
    row = {"model": "squeezenet", "cost": rounds.V100, "in_vain": 2, "sizes": [9, 4, 1]}
    _, (cells,) = rounds.table([row], rounds.V100)
    # 12 of 14 questions are asked; two workers take 5 + 2 + 1 steps, four 3 + 1 + 1, more workers one per round.
    limits = ["1.5", "2.4", "4.0", "4.0"]
    assert cells == ["SqueezeNet", "12", "2", "3", "4 (2.5 to 6.5), 9", *limits]
    assert rounds.table([row], rounds.LANES)[1] == []


def test_a_round_counts_only_unknown_stages(rounds: ModuleType) -> None:
    """Operators are equal if their numbers are both even or both odd."""
    workers: Any = rounds.Workers(graph_of(9, []), lambda name: str(int(name) % 2))
    one, two = CostQuestion(alone("0")), CostQuestion(alone("1"))

    workers.prefetch([one, CostQuestion(alone("2")), operator_question("4", "operator"), two])
    assert workers.sizes == [2]
    workers.prefetch([CostQuestion(alone("0"), "again"), operator_question("1", "work"), two])
    assert workers.sizes == [2, 2]
    workers.prefetch([one])
    assert workers.sizes == [2, 2]
    assert workers.n_stages == 2
