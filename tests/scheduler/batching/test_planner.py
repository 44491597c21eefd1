"""Plans of many models make no cycle, never cost more than they save, and match all operators of equal models."""

from __future__ import annotations

import pytest
from ensembles import Layer, Prices, assert_groups_are_sound, chain, ensemble_of, has_cycle, members, prices
from hypothesis import given
from hypothesis import strategies as st

from iosched.scheduler.batching.clusters import common_length
from iosched.scheduler.batching.costs import EqualGains, interpolated
from iosched.scheduler.batching.plan import Plan, difference_us
from iosched.scheduler.batching.planner import folded, layered, planned, pruned
from iosched.scheduler.batching.policy_names import POLICY_NAMES, PolicyName

several = st.lists(members(most=6, frozen=True), min_size=2, max_size=4)


@given(several, prices(), st.booleans())
def test_groups_make_no_cycle_and_never_cost_more_than_they_save(
    models: list[tuple[Layer, ...]], costs: Prices, shares: bool
) -> None:
    ensemble = ensemble_of(models, shared_input=shares)
    plan = folded(ensemble, costs)
    assert_groups_are_sound(plan)
    assert plan.value_us() >= 0


@given(several, st.booleans())
def test_greedy_plans_and_layers_make_no_cycle(models: list[tuple[Layer, ...]], shares: bool) -> None:
    ensemble = ensemble_of(models, shared_input=shares)
    assert_groups_are_sound(folded(ensemble, EqualGains()))
    assert_groups_are_sound(layered(ensemble, EqualGains()))


def test_the_check_for_cycles_finds_one() -> None:
    ensemble = ensemble_of([chain("ab"), chain("ba")])
    assert has_cycle(ensemble, [("0a0", "1a1"), ("0b1", "1b0")])
    assert has_cycle(ensemble, [("0a0", "0b1")])


def test_a_shared_operator_that_would_wait_for_its_reader_is_no_match() -> None:
    """0: a -> b; 1: c -> b -> d; 2 shares c and b with 1 and goes on with a, which may not be one with the a of 0.

    b of 1 may join b of 0, and then a of 2 waits for it, on which b of 0 waits.
    """
    first = (("a", (-1,), False), ("b", (0,), False))
    second = (("c", (-1,), True), ("b", (0,), True), ("d", (1,), False))
    third = (("c", (-1,), True), ("b", (0,), True), ("a", (1,), False))
    ensemble = ensemble_of([first, second, third], shared_input=True)
    plan = folded(ensemble, Prices(dict.fromkeys("abcd", 9.0)))
    assert plan.all_groups() == (("0b1", "1b1"),)


@given(st.text("ab", min_size=1, max_size=8), st.text("ab", min_size=1, max_size=8))
def test_greedy_batches_all_that_two_chains_have_in_common(one: str, other: str) -> None:
    ensemble = ensemble_of([chain(one), chain(other)])
    plan = folded(ensemble, EqualGains())
    assert len(plan.all_groups()) == common_length(one, other) >= len(layered(ensemble, EqualGains()).all_groups())


@pytest.mark.parametrize("count", [2, 5])
def test_equal_models_are_batched_completely(count: int) -> None:
    """A cell with branches and a residual: everything is in place but the inputs and the result."""
    cell = (
        ("a", (-1,), False), ("b", (0,), False), ("c", (0,), False), ("d", (1, 2), False), ("d", (3, 0), False),
    )  # fmt: skip
    costs = Prices(dict.fromkeys("abcd", 2.0), join=3, part=4)
    ensemble = ensemble_of([cell] * count)
    plan = folded(ensemble, costs)
    assert [len(group) for group in plan.all_groups()] == [count] * 5
    assert plan.value_us() == 2 * (count - 1) * 5 - 3 - 4


def test_a_model_unlike_the_others_stays_alone() -> None:
    costs = Prices(dict.fromkeys("abcd", 5.0), join=2, part=2)
    ensemble = ensemble_of([chain("aabb"), chain("cddc"), chain("aabb")])
    plan = folded(ensemble, costs)
    assert [[name[0] for name in group] for group in plan.all_groups()] == [["0", "2"]] * 4


