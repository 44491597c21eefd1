"""How the benchmark of predicted stages compares the two searches of a pair."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType


def test_ratios_are_taken_within_pairs_and_rounds(script: Callable[[str], ModuleType]) -> None:
    """A slow round slows both; above 1 the schedule of the search that predicts is faster."""
    plain, predicts = [12.0, 24.0, 12.0], [10.0, 20.0, 10.0]
    samples = {"0 plain": plain, "0 predicts": predicts, "1 plain": predicts, "1 predicts": predicts}
    call = {"model": "m", "pairs": 2, "samples_us": samples}
    benchmark = script("predict_then_measure")
    assert benchmark.pair_ratios(call) == [1.2, 1.0]
