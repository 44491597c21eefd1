"""Trimming keeps every schedule that is within the limit."""

from __future__ import annotations

import numpy as np
import pytest
from by_definition import dags
from hypothesis import given
from hypothesis import strategies as st

from iosched.models.graph import ComputationGraph
from iosched.scheduler import lattice as lattices
from iosched.scheduler.paths import bound_us, distances, within
from iosched.scheduler.pruning import NO_PRUNING


@given(dags(7), st.integers(0, 10**6))
def test_the_best_schedule_stays_when_it_just_meets_the_limit(graph: ComputationGraph, seed: int) -> None:
    names = [operator.name for operator in graph.operators]
    lattice = lattices.build(lattices.relation(graph, names), NO_PRUNING)
    weights = np.random.default_rng(seed).uniform(1, 10, len(lattice.stages))
    best = bound_us(lattice, weights)
    trimmed = within(lattice, weights, distances(lattice, weights), best)

    assert bound_us(trimmed, weights) == pytest.approx(best)
    assert len(trimmed.sources) <= len(lattice.sources)
