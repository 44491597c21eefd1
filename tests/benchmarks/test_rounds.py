"""The tables of what several machines could gain on a search, and the counting that they come from."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from by_definition import graph_of
from lane_costs import alone

from iosched.scheduler.cost import CostQuestion, operator_question

PAGE = Path(__file__).parents[2] / "benchmarks" / "reports" / "search.md"


@pytest.fixture
def rounds(script: Callable[[str], ModuleType]) -> ModuleType:
    return script("rounds")


def test_the_page_is_what_the_results_say(rounds: ModuleType) -> None:
    rows = json.loads((rounds.RESULTS / "rounds.json").read_text())["rows"]
    for table in rounds.tables(rows).values():
        assert table in PAGE.read_text(), "stale: run  python benchmarks/rounds.py --write"


def test_the_limit_is_that_of_rounds_one_after_another(rounds: ModuleType) -> None:
    row = {"model": "squeezenet", "cost": rounds.V100, "in_vain": 2, "sizes": [9, 4, 1]}
    table, *others = rounds.tables([row]).values()
    cells = [cell.strip() for cell in table.splitlines()[2].split("|")[1:-1]]
    # Of 14 questions 12 are asked; two workers take 5 + 2 + 1 steps, four 3 + 1 + 1, more of them one a round.
    limits = ["1.5", "2.4", "4.0", "4.0"]
    assert cells == ["SqueezeNet", "12", "2", "3", "4 (2.5 to 6.5), 9", *limits]
    assert [len(other.splitlines()) for other in others] == [2, 2]


def test_a_round_counts_what_is_not_known_yet(rounds: ModuleType) -> None:
    """Operators are alike where their numbers are both even or both odd."""
    workers: Any = rounds.Workers(graph_of(9, []), lambda name: str(int(name) % 2))
    one, two = CostQuestion(alone("0")), CostQuestion(alone("1"))

    workers.prefetch([one, CostQuestion(alone("2")), operator_question("4", "operator"), two])
    assert workers.sizes == [2]
    workers.prefetch([CostQuestion(alone("0"), "again"), operator_question("1", "work"), two])
    assert workers.sizes == [2, 2]
    workers.prefetch([one])
    assert workers.sizes == [2, 2]
    assert workers.n_stages == 2


def test_tables_are_put_in_the_place_of_those_that_begin_alike(rounds: ModuleType) -> None:
    new = {"a": "| a | questions | new |\n|---|---|---|", "b": "| b | questions | new |\n|---|---|---|"}
    text = "Before.\n\n| b | questions | old |\n|---|\n| 1 |\n\nBetween.\n\n| a | questions | old |\n\nAfter.\n"
    assert rounds.with_tables(text, new) == f"Before.\n\n{new['b']}\n\nBetween.\n\n{new['a']}\n\nAfter.\n"
