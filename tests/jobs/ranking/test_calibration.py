"""The ratio of whole models to the sum of their stages, and its error, from models measured both ways."""

from __future__ import annotations

import math
from random import Random
from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iosched.jobs.ranking.model_cost import LEAST_MODELS, Calibration, calibrated
from iosched.profiler.devices.profiled_device import LEVEL

FACTORS = st.floats(0.2, 5.0)


def test_too_few_models_give_no_correction_and_no_error() -> None:
    found = calibrated([(100.0, 200.0)] * (LEAST_MODELS - 1))
    assert found == Calibration(LEAST_MODELS - 1, 1.0, None)
    assert found.applied(50.0) is None


def test_the_factor_is_the_median_and_a_single_odd_model_does_not_move_it() -> None:
    found = calibrated([(100.0, 80.0)] * 20 + [(100.0, 300.0)])
    assert found.factor == pytest.approx(0.8)
    assert found.error == pytest.approx(1.0)
    known = found.applied(200.0)
    assert known is not None
    assert (known.low, known.value, known.high) == pytest.approx((160.0, 160.0, 160.0))


@given(st.lists(FACTORS, min_size=LEAST_MODELS, max_size=40), st.floats(1.0, 1e6))
def test_the_error_covers_at_least_the_stated_share_of_models_measured_both_ways(
    factors: list[float], sum_us: float
) -> None:
    found = calibrated([(sum_us, sum_us * factor) for factor in factors])
    assert found.error is not None
    assert found.error >= 1
    within = 0
    for place, factor in enumerate(factors):
        others = sorted(map(math.log, factors[:place] + factors[place + 1 :]))
        middle = (others[(len(others) - 1) // 2] + others[len(others) // 2]) / 2
        within += abs(math.log(factor) - middle) <= math.log(found.error) * (1 + 1e-9) + 1e-9
    assert within >= min(math.ceil(LEVEL * (len(factors) + 1)), len(factors))


def test_the_interval_covers_the_stated_share_of_unseen_models() -> None:
    draw = Random(0)

    def model() -> tuple[float, float]:
        total = math.exp(draw.uniform(3, 8))
        return total, total * 0.9 * math.exp(draw.gauss(0, 0.1))

    held = []
    for _ in range(400):
        found, (total, whole) = calibrated([model() for _ in range(15)]), model()
        known = found.applied(total)
        held.append(known is not None and whole in known)
    assert mean(held) == pytest.approx(LEVEL, abs=0.05)
