"""The regret of a search follows from interleaved samples: by pair, and over the best schedule of any search."""

from __future__ import annotations

import random
from collections.abc import Callable
from statistics import mean, median
from types import ModuleType
from typing import Any

import pytest
from scripted import fire


@pytest.fixture
def regret(script: Callable[[str], ModuleType]) -> ModuleType:
    return script("regret")


def call(samples_us: list[list[float]], *pairs: tuple[int, int]) -> dict[str, Any]:
    """A call with these pairs of candidates: of the default effort, and of more effort."""
    found = [{"default": {"candidate": one}, "more": {"candidate": other}} for one, other in pairs]
    return {"pairs": found, "samples_us": samples_us}


def test_ratios_are_taken_within_rounds(regret: ModuleType) -> None:
    """A slow round slows both; equal schedules have no regret."""
    given = call([[100.0, 300.0, 100.0], [80.0, 240.0, 80.0]], (0, 1), (1, 1))
    assert regret.paired_ratios(given) == [[1.25] * 3, [1.0] * 3]
    assert regret.regret_text(regret.paired_ratios(given)).startswith("+12.5%")


def test_the_best_of_equal_schedules_is_not_faster_by_chance(regret: ModuleType) -> None:
    """If the same rounds chose and compared, the best of thirty would be 1 % faster by chance."""
    draw, found, biased = random.Random(0), [], []
    for _ in range(40):
        samples = [[100 * draw.gauss(1, 0.03) for _ in range(20)] for _ in range(30)]
        found += [median(ratios) - 1 for ratios in regret.ratios_to_best(call(samples, (0, 1)))]
        biased.append(median(samples[0]) / min(map(median, samples)) - 1)
    assert abs(mean(found)) < 0.004 < 0.01 < mean(biased)


def test_the_interval_contains_the_mean_and_narrows_with_more_pairs(regret: ModuleType) -> None:
    draw = random.Random(1)
    pairs = [[draw.gauss(1.02, 0.02) for _ in range(15)] for _ in range(40)]
    (low, high), (wide_low, wide_high) = regret.bootstrap(pairs, draws=400), regret.bootstrap(pairs[:3], draws=400)
    assert low < 1.02 < high
    assert high - low < (wide_high - wide_low) / 2
    assert regret.bootstrap([[1.0] * 5] * 3, draws=50) == (1.0, 1.0)


def test_a_block_is_a_separate_graph(regret: ModuleType) -> None:
    graph = fire().graph
    part = regret.part_of(graph, ["f1", "f3", "fc"])
    assert [operator.name for operator in part.operators] == ["f1", "f3", "fc"]
    assert [spec.name for spec in part.inputs] == ["fs"]
    assert part.outputs == ("fc",)
    assert part.predecessors == {"f1": (), "f3": (), "fc": ("f1", "f3")}