def test_heads_read_the_result_of_a_shared_backbone_unbatched() -> None:
    head = (("a", (-1,), True), ("a", (0,), True), ("s", (1,), False), ("b", (2,), False))
    ensemble = ensemble_of([head] * 4, shared_input=True)
    costs = Prices({"a": 1.0, "b": 1.0, "s": 1.0}, join=2, part=2)
    plan = folded(ensemble, costs)
    assert [len(group) for group in plan.all_groups()] == [4, 4]
    assert plan.value_us() == 3 + 3 - 2


@given(st.lists(members(most=4), min_size=2, max_size=3), prices())
def test_pruning_never_makes_a_plan_worse(models: list[tuple[Layer, ...]], costs: Prices) -> None:
    plan = layered(ensemble_of(models), costs)
    better = pruned(plan)
    assert better.value_us() >= plan.value_us()
    for group in better.all_groups():
        assert better.without([group]).value_us() <= better.value_us()


@given(st.lists(members(most=6), min_size=2, max_size=4), prices())
def test_pruning_a_pruned_plan_changes_nothing(models: list[tuple[Layer, ...]], costs: Prices) -> None:
    """A second pass, without memory of the first, finds nothing more to remove."""
    ensemble = ensemble_of(models)
    better = pruned(Plan(ensemble, costs, folded(ensemble, EqualGains()).groups))
    assert pruned(better).all_groups() == better.all_groups()


@given(st.lists(members(most=5), min_size=3, max_size=3), prices())
def test_the_difference_of_two_plans_follows_from_the_changes(models: list[tuple[Layer, ...]], costs: Prices) -> None:
    ensemble = ensemble_of(models)
    after = layered(ensemble, costs)
    for group in after.all_groups():
        before = after.without([group])
        assert difference_us(before, after, group) == after.value_us() - before.value_us()


def test_first_come_first_served_stops_at_the_first_layer_that_differs() -> None:
    ensemble = ensemble_of([chain("abcab"), chain("abdab"), chain("abdaa")])
    groups = layered(ensemble, EqualGains()).all_groups()
    assert groups == (
        ("0a0", "1a0", "2a0"), ("0b1", "1b1", "2b1"), ("1d2", "2d2"), ("1a3", "2a3"),
    )  # fmt: skip


def test_only_existing_edges_are_priced() -> None:
    """A run that goes around an operator of one model alone parts and joins there; equal ones around it do not."""
    costs = Prices(dict.fromkeys("ab", 5.0), join=1, part=1)
    ensemble = ensemble_of([chain("aab"), chain("ab")])
    assert folded(ensemble, costs).value_us() == 10 - 1 - 1
    assert Plan(ensemble, costs).value_us() == 0


def test_prices_between_two_and_all_models_grow_evenly() -> None:
    ensemble = ensemble_of([chain("ab")] * 6)
    asked: list[int] = []

    class Squares:
        def gain_us(self, operators: object, count: int) -> float:
            asked.append(count)
            return float(count**2)

        def join_us(self, tensor: object, count: int) -> float:
            return float(count)

        part_us = join_us

    prices = interpolated(Squares(), 6)
    operators = ensemble.graph.operators[:2]
    assert [prices.gain_us(operators, count) for count in (2, 3, 4, 6)] == [4, 12, 20, 36]
    assert set(asked) == {2, 6}
    assert prices.join_us(ensemble.graph.inputs[0], 5) == prices.part_us(ensemble.graph.inputs[0], 5) == 5


@pytest.mark.parametrize("name", POLICY_NAMES)
@given(models=st.lists(members(frozen=True), min_size=1, max_size=3), costs=prices())
def test_plans_of_every_policy_are_sound(name: PolicyName, models: list[tuple[Layer, ...]], costs: Prices) -> None:
    ensemble = ensemble_of(models, shared_input=True)
    plan = planned(ensemble, costs, name)
    assert_groups_are_sound(plan)
    assert plan.costs is costs
    if name in ("serial", "packed"):
        assert plan.groups == {}
    if len(models) == 2:
        assert planned(ensemble, costs, "dpbat").value_us() >= 0
