"""The simulation of verdicts runs the code that decides, and its rows count every search."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest


@pytest.fixture
def deciding(script: Callable[[str], ModuleType]) -> ModuleType:
    return script("deciding")


@pytest.mark.parametrize("machine", ["quiet", "bursty", "drifting", "stolen"])
def test_large_differences_are_never_taken_for_their_opposite(machine: str, deciding: ModuleType) -> None:
    assert machine in deciding.SCRIPTS
    networks = deciding.noises(machine)
    for number in range(3):
        assert "slower" not in deciding.searched(machine, 1.3, 2, number, networks)
        assert "faster" not in deciding.searched(machine, 0.7, 2, number, networks)


def test_on_a_quiet_machine_a_large_gain_is_found_and_the_verdict_stays(deciding: ModuleType) -> None:
    assert deciding.searched("quiet", 1.3, 3, 0, deciding.noises("quiet")) == ["faster"] * 3


def test_rows_count_every_search(deciding: ModuleType) -> None:
    rows = deciding.measured(len(deciding.SCRIPTS) * len(deciding.RATIOS), 1)
    assert len(rows) == len(deciding.SCRIPTS) * len(deciding.RATIOS)
    for row in rows:
        first = row["first"]
        assert isinstance(first, dict)
        assert sum(first.values()) == row["searches"] == 1
    headers, cells = deciding.table(rows)
    assert [row[:2] for row in cells] == [[script, 1] for script in deciding.SCRIPTS for _ in range(2)]
    assert {len(row) for row in cells} == {len(headers)}
