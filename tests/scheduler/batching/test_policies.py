"""Every policy makes a sound plan, and each is the best by its own measure."""

from __future__ import annotations

import pytest
from ensembles import Layer, Prices, assert_groups_are_sound, ensemble_of, members, prices
from hypothesis import given
from hypothesis import strategies as st

from iosched.scheduler.batching.policies import POLICIES


@pytest.mark.parametrize("name", POLICIES)
@given(models=st.lists(members(frozen=True), min_size=1, max_size=3), costs=prices())
def test_plans_are_sound(name: str, models: list[tuple[Layer, ...]], costs: Prices) -> None:
    ensemble = ensemble_of(models, shared_input=True)
    plan = POLICIES[name](ensemble, costs)
    assert_groups_are_sound(plan)
    assert plan.costs is costs
    if name in ("serial", "packed"):
        assert plan.groups == {}
    if len(models) == 2:
        assert POLICIES["dpbat"](ensemble, costs).value_us() >= 0
        assert len(POLICIES["greedy"](ensemble, costs).groups) >= len(POLICIES["fcfs"](ensemble, costs).groups)
