"""The README's table and the page of measured networks are what their script makes of the raw samples."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
STALE = "stale: run  python benchmarks/cpu_table.py --write"


@pytest.fixture
def table(script: Callable[[str], ModuleType]) -> ModuleType:
    return script("cpu_table")


def entry(shipped: str, **samples_us: Sequence[float]) -> Mapping[str, object]:
    return {"shipped": shipped, "samples_us": samples_us, "search": {"seconds": 1}}


def test_the_readme_and_the_page_are_what_the_raw_samples_say(
    table: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    table.main([])
    assert capsys.readouterr().out in (ROOT / "README.md").read_text(), STALE
    results = json.loads((ROOT / "benchmarks/results/cpu_networks.json").read_text())
    assert table.PAGE.read_text() == table.page(results), STALE


def test_ratios_are_taken_within_rounds_and_what_ships_against_the_better_rival(table: ModuleType) -> None:
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
    over = [row["that, over the better rival"] for row in shown]
    assert over == ["0.50 (0.50 to 0.50)", "1.00 (1.00 to 1.00)", "4.00 (4.00 to 4.00)"]
    assert [row["OpenVINO"] for row in shown] == ["100.0, 2.00 (2.00 to 2.00)", "400.0, 0.50 (0.50 to 0.50)", ""]
    assert table.short_table(networks)[1][0] == ["x", "200.0", "100.0", "200.0", "0.50 (0.50 to 0.50)", "OpenVINO"]
    assert table.goals(networks).startswith("What ships is at least 0.50 times as fast")
    assert "below 0.97 times on 1 of 3 networks: x." in table.goals(networks)


def test_the_mean_over_networks_is_geometric_and_has_an_interval(table: ModuleType) -> None:
    assert table.geometric_mean([[2.0] * 9, [8.0] * 9]) == pytest.approx((4.0, 4.0, 4.0))
    mean, low, high = table.geometric_mean([[1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6], [2.0] * 7])
    assert mean == pytest.approx((1.3 * 2.0) ** 0.5)
    assert (1.1 * 2.0) ** 0.5 <= low < mean < high <= (1.5 * 2.0) ** 0.5


def test_the_gain_is_split_into_links_that_multiply(table: ModuleType) -> None:
    steps = {"onnxruntime": 120.0, "aligned": 100.0, "rewritten": 80.0, "sequential": 60.0, "both": 50.0}
    networks = {"x": entry("iosched", **{name: [us] * 9 for name, us in steps.items()}), "plain": entry("iosched")}
    _, rows = table.split_table(networks)
    assert [[cell.split()[0] for cell in row] for row in rows] == [["x", "1.20", "1.25", "1.33", "1.20", "2.40"]]


def test_a_table_takes_the_place_of_the_one_before(table: ModuleType) -> None:
    text = "before\n\n| network | onnxruntime | old |\n|---|---|---|\n| x | 1 | 2 |\n\nafter\n"
    new = "| network | onnxruntime |\n|---|---|\n| x | 1 |\n| y | 2 |"
    expected = "before\n\n| network | onnxruntime |\n|---|---|\n| x | 1 |\n| y | 2 |\n\nafter\n"
    assert table.with_table(text, table.README_TABLE, new) == expected


def test_the_page_says_how_many_networks_were_not_measured_at_a_batch_size(table: ModuleType) -> None:
    networks = {name: entry("reference", onnxruntime=[1e3] * 9, iosched=[1e3] * 9) for name in ("x", "y", "z")}
    machine, versions = {"cores": 2, "processor": "x"}, {"onnxruntime": "1", "openvino": "2"}
    batches = {"8": {"x": networks["x"]}, "32": networks}
    page = table.page({"machine": machine, "versions": versions, "networks": networks, "batches": batches})
    at_eight, at_thirty_two = page[page.index("## Batch size 8") :].split("## Batch size 32")
    assert "The other 2 networks were not measured at this batch size." in at_eight
    assert "not measured" not in at_thirty_two
