"""What concurrent stages are expected to take that were not measured: what their operators predict, times a factor.

Operators alone predict a stage by their best placement on lanes (`bounds.concurrent_bounds`). How many times as long
stages of one, two, and three or more groups really take is learned while a block is searched. A prediction decides
only what is measured next, and when a search ends: it is no latency of any schedule, and no bound.
"""

from __future__ import annotations

import numpy as np

from iosched.scheduler.latencies import KnownLatencies
from iosched.scheduler.lattice import Latencies, popcount
from iosched.scheduler.schedule import Strategy

LIKELY, OPTIMISTIC = 0.5, 0.25  # quantiles of the factors
_BEFORE = ((0.93, 0.96, 1.0, 1.03, 1.07), (0.8, 0.92, 1.0, 1.16, 1.3), (0.95, 1.01, 1.1, 1.2, 1.3))
"""Factors of one, two, and three or more groups that count beside those measured. The three in the middle are quartiles
of Inception V3 on two cores of an AMD EPYC; the outer ones are guesses."""


def factors(latencies: KnownLatencies, share: float, least: float) -> Latencies:
    """For each stage the factor on its concurrent bound that this share of stages like it stay below, (M,).

    They depend on which stages of the block were measured, and not on their order. Where several groups are not
    predicted, since nothing is known of what operators take on one lane, and for single operators, it is `least`.

    Args:
        latencies: what is known of the block.
        share: the quantile, from 0 to 1.
        least: no factor is less.
    """
    found = np.full(len(latencies.lattice.stages), least)
    value, bound = latencies.value[Strategy.CONCURRENT], latencies.bound[Strategy.CONCURRENT]
    known = np.isfinite(value) & (bound > 0)
    _, first = np.unique(latencies.classes, return_index=True)
    groups = np.minimum(np.sum([each >= 0 for each in latencies.rounds], axis=0), len(_BEFORE))
    groups = np.where(popcount(latencies.lattice.stages) > 1, groups, 0)
    for count, before in enumerate(_BEFORE[: None if latencies.knows_work else 1], 1):
        rows = first[known[first] & (groups[first] == count)]
        found[groups == count] = max(float(np.quantile([*before, *(value[rows] / bound[rows])], share)), least)
    return found
