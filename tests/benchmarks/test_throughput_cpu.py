"""The throughput table that its script makes from the raw samples."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest


@pytest.fixture
def table(script: Callable[[str], ModuleType]) -> ModuleType:
    return script("throughput_cpu")


def way(*samples_us: float) -> dict[str, object]:
    return {"samples_us": samples_us, "images_per_s": 1e6 / sorted(samples_us)[len(samples_us) // 2]}


def test_our_best_configuration_is_compared_with_the_better_baseline_by_round(table: ModuleType) -> None:
    ways = {
        "onnxruntime, one session": way(100, 200, 400, 100, 200, 400, 200),
        "onnxruntime, 2 teams": way(90, 180, 360, 90, 180, 360, 180),
        "openvino, throughput": way(80, 160, 320, 80, 160, 320, 160),
        "iosched, one": way(80, 160, 320, 80, 160, 320, 160),
        "iosched, two": way(40, 80, 160, 40, 80, 160, 80),
    }
    _, rows = table.table([{"model": "x", "batch_size": 8, "ways": ways}])
    assert rows == [["x", "8", "5555.6", "6250.0", "12500.0", "two", "2.00 (2.00 to 2.00)"]]


def test_without_openvino_its_cell_is_empty(table: ModuleType) -> None:
    ways = {"onnxruntime, one session": way(*[200] * 7), "iosched, one": way(*[100] * 7)}
    _, rows = table.table([{"model": "x", "batch_size": 1, "ways": ways}])
    assert rows == [["x", "1", "5000.0", "", "10000.0", "one", "2.00 (2.00 to 2.00)"]]


def test_networks_are_listed_in_the_order_of_the_latency_page(table: ModuleType) -> None:
    ways = {"onnxruntime": way(*[2] * 7), "iosched": way(*[1] * 7)}
    models = [(name, size) for name in ("b", "nasnet_a", "squeezenet") for size in (8, 1)]
    rows = [{"model": name, "batch_size": size, "ways": ways} for name, size in models]
    _, found = table.table(rows)
    assert [(row[0], row[1]) for row in found[::2]] == [("SqueezeNet", "1"), ("NASNet-A large", "1"), ("b", "1")]
