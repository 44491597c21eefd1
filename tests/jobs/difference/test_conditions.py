"""Differences between two results in machine, versions, seeds and background load."""

from __future__ import annotations

import pytest

from iosched.jobs.difference.conditions import unlike_places

HERE = {
    "machine": {"cpu": "A", "design": {"family": "6"}, "cores": [0, 1], "memory_nbytes": 8},
    "versions": {"iosched": "1", "onnxruntime": "1.31"},
    "seeds": {"inputs": 0},
    "time": "2026-01-01T00:00:00Z",
    "command": ["iosched", "bench"],
}


def test_equal_conditions_are_not_listed_and_time_and_command_are_ignored() -> None:
    assert not list(unlike_places(HERE, {**HERE, "time": "2027", "command": ["iosched", "bench", "-q"]}))


def test_differences_are_named_with_both_values() -> None:
    there = {
        **HERE,
        "machine": {"cpu": "B", "design": {"family": "26"}, "cores": [0, 1, 2], "memory_nbytes": 8},
        "versions": {"iosched": "1", "onnxruntime": "1.32", "openvino": "2026.1"},
        "seeds": {"inputs": 1},
    }
    assert list(unlike_places(HERE, there)) == [
        "from different machines (cpu A and B; family 6 and 26; cores 2 and 3)",
        "from different versions (onnxruntime 1.31 and 1.32; openvino none and 2026.1)",
        "from different seeds (inputs 0 and 1)",
    ]


def test_a_missing_background_load_counts_as_0() -> None:
    assert not list(unlike_places(HERE, {**HERE, "background_load": 0}))
    assert list(unlike_places(HERE, {**HERE, "background_load": 2})) == [
        "measured under different background loads (0 and 2)"
    ]


@pytest.mark.parametrize("other", [{}, {"machine": None}, {"machine": "A", "versions": 3}])
def test_missing_conditions_are_not_differences(other: dict[str, object]) -> None:
    assert not list(unlike_places(HERE, other))
    assert not list(unlike_places(other, HERE))


def test_long_differences_are_cut_short() -> None:
    long = {"machine": {f"key {number}": "x" * 10_000 for number in range(100)}}
    (text,) = unlike_places(long, {"machine": {}})
    assert len(text) < 1000
    assert "and 94 more" in text
