"""Removed barriers are detected, and the results file covers the current kernels."""

from __future__ import annotations

import json

import pytest
import thread_sanitizer
from barrier_cases import CASES, barriers

RESULTS = "barrier-mutations.json"


@pytest.mark.slow
def test_a_removed_barrier_is_detected_in_both_ways(script) -> None:
    if reason := thread_sanitizer.why_not():
        pytest.skip(reason)
    mutations = script("barrier_mutations")
    (found,) = mutations.mutations("copy to float32")
    assert found.races
    assert found.orders == len(mutations.SEEDS)
    assert not found.harmless


def test_the_results_cover_every_barrier_and_explain_undetected_ones(script) -> None:
    recorded = json.loads((script("results_files").RESULTS / RESULTS).read_text())["mutations"]
    wanted = [(name, index, behind) for name, make in CASES.items() for index, behind in enumerate(barriers(make()))]
    assert [(each["case"], each["barrier"], each["behind"]) for each in recorded] == wanted, (
        f"stale: run  python benchmarks/barrier_mutations.py -o benchmarks/results/{RESULTS}"
    )
    assert all(each["races"] or each["orders"] or each["harmless"] for each in recorded)
