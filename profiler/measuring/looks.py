"""Intervals of a median that hold at every look: samples may be added until an interval says enough.

An interval for a number of samples that is fixed beforehand misses more often the more often somebody looks at it. This
one is valid however many looks there are, and whenever they end: S. R. Howard, A. Ramdas, Sequential estimation of
quantiles with applications to A/B testing and best-arm identification, Bernoulli 28(3), 2022, section 3. If a sample
lies above x with a probability of at most one half, whatever came before it, then a bet on "above x" wins no money on
average; the bets here are spread evenly over all probabilities above one half, and by Ville's inequality their capital
ever reaches 1 / error with a probability of at most `error`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import lru_cache


def lasting_interval(samples: Sequence[float], error: float) -> tuple[float, float]:
    """Ends of the interval of the median; infinite where there are too few samples for one.

    Args:
        samples: each lies above the median with a probability of one half, whatever the others are.
        error: the probability that the median is ever below the lower end, and that it is ever above the upper one.

    Raises:
        ValueError: the error is not between 0 and 1.
    """
    if not 0 < error < 1:
        raise ValueError(f"an error is a probability between 0 and 1, not {error}")
    count = len(samples)
    above = _least_above(count, error)
    if above > count:
        return -math.inf, math.inf
    ordered = sorted(samples)
    return ordered[count - above], ordered[above - 1]


def least_lasting(error: float) -> int:
    """The least number of samples that have such an interval."""
    return next(count for count in itertools.count(1) if _least_above(count, error) <= count)


@lru_cache(maxsize=4096)
def _least_above(count: int, error: float) -> int:
    """How many of `count` samples have to lie above x for x to be below the median; more than `count` if none are.

    The capital grows with the number of samples above x, so the least is found by halving.
    """
    low, high = count // 2, count + 1
    while low + 1 < high:
        middle = (low + high) // 2
        low, high = (low, middle) if _log_capital(count, middle) >= -math.log(error) else (middle, high)
    return high


def _log_capital(count: int, above: int) -> float:
    """Logarithm of the capital after bets on `count` samples of which `above` lay above x.

    It is the mean of (2 p)^above (2 (1 - p))^(count - above) over p from 1/2 to 1. Over p from 0 to 1 that integral is
    a beta function; the share of it above 1/2 is the chance of at most `above` heads in `count` + 1 tosses.
    """
    tosses = count + 1
    heads = math.fsum(_binomial(tosses, k) for k in range(above + 1))
    return (tosses + 1) * math.log(2) - math.log(tosses) - _log_ways(count, above) + math.log(heads) - math.log(2)


def _binomial(tosses: int, heads: int) -> float:
    return math.exp(_log_ways(tosses, heads) - tosses * math.log(2))


def _log_ways(count: int, chosen: int) -> float:
    return math.lgamma(count + 1) - math.lgamma(chosen + 1) - math.lgamma(count - chosen + 1)
