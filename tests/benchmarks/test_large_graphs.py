"""The graphs of many operators that planning is timed with."""

from __future__ import annotations

import pytest

from iosched.scheduler.components import components


@pytest.mark.parametrize("name", [pytest.param("nasnet_a", marks=pytest.mark.slow), "resnext"])
def test_a_graph_has_about_as_many_operators_as_are_asked_for(script, name) -> None:
    graph = script("large_graphs").GRAPHS[name](400).graph
    assert abs(len(graph.operators) - 400) < 40
    assert len(components(graph)) == 1


def test_branches_of_a_block_run_side_by_side(script) -> None:
    module = script("large_graphs")
    graph = module.resnext(66).graph
    reads_stem = [operator for operator in graph.operators if operator.inputs == ("stem",)]
    assert len(reads_stem) == module.BRANCHES


@pytest.mark.slow
def test_several_networks_have_no_operator_in_common(script) -> None:
    module = script("large_graphs")
    graph = module.several(2 * 252).graph
    assert len(components(graph)) == 2 * len(module.TOGETHER)


@pytest.mark.slow
def test_every_phase_is_timed_in_every_repeat(script) -> None:
    module = script("large_graphs")
    found = module.planned(module.resnext(66), repeats=2)
    assert found["seconds"].keys() == found["processor_seconds"].keys()
    assert {len(samples) for samples in found["seconds"].values()} == {2}
