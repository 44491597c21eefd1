"""The choice of runs is the best of all, and on chains it equals the paper's recurrence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import inf

import pytest
from ensembles import Layer, Prices, assert_groups_are_sound, chain, ensemble_of, members, prices
from hypothesis import given
from hypothesis import strategies as st

from iosched.scheduler.batching.plan import Plan
from iosched.scheduler.batching.runs import Pair, Pairing


def pairing(plan: Plan, new: int, old: int) -> Pairing:
    known = {name for group in plan.all_groups() for name in group} | set(plan.ensemble.sequences[old])
    fresh = [name for name in plan.ensemble.sequences[new] if name not in known]
    return Pairing(plan, fresh, plan.ensemble.sequences[old])


def matchings(beside: Pairing, i: int = 0, j: int = 0) -> Iterator[tuple[Pair, ...]]:
    """All sets of matches that go up in both orders."""
    yield ()
    for a, b in product(range(i, len(beside.new)), range(j, len(beside.old))):
        if beside.plan.ensemble.are_alike(beside.new[a], beside.old[b]):
            for rest in matchings(beside, a + 1, b + 1):
                yield ((a, b), *rest)


def runs(matching: Sequence[Pair]) -> Iterator[list[Pair]]:
    run: list[Pair] = []
    for a, b in matching:
        if run and (a - 1, b - 1) != run[-1]:
            yield run
            run = []
        run.append((a, b))
    if run:
        yield run


def extended(beside: Pairing, matching: Sequence[Pair]) -> Plan:
    return beside.plan.with_pairs((beside.new[i], beside.old[j]) for i, j in matching)


def by_definition(beside: Pairing) -> float:
    """The best sum over runs of what each run, on its own, adds to the plan on the edges that are there."""
    before = beside.plan.value_us()
    return max(
        sum(extended(beside, run).value_us() - before for run in runs(matching)) for matching in matchings(beside)
    )


@given(members(), members(), prices(), st.booleans())
def test_two_models_match_optimally(a: tuple[Layer, ...], b: tuple[Layer, ...], costs: Prices, shares: bool) -> None:
    beside = pairing(Plan(ensemble_of([a, b], shared_input=shares), costs), 1, 0)
    value, matches = beside.best()
    assert value == by_definition(beside)
    assert extended(beside, matches).value_us() >= value
    assert_groups_are_sound(extended(beside, matches))


@given(st.lists(members(frozen=True), min_size=2, max_size=2), prices())
def test_shared_operators_are_not_matched(both: list[tuple[Layer, ...]], costs: Prices) -> None:
    ensemble = ensemble_of(both, shared_input=True)
    beside = pairing(Plan(ensemble, costs), 1, 0)
    value, matches = beside.best()
    assert value == by_definition(beside)
    assert all(ensemble.owners[beside.new[i]] == 0b10 for i, _ in matches)


@given(st.lists(members(), min_size=3, max_size=3), prices())
def test_a_third_model_is_never_promised_more_than_it_gets(trio: list[tuple[Layer, ...]], costs: Prices) -> None:
    first = pairing(Plan(ensemble_of(trio), costs), 1, 0)
    plan = extended(first, first.best()[1])
    second = pairing(plan, 2, 0)
    value, matches = second.best()
    assert 0 <= value <= extended(second, matches).value_us() - plan.value_us()


@given(st.text("ab", min_size=1, max_size=7), st.text("ab", min_size=1, max_size=7), prices("ab"))
def test_on_chains_the_gain_equals_the_papers_recurrence(one: str, other: str, costs: Prices) -> None:
    """Including the unbatch cost of a run that reaches the end, which the paper omits."""
    beside = pairing(Plan(ensemble_of([chain(other), chain(one)]), costs), 1, 0)
    x = beside.plan.ensemble.graph.inputs[0]
    assert beside.best()[0] == recurrence(one, other, costs.gain, costs.join_us(x, 2), costs.part_us(x, 2))


def recurrence(one: str, other: str, gain: Mapping[str, float], batch: float, unbatch: float) -> float:
    """DPBat, figure 5, state by state; `dp[i][j]` has the states 00, 01, 10 and 11."""
    dp = [[[-inf] * 4 for _ in range(len(other) + 1)] for _ in range(len(one) + 1)]
    for i, j in product(range(len(one) + 1), range(len(other) + 1)):
        if i == j == 0:
            dp[0][0][0] = 0.0
            continue
        up = dp[i - 1][j] if i else [-inf] * 4
        left = dp[i][j - 1] if j else [-inf] * 4
        if i and j and one[i - 1] == other[j - 1]:
            before, p = dp[i - 1][j - 1], gain[one[i - 1]]
            dp[i][j][3] = max(before[3] + p, max(before[:3]) + p - batch)
        dp[i][j][2] = max(left[3] - unbatch, left[2], up[0], up[2])
        dp[i][j][1] = max(up[3] - unbatch, up[1], left[0], left[1])
        dp[i][j][0] = max(up[0], up[2], left[0], left[1])
    return max(*dp[-1][-1][:3], dp[-1][-1][3] - unbatch)


def test_a_lone_match_that_does_not_pay_is_left_out() -> None:
    costs = Prices({"a": 3.0, "b": 3.0}, join=2, part=2)
    beside = pairing(Plan(ensemble_of([chain("ab"), chain("a")]), costs), 1, 0)
    assert beside.best() == (0.0, ())
    beside = pairing(Plan(ensemble_of([chain("ab"), chain("ab")]), costs), 1, 0)
    assert beside.best()[0] == 3 + 3 - 2 - 2


def test_neighbours_in_the_order_need_not_be_an_edge() -> None:
    """Two branches: the second operator reads the input, not the first; the paper takes it to be in place."""
    branches = (("a", (-1,), False), ("b", (-1,), False), ("c", (0, 1), False))
    costs = Prices({"a": 5.0, "b": 5.0, "c": 0.0}, join=3, part=1)
    value, matches = pairing(Plan(ensemble_of([branches, branches]), costs), 1, 0).best()
    assert len(matches) == 3
    assert value == 5 + 5 - 3 - 3 - 1


def test_a_branch_that_leaves_a_run_early_is_split() -> None:
    early = (("a", (-1,), False), ("b", (0,), False), ("n", (0,), False))
    costs = Prices({"a": 9.0, "b": 9.0, "n": 0.0}, join=1, part=2)
    value, _ = pairing(Plan(ensemble_of([early, early]), costs), 1, 0).best()
    assert value == 18 - 1 - 2 - 2


@pytest.mark.parametrize(("kind", "value"), [("a", 5 - 3 - 1), ("s", 5 - 1)])
def test_a_shared_tensor_is_joined_only_if_necessary(kind: str, value: float) -> None:
    costs = Prices({kind: 5.0}, join=3, part=1)
    ensemble = ensemble_of([((kind, (-1,), False),)] * 2, shared_input=True)
    assert pairing(Plan(ensemble, costs), 1, 0).best()[0] == value


@pytest.mark.slow
def test_long_models_are_matched() -> None:
    types = "abcd" * 60
    costs = Prices(dict.fromkeys("abcd", 5.0))
    value, matches = pairing(Plan(ensemble_of([chain(types)] * 2), costs), 1, 0).best()
    assert len(matches) == len(types)
    assert value == 5 * len(types) - 2
