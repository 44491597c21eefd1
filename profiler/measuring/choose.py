"""Chooses the fastest of a few settings of one runtime."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from iosched.profiler.measuring.idle import wait_until_idle
from iosched.profiler.measuring.interleave import compare, interleave
from iosched.profiler.measuring.interleaved_models import IN_A_ROW_SECONDS, MOST_IN_A_ROW
from iosched.profiler.measuring.statistics import LEAST_SAMPLES, quantile
from iosched.runtime.executor import Candidate

_FEW_ROUNDS, _ROUNDS = 2, 9  # from nine rounds on an interval leaves out the extreme ones
_CLEARLY_SLOWER = 1.1
_FEW_SECONDS, _SECONDS = 3.0, 1.0
"""The time that the samples of the first and the further rounds may take together."""


def turns_to_choose(count: int) -> int:
    """About how many turns `fastest_setting` takes: few settings are as fast as the usual one."""
    return (1 + _FEW_ROUNDS) * count + _ROUNDS * min(count, 2)


def fastest_setting(candidates: Sequence[Candidate]) -> int:
    """The place of the candidate with the lowest median; the first, unless another is faster beyond the noise.

    All are measured interleaved. After two rounds those are dropped that are clearly slower than the fastest.
    """
    takes = {str(place): partial(_turn_us, each) for place, each in enumerate(candidates)}
    few = interleave(takes, _FEW_ROUNDS, warmup=1, max_seconds=_FEW_SECONDS, rest=wait_until_idle)
    limit_us = _CLEARLY_SLOWER * min(each.median_us for each in few.values())
    left = {name: take for name, take in takes.items() if name == "0" or min(few[name].samples_us) <= limit_us}
    if len(left) == 1:
        return 0
    found = interleave(left, _ROUNDS, warmup=0, max_seconds=_SECONDS, least_rounds=LEAST_SAMPLES, rest=wait_until_idle)
    ratios = {name: compare(found["0"], each) for name, each in found.items()}
    faster = [name for name, ratio in ratios.items() if ratio is not None and ratio.is_faster]
    return int(min(faster, key=lambda name: found[name].median_us, default="0"))


def _turn_us(candidate: Candidate) -> float:
    (rested_us,) = candidate.time(1)
    count = int(IN_A_ROW_SECONDS * 1e6 / max(rested_us, 1.0))
    return quantile(candidate.time(min(max(count, 1), MOST_IN_A_ROW)), 0.5)
