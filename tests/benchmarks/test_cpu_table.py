"""Comparisons in the tables of measured networks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import ModuleType

import pytest


@pytest.fixture
def table(script: Callable[[str], ModuleType]) -> ModuleType:
    return script("cpu_table")


def entry(shipped: str, candidate: str | None = None, **samples_us: Sequence[float]) -> Mapping[str, object]:
    return {"shipped": shipped, "candidate": candidate, "samples_us": samples_us, "search": {"seconds": 1}}


def test_ratios_are_taken_within_rounds_and_over_the_better_baseline(table: ModuleType) -> None:
    drifting = [100e3, 200e3, 400e3] * 3
    ours = {"iosched": drifting, "both": drifting}
    networks = {
        "x": entry("openvino", onnxruntime=drifting, openvino=[us / 2 for us in drifting], **ours),
        "y": entry("reference", onnxruntime=drifting, openvino=[us * 2 for us in drifting], iosched=drifting),
        "unknown": entry("a word of tomorrow", onnxruntime=drifting, iosched=[us / 4 for us in drifting]),
    }
    headers, rows = table.table(networks)
    shown = [dict(zip(headers, row, strict=True)) for row in rows]
    assert [row["ships"] for row in shown] == ["OpenVINO", "onnxruntime", "a word of tomorrow"]
    over = [row["that, over the better baseline"] for row in shown]
    assert over == ["0.50 (0.50 to 0.50)", "1.00 (1.00 to 1.00)", "4.00 (4.00 to 4.00)"]
    assert [row["OpenVINO"] for row in shown] == ["100.0, 2.00 (2.00 to 2.00)", "400.0, 0.50 (0.50 to 0.50)", ""]
    halved = "0.50 (0.50 to 0.50)"
    assert table.short_table(networks)[1][0] == ["x", "200.0", "100.0", "200.0", halved, halved, "OpenVINO"]
    assert table.goals(networks).startswith(
        "The lowest speedup of what ships over the better of onnxruntime and OpenVINO is 0.50 (x)."
    )
    assert "below 0.97 on 1 of 3 networks: x." in table.goals(networks)


def test_the_shipped_schedule_is_listed_by_its_name(table: ModuleType) -> None:
    same = {name: [1e3] * 9 for name in ("onnxruntime", "iosched")}
    networks = {name: entry("iosched", name, **same) for name in ("iosched", "by_image", "lanes")}
    ships = [row[-3] for row in table.table(networks)[1]]
    assert ships == ["schedule found", "one image at a time on each core", "list schedule"]


def test_the_mean_over_networks_is_geometric_and_has_an_interval(table: ModuleType) -> None:
    assert table.geometric_mean([[2.0] * 9, [8.0] * 9]) == pytest.approx((4.0, 4.0, 4.0))
    mean, low, high = table.geometric_mean([[1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6], [2.0] * 7])
    assert mean == pytest.approx((1.3 * 2.0) ** 0.5)
    assert (1.1 * 2.0) ** 0.5 <= low < mean < high <= (1.5 * 2.0) ** 0.5


def test_the_speedup_is_split_into_factors(table: ModuleType) -> None:
    steps = {"onnxruntime": 120.0, "aligned": 100.0, "rewritten": 80.0, "sequential": 60.0, "both": 50.0}
    networks = {"x": entry("iosched", **{name: [us] * 9 for name, us in steps.items()}), "plain": entry("iosched")}
    _, rows = table.split_table(networks)
    assert [[cell.split()[0] for cell in row] for row in rows] == [["x", "1.20", "1.25", "1.33", "1.20", "2.40"]]


def test_sequential_execution_is_compared_within_rounds_with_onnxruntime_and_one_session(table: ModuleType) -> None:
    drifting, plan = [[100e3], [300e3], [900e3]], {"nodes": 20, "conversions": 3, "tasks": [7, 9], "waits": 4}
    turns = {name: [[us / by for us in turn] for turn in drifting] for name, by in (("session", 2), ("sequential", 4))}
    models = {"x": {"samples_us": {"onnxruntime": drifting, **turns}, "counts": {"sequential": plan}}}
    headers, rows = table.sequential_table(models)
    assert [len(row) for row in rows] == [len(headers)] * 2
    assert rows[0] == ["x", "300.0", *(f"{by}.00 ({by}.00 to {by}.00)" for by in (2, 4, 2)), "3", "9"]
    assert rows[1] == ["geometric mean", "", *rows[0][2:5], "", ""]
