"""Intervals of a median that hold however often they are inspected."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iosched.profiler.measuring.deciding import lasting_interval, least_lasting

ERRORS = (0.05, 0.0125, 0.004)


def capital(count: int, above: int) -> Fraction:
    """The mean of (2 p)^above (2 - 2 p)^(count - above) over p from 1/2 to 1, term by term of the second power."""
    below = count - above
    terms = (
        Fraction((-1) ** k * math.comb(below, k), above + k + 1) * (1 - Fraction(1, 2 ** (above + k + 1)))
        for k in range(below + 1)
    )
    return 2 * 2**count * sum(terms, Fraction())


@given(st.integers(1, 40), st.sampled_from(ERRORS))
def test_an_interval_ends_where_the_betting_capital_is_large_enough(count: int, error: float) -> None:
    low, high = lasting_interval(list(range(count)), error)
    winning = [above for above in range(count + 1) if capital(count, above) >= 1 / Fraction(error)]
    if not winning:
        assert (low, high) == (-math.inf, math.inf)
        return
    assert sum(sample >= low for sample in range(count)) == winning[0]
    assert high == count - 1 - low


@given(st.lists(st.floats(-1e6, 1e6), min_size=12, max_size=60), st.randoms())
def test_the_order_of_samples_does_not_matter(samples: list[float], random: object) -> None:
    low, high = lasting_interval(samples, 0.05)
    assert lasting_interval(sorted(samples), 0.05) == (low, high)
    assert low <= float(np.median(samples)) <= high


@pytest.mark.parametrize("error", ERRORS)
def test_too_few_samples_have_no_interval(error: float) -> None:
    least = least_lasting(error)
    assert lasting_interval([1.0] * least, error) == (1.0, 1.0)
    assert lasting_interval([1.0] * (least - 1), error) == (-math.inf, math.inf)


@pytest.mark.parametrize("error", [0.0, 1.0, -0.1])
def test_an_error_that_is_no_probability_is_refused(error: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        lasting_interval([1.0], error)


@pytest.mark.parametrize("error", [0.05, 0.2])
def test_the_median_is_rarely_ever_outside_the_interval(error: float) -> None:
    """In 2,000 series of 200 samples, inspected after each sample."""
    above = np.cumsum(np.random.default_rng(1).random((2_000, 200)) < 0.5, axis=1)
    ever = np.zeros(len(above), dtype=bool)
    for count in range(1, above.shape[1] + 1):
        low, _ = lasting_interval(list(range(count)), error)
        ever |= above[:, count - 1] >= (math.inf if math.isinf(low) else count - low)
    assert ever.mean() < error
    assert ever.mean() > error / 10, "the bound is not far too loose"
