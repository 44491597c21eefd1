"""The prediction of a rule for a schedule is read off the sums of its stages after other cache flushes."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

MIB = 1 << 20


@pytest.fixture
def sweeps(script: Callable[[str], ModuleType]) -> ModuleType:
    return script("sweeps")


def schedule(whole: float, **sums: float) -> dict[str, Any]:
    """Seven equal rounds; sums by quarters of a doubling, those below the weights with an "m"."""
    by_quarters = {name.replace("m", "-").lstrip("q"): us for name, us in sums.items()}
    return {"stages": [1], "rounds": [{"whole": whole, "sums": by_quarters}] * 7, "stage_us": {}}


def model(weights_nbytes: int) -> dict[str, Any]:
    """The sequential schedule takes 100 us as a whole, the one found 50 us after any cache flush."""
    sequential, found = schedule(100.0, qm4=90.0, q0=120.0, q4=160.0), schedule(50.0, qm4=50.0, q0=50.0)
    schedules = {"sequential": sequential, "found": found}
    return {"weights_nbytes": weights_nbytes, "own_cache_nbytes": 4 * MIB, "schedules": schedules}


def test_sums_between_measured_ones_are_interpolated(sweeps: ModuleType) -> None:
    sums = {"-4": 90.0, "0": 120.0, "4": 160.0}
    assert [sweeps.sum_at(sums, place) for place in (-9, -4, -2, 0, 1, 4, 9)] == [90, 90, 105, 120, 130, 160, 160]


def test_the_error_of_a_rule_is_that_of_its_flush_size(sweeps: ModuleType) -> None:
    one = model(3 * MIB)
    assert sweeps.errors(one, lambda weights, own: weights) == pytest.approx({"sequential": math.log(1.2), "found": 0})
    found = sweeps.errors(one, lambda weights, own: weights / 2)
    assert found == pytest.approx({"sequential": math.log(0.9), "found": 0})


def test_rules_are_compared_by_model_size_and_by_the_speedup_they_predict(sweeps: ModuleType) -> None:
    headers, rows = sweeps.rules_table({"small": model(4 * MIB), "large": model(16 * MIB)})
    exact = dict(zip(headers, rows[0], strict=True))
    assert exact["flushed"] == "as many bytes as the weights"
    assert exact["off"] == exact["below 8 MiB of weights"] == exact["above"] == f"{math.log(1.2) / 2:.1%}"
    assert exact["found / sequential is off"] == f"{math.log(1.2):.1%}"


def test_flush_sizes_stay_within_the_largest_flush(sweeps: ModuleType) -> None:
    assert sweeps.sweeps(MIB)[0] == MIB
    assert sweeps.sweeps(MIB)[-4] == MIB // 2
    assert max(sweeps.sweeps(1 << 40)) == 0
