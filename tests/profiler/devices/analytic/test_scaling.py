"""Factors for unmeasured operators: more measurements bring them nearer to the measured ones, despite outliers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iosched.profiler.devices.analytic.scaled import PRIOR, MeasuredFactor, scaling

KINDS = st.sampled_from((None, "convolution", "product", "elementwise", "depthwise"))
FACTORS = st.floats(1e-9, 1e12)
RATIOS = st.lists(st.builds(MeasuredFactor, KINDS, FACTORS), max_size=12)


def test_where_nothing_was_measured_nothing_is_scaled() -> None:
    assert scaling([]).of("convolution") == 1.0


@given(RATIOS)
def test_factors_lie_between_1_and_the_measured_ones(ratios: list[MeasuredFactor]) -> None:
    found, seen = scaling(ratios), [1.0, *(ratio.factor for ratio in ratios)]
    for factor in (found.factor, *found.by_kind.values()):
        assert min(seen) * (1 - 1e-9) <= factor <= max(seen) * (1 + 1e-9)
    assert set(found.by_kind) == {ratio.kind for ratio in ratios}


@given(st.lists(st.floats(0.5, 2), min_size=3, max_size=9), st.lists(FACTORS, max_size=4), KINDS)
def test_a_minority_of_outliers_cannot_mislead(sound: list[float], wild: list[float], kind) -> None:
    found = scaling(MeasuredFactor(kind, factor) for factor in (*sound, *wild[: len(sound) - 1]))
    assert 0.5 * (1 - 1e-9) <= found.factor <= 2 * (1 + 1e-9)
    assert 0.5 * (1 - 1e-9) <= found.of(kind) <= 2 * (1 + 1e-9)


@given(RATIOS, st.randoms(use_true_random=False))
def test_order_does_not_matter(ratios: list[MeasuredFactor], random) -> None:
    mixed = random.sample(ratios, len(ratios))
    assert scaling(mixed).factor == pytest.approx(scaling(ratios).factor)


def test_one_kernel_weighs_less_than_many() -> None:
    factors = [scaling([MeasuredFactor("product", 8.0)] * count).of("product") for count in (1, 2, 6, 1000)]
    assert factors == sorted(factors)
    weight = 1 / (1 + PRIOR)
    assert factors[0] == pytest.approx(8 ** (weight + (1 - weight) * weight))
    assert factors[-1] == pytest.approx(8, rel=0.01)


def test_a_measured_kind_has_a_separate_factor() -> None:
    found = scaling([*[MeasuredFactor("convolution", 1.0)] * 30, *[MeasuredFactor("depthwise", 0.2)] * 30])
    assert found.of("depthwise") == pytest.approx(0.2, rel=0.15)
    assert found.of("convolution") == pytest.approx(1, rel=0.15)
    assert found.of("product") == found.factor
