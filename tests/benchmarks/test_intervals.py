"""Spreads are computed from measurements, the package has the recorded ones, and coverage is counted."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from iosched.profiler.devices.analytic.uncertainty import NORMAL, SPREADS, around
from iosched.profiler.devices.profiled_device import LEVEL

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


@pytest.fixture(scope="module")
def record() -> dict[str, dict[str, dict[str, object]]]:
    found: dict[str, dict[str, dict[str, object]]] = json.loads((RESULTS / "intervals.json").read_text())
    return found


def made_up(kernels: ModuleType, offsets: list[float], own: float = 0.1, n: int = 2000) -> list[object]:
    """Series with these logarithmic errors, and kernels that scatter by `own` around them."""
    rng = np.random.default_rng(3)
    return [
        kernels.Series("product", str(index), offset + own * rng.standard_normal(n), rng.uniform(100.0, 200.0, n))
        for index, offset in enumerate(offsets)
    ]


def test_the_package_has_the_recorded_spreads(script, record) -> None:
    assert record["spreads"] == script("intervals").rounded(SPREADS)
    assert record["level"] == LEVEL


def test_shared_and_own_spreads_are_separated(script) -> None:
    kernels = script("intervals")
    found = kernels.spread(made_up(kernels, [0.2, -0.2, 0.2, -0.2, 0.2]))
    assert found.shared == pytest.approx(0.2 * script("intervals_networks").STUDENT[5] / NORMAL, rel=0.02)
    assert found.own == pytest.approx(0.1, rel=0.05)


def test_the_shared_spread_is_wider_with_fewer_series(script) -> None:
    kernels = script("intervals")
    widths = [kernels.spread(made_up(kernels, [0.2] * n)).shared for n in (2, 3, 6)]
    assert widths == sorted(widths, reverse=True)
    assert kernels.widened(0.2, 6) > 0.2


def test_coverage_is_the_share_of_values_within_intervals(script) -> None:
    kernels = script("intervals")
    alike = made_up(kernels, [0.0] * 3)
    for found in kernels.series_covered(alike).values():
        assert found["single"] == pytest.approx(LEVEL, abs=0.02)
        assert found["sums"] == pytest.approx(LEVEL, abs=0.07)
    *_, off = kernels.series_covered(made_up(kernels, [0.0, 0.0, 0.0, 0.5])).values()
    assert off["single"] < 0.05
    assert off["sums"] == 0.0


def test_the_deviation_of_an_error_is_estimated_from_its_effects(script) -> None:
    networks = script("intervals_networks")
    unit = [around(value, 0.5) for value in (1.0, 2.0, 5.0)]
    found = [(known.value * factor, known) for known, factor in zip(unit, (1.1, 1 / 1.1, 1.1), strict=True)]
    assert networks._deviation(found) == pytest.approx(np.log(1.1) / 0.5)


def test_values_outside_their_interval_are_listed(script) -> None:
    networks = script("intervals_networks")
    found = networks.counted({"inside": (1.05, around(1.0, 0.1)), "outside": (2.0, around(1.0, 0.1))})
    assert (found["values"], found["inside"]) == (2, 1)
    assert found["published, computed, low, high"]["outside"] == [2.0, 1.0, 0.8483, 1.179]


def test_all_published_values_are_included(record) -> None:
    assert {name: found["values"] for name, found in record["networks"].items()} == {"latencies": 20, "speed-ups": 16}
    assert sum(int(str(found["values"])) for found in record["elsewhere"].values()) == 70
