"""Orders of networks are compared with the latencies of whole models, and tables with raw samples."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iosched.profiler.measuring.statistics import summarize
from iosched.scheduler.baselines import sequential

ROOT = Path(__file__).parents[2]
VALUES = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=2, max_size=12)


@pytest.fixture
def rank(script: Callable[[str], ModuleType]) -> ModuleType:
    return script("rank")


def variant(number: int, slowness: float = 1.0) -> dict[str, Any]:
    """A network whose shipped latency grows with its number, and whose FLOPs shrink with it."""
    one_pass = {
        "shipped": [slowness * (10.0 + number)] * 3, "sequential": [slowness * (20.0 + number)] * 3,
        "yardstick": [slowness * 700.0] * 3, "reference_us": 700.0,
    }  # fmt: skip
    return {
        "flops": 100 - number, "params": 5, "operators": 3, "shipped": "iosched", "stages": 2,
        "sum_us": 5.0 + number / 2, "sequential_sum_us": 10.0 + number / 2,
        "samples_us": {"measured": [slowness * (10.0 + number)] * 7, "reference": [50.0] * 7},
        "measurements": 30, "cache_hits": 10 * number, "seconds": {"load": 0.1, "search": 2.0, "comparison": 4.0},
        "passes": [one_pass, one_pass],
    }  # fmt: skip


def test_tau_ignores_pairs_with_a_tie(rank: ModuleType) -> None:
    @given(VALUES)
    def check(pairs: list[tuple[int, int]]) -> None:
        both = [((a, b), other) for place, (a, b) in enumerate(pairs) for other in pairs[:place]]
        signs = [(a - c) * (b - d) for (a, b), (c, d) in both if a != c and b != d]
        expected = sum(1 if sign > 0 else -1 for sign in signs) / max(len(signs), 1)
        assert rank.tau(*zip(*pairs, strict=True)) == pytest.approx(expected)

    check()


def test_the_interval_of_tau_is_reproducible_and_narrows_with_more_networks(rank: ModuleType) -> None:
    draw = Random(0)
    values = [draw.random() for _ in range(80)]
    truth = [value + draw.random() for value in values]
    (low, high), (few_low, few_high) = (rank.interval(rank.tau, values[:count], truth[:count]) for count in (80, 10))
    assert low < rank.tau(values, truth) < high
    assert high - low < few_high - few_low
    assert rank.interval(rank.tau, values, truth) == (low, high)


@pytest.mark.slow
def test_tau_is_one_for_the_true_order_and_minus_one_for_its_reverse(rank: ModuleType) -> None:
    headers, rows = rank.orders_table({str(number): variant(number) for number in range(10)})
    found = {row[0]: dict(zip(headers, row, strict=True)) for row in rows}
    assert found["FLOPs"]["tau with what ships"] == "-1.00 (-1.00 to -1.00)"
    assert found["sum of stages"]["tau with what ships"] == "1.00 (1.00 to 1.00)"
    assert found["sum of stages"]["factor, and off by at most"] == "2.00, 0%"
    assert found["FLOPs"]["factor, and off by at most"] == ""
    assert found["FLOPs"]["less that of the sum of stages"] == "-2.00 to -2.00"
    assert found["sequential latency"]["less that of the sum of stages"] == "0.00 to 0.00"


def test_shipped_latencies_do_not_depend_on_the_speed_of_the_machine(rank: ModuleType) -> None:
    assert rank.shipped_us(variant(3, slowness=1.5)) == pytest.approx(13.0)
    assert rank.first_us(variant(3, slowness=1.5)) == pytest.approx(19.5)
    assert rank.first_us({**variant(3), "shipped": "reference"}) == 50.0


def test_networks_with_fewer_passes_are_measured_first(rank: ModuleType) -> None:
    variants = {"mnasnet-0": variant(0), "mnasnet-1": {**variant(1), "passes": []}}
    assert rank.passes_left(variants, 2) == [1, 1]
    assert rank.passes_left(variants, 3) == [1, 1, 0, 1]
    assert rank.missing(variants, 4) == [2, 3]


@pytest.mark.slow
def test_a_pass_measures_the_shipped_schedule_and_the_calibration_kernel(rank: ModuleType, tmp_path: Path) -> None:
    found = rank.Bench(32, rank.OptimizeSettings("cpu", 1, "sequential", profile_db=tmp_path / "p.db"))
    model = found.model(0)
    document = rank.ScheduleDocument(
        model.name, model.digest, model.bindings, "float32", {"kind": "cpu", "name": ""}, sequential(model.graph)
    )
    found.document_path(0).write_text(document.to_json())
    with (
        rank.ProfileDatabase(tmp_path / "p.db") as database,
        rank.opened(rank.CpuDevice(), model, found.settings.opening, tmp_path / "p.db") as there,
    ):
        database.keep_calibration(there.cost.device, summarize([700.0] * 7))
    (one,) = found.passed(0, {**variant(0), "passes": []})["passes"]
    assert {name: len(each) for name, each in one.items() if name != "reference_us"} == {
        "shipped": 3, "sequential": 3, "yardstick": 3,
    }  # fmt: skip
    assert one["reference_us"] == 700.0


def test_seconds_are_medians_over_consecutive_networks(rank: ModuleType) -> None:
    _, rows = rank.seconds_table({str(number): variant(number) for number in range(25)})
    assert rows[0] == ("1 to 20", "76%", "30", "2.0 s", "4.0 s", "iosched 20")
    assert rows[1][0] == "21 to 25"


@pytest.mark.slow
def test_a_call_resumes_where_the_previous_one_ended(
    rank: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[tuple[str, int]] = []
    now_s = [0.0]

    def observed(self: object, seed: int) -> dict[str, Any]:
        seen.append(("new", seed))
        now_s[0] += 60.0
        return {**variant(seed), "passes": []}

    def passed(self: object, seed: int, before: dict[str, Any]) -> dict[str, Any]:
        seen.append(("pass", seed))
        now_s[0] += 60.0
        return {**before, "passes": [*before["passes"], variant(seed)["passes"][0]]}

    monkeypatch.setattr(rank.Bench, "observed", observed)
    monkeypatch.setattr(rank.Bench, "passed", passed)
    monkeypatch.setattr(rank.time, "monotonic", lambda: now_s[0])
    words = ["--variants", "3", "--passes", "1", "--work", str(tmp_path), "-o", str(tmp_path / "r.json")]
    rank.main([*words, "--minutes", "3.1"])
    assert seen == [("new", 0), ("new", 1), ("pass", 0)]
    assert "call again" in capsys.readouterr().err
    rank.main([*words, "--minutes", "10"])
    assert seen[3:] == [("new", 2), ("pass", 1), ("pass", 2)]
    assert "nothing is missing" in capsys.readouterr().err
    found = json.loads((tmp_path / "r.json").read_text())["variants"]
    assert {name: len(one["passes"]) for name, one in found.items()} == {f"mnasnet-{seed}": 1 for seed in range(3)}
