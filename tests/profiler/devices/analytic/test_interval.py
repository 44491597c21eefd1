"""Shared and own errors of parts add up like errors drawn at random."""

from __future__ import annotations

from math import exp, log

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iosched.profiler.devices.analytic.uncertainty import (
    NORMAL,
    ErrorShare,
    PartKind,
    Spread,
    Sum,
    around,
    deviation,
    weights,
)
from iosched.profiler.devices.profiled_device import LEVEL
from iosched.profiler.measuring.statistics import Interval

KINDS: tuple[PartKind, ...] = ("convolution", "product", "elementwise", "depthwise", "launches", "side_by_side")
parts = st.floats(0.0, 0.5)
shares = st.lists(
    st.builds(ErrorShare, st.sampled_from(KINDS), st.builds(Spread, parts, parts), st.floats(-1.0, 1.0)), max_size=8
)
sums = st.builds(
    lambda by_part_us, rest_us: Sum(sum(by_part_us.values()) + rest_us, by_part_us),
    st.dictionaries(st.integers(1, 9), st.floats(0.1, 100.0), min_size=1),
    st.floats(0.0, 100.0),
)


@given(shares)
def test_the_deviation_is_that_of_errors_drawn_at_random(found: list[ErrorShare]) -> None:
    rng = np.random.default_rng(0)
    shared = {kind: rng.standard_normal(20_000) for kind in KINDS}
    drawn = np.zeros(20_000)
    for one in found:
        own = rng.standard_normal(20_000)
        drawn += one.weight * (one.spread.shared * shared[one.kind] + one.spread.own * own)
    assert drawn.std() == pytest.approx(deviation(found), rel=0.05, abs=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_own_errors_even_out_in_a_sum_and_shared_ones_do_not(kind: PartKind) -> None:
    def of(n: int) -> float:
        return deviation([ErrorShare(kind, Spread(0.1, 0.2), 1 / n)] * n)

    assert of(1) == pytest.approx((0.1**2 + 0.2**2) ** 0.5)
    assert of(1) > of(4) > of(10_000) > 0.1
    assert of(10_000) == pytest.approx(0.1, rel=1e-3)


def test_errors_of_different_kinds_are_independent() -> None:
    both = [ErrorShare("product", Spread(0.3, 0.0), 0.5), ErrorShare("convolution", Spread(0.4, 0.0), 0.5)]
    assert deviation(both) == pytest.approx(0.25)


@given(sums, sums)
def test_weights_are_the_derivatives_of_a_latency_and_of_a_ratio(ours: Sum[int], theirs: Sum[int]) -> None:
    step = 1e-6

    def slope(one: Sum[int], part: int) -> float:
        return log(1 + step * one.by_part_us.get(part, 0.0) / one.whole_us) / step

    alone, beside = weights(ours), weights(ours, theirs)
    assert set(alone) == set(ours.by_part_us)
    assert set(beside) == {*ours.by_part_us, *theirs.by_part_us}
    assert all(weight == pytest.approx(slope(ours, part), abs=1e-4) for part, weight in alone.items())
    for part, weight in beside.items():
        assert weight == pytest.approx(slope(ours, part) - slope(theirs, part), abs=1e-4)


@given(sums)
def test_parts_that_two_sums_share_cancel(ours: Sum[int]) -> None:
    assert set(weights(ours, ours).values()) == {0.0}
    longer = Sum(2 * ours.whole_us, {**ours.by_part_us, 10: ours.whole_us})
    assert weights(ours, longer)[10] == -0.5


def test_a_sum_of_zero_has_no_weights() -> None:
    assert weights(Sum(0.0, {1: 0.0})) == {1: 0.0}
    assert weights(Sum(0.0, {}), Sum(2.0, {1: 1.0})) == {1: -0.5}


@given(st.floats(0.1, 1e6), st.floats(0.0, 1.0))
def test_an_interval_extends_by_equal_ratios_on_both_sides(value: float, deviates: float) -> None:
    found = around(value, deviates)
    assert value in found
    assert found.value == value
    factor = exp(NORMAL * deviates)
    assert (found.low, found.high) == pytest.approx((value / factor, value * factor))
    wider = around(value, deviates + 0.1)
    assert wider.low < found.low
    assert found.high < wider.high
    assert (around(value, 0.0).low, around(value, 0.0).high) == (value, value)
    assert "1" not in found


def test_an_interval_covers_its_level_of_errors_drawn_at_random() -> None:
    drawn = np.exp(0.2 * np.random.default_rng(0).standard_normal(50_000))
    found = around(1.0, 0.2)
    assert ((found.low <= drawn) & (drawn <= found.high)).mean() == pytest.approx(LEVEL, abs=0.005)


@pytest.mark.parametrize(
    ("low", "high", "is_equal"), [(0.9, 1.1, True), (1.0, 1.0, True), (1.01, 1.2, False), (0.8, 0.99, False)]
)
def test_latencies_are_equal_if_the_interval_of_their_ratio_contains_1(low: float, high: float, is_equal: bool) -> None:
    assert Interval((low + high) / 2, low, high).is_equal == is_equal


def test_a_ratio_of_1_up_to_rounding_is_equal() -> None:
    assert around(1 + 1e-15, 0.0).is_equal
