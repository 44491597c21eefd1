"""Orders of networks are held against the latencies of whole models, and the page says what the raw samples say."""

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

ROOT = Path(__file__).parents[2]
VALUES = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=2, max_size=12)


@pytest.fixture
def rank(script: Callable[[str], ModuleType]) -> ModuleType:
    return script("rank")


def variant(number: int) -> dict[str, Any]:
    """A network whose latency as it ships grows with its number, and whose FLOPs shrink with it."""
    samples_us = {"measured": [10.0 + number] * 7, "sequential": [20.0 + number] * 7, "reference": [50.0] * 7}
    return {
        "flops": 100 - number, "params": 5, "operators": 3, "shipped": "iosched", "stages": 2,
        "sum_us": 5.0 + number / 2, "sequential_sum_us": 10.0 + number / 2, "samples_us": samples_us,
        "measurements": 30, "cache_hits": 10 * number, "seconds": {"load": 0.1, "search": 2.0, "comparison": 4.0},
    }  # fmt: skip


def test_tau_is_of_the_pairs_that_neither_order_has_as_equal(rank: ModuleType) -> None:
    @given(VALUES)
    def check(pairs: list[tuple[int, int]]) -> None:
        both = [((a, b), other) for place, (a, b) in enumerate(pairs) for other in pairs[:place]]
        signs = [(a - c) * (b - d) for (a, b), (c, d) in both if a != c and b != d]
        expected = sum(1 if sign > 0 else -1 for sign in signs) / max(len(signs), 1)
        assert rank.tau(*zip(*pairs, strict=True)) == pytest.approx(expected)

    check()


def test_an_interval_of_tau_is_the_same_at_each_call_and_narrower_with_more_networks(rank: ModuleType) -> None:
    draw = Random(0)
    values = [draw.random() for _ in range(80)]
    truth = [value + draw.random() for value in values]
    (low, high), (few_low, few_high) = (rank.tau_interval(values[:count], truth[:count]) for count in (80, 10))
    assert low < rank.tau(values, truth) < high
    assert high - low < few_high - few_low
    assert rank.tau_interval(values, truth) == (low, high)


def test_a_table_has_the_order_of_the_truth_and_the_other_way_round(rank: ModuleType) -> None:
    headers, rows = rank.orders_table([variant(number) for number in range(10)])
    found = {row[0]: dict(zip(headers, row, strict=True)) for row in rows}
    assert found["FLOPs"]["tau with what ships"] == "-1.00 (-1.00 to -1.00)"
    assert found["sum of stages"]["tau with what ships"] == "1.00 (1.00 to 1.00)"
    assert found["sum of stages"]["factor, off by at most"] == "2.00, 0%"
    assert found["FLOPs"]["factor, off by at most"] == ""


def test_the_truth_is_what_ships(rank: ModuleType) -> None:
    assert rank.shipped_us(variant(3)) == 13.0
    assert rank.shipped_us({**variant(3), "shipped": "reference"}) == 50.0


def test_seconds_are_medians_of_networks_in_a_row(rank: ModuleType) -> None:
    _, rows = rank.seconds_table([variant(number) for number in range(25)])
    assert rows[0] == ("1 to 20", "76%", "30", "2.0 s", "4.0 s", "iosched 20")
    assert rows[1][0] == "21 to 25"


def test_a_call_goes_on_where_the_one_before_ended(
    rank: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[int] = []
    now_s = [0.0]

    def observed(seed: int, *_: object) -> dict[str, Any]:
        seen.append(seed)
        now_s[0] += 100.0
        return variant(seed)

    monkeypatch.setattr(rank, "observed", observed)
    monkeypatch.setattr(rank.time, "monotonic", lambda: now_s[0])
    words = ["--variants", "5", "--work", str(tmp_path), "-o", str(tmp_path / "r.json")]
    rank.main([*words, "--minutes", "3"])
    assert seen == [0, 1]
    assert "call again" in capsys.readouterr().err
    rank.main([*words, "--minutes", "10"])
    assert seen == [0, 1, 2, 3, 4]
    assert "nothing is missing" in capsys.readouterr().err
    assert list(json.loads((tmp_path / "r.json").read_text())["variants"]) == [f"mnasnet-{seed}" for seed in range(5)]
