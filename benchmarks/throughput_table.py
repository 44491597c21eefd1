"""The table of reports/throughput.md, from the raw samples of `throughput_cpu.py`.

For each model and batch size: the best of our ways to divide the cores, the best of onnxruntime's and OpenVINO's, in
images a second by the median sample. A ratio divides two medians; its 95 % interval is that of
`interleave.compare`. The best of several ways that are equally good is the luckiest one; so is the rival's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from cpu_table import NAMES, ratio, ratio_text
from testbed import Table

HEADERS = ["network", "batch", "onnxruntime", "OpenVINO", "ours", "way", "ours over the better of both"]
FAMILIES = ("onnxruntime", "openvino", "iosched")

Way = Mapping[str, Any]


def table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """A row for each model and batch size, in the order of `NAMES`."""
    places = {name: place for place, name in enumerate(NAMES)}
    ordered = sorted(rows, key=lambda row: (places.get(row["model"], len(places)), row["model"], row["batch_size"]))
    return HEADERS, [_row(row) for row in ordered]


def _row(row: Mapping[str, Any]) -> list[str]:
    ways: Mapping[str, Way] = row["ways"]
    best = {family: best_of(ways, family) for family in FAMILIES}
    rivals = [name for name in (best["onnxruntime"], best["openvino"]) if name is not None]
    rival = min(rivals, key=lambda name: _median_us(ways, name))
    samples = {name: way["samples_us"] for name, way in ways.items()}
    cells = [_images(ways, best[family]) for family in FAMILIES]
    ours = best["iosched"] or ""
    against = ratio_text(ratio(samples, rival, ours))
    network, way = NAMES.get(row["model"], row["model"]), ours.removeprefix("iosched, ")
    return [network, str(row["batch_size"]), *cells, way, against]


def best_of(ways: Mapping[str, Way], family: str) -> str | None:
    """Of the ways whose names begin with `family` the one with the smallest median; None without any."""
    found = [name for name in ways if name.startswith(family)]
    return min(found, key=lambda name: _median_us(ways, name), default=None)


def _median_us(ways: Mapping[str, Way], name: str) -> float:
    return float(median(ways[name]["samples_us"]))


def _images(ways: Mapping[str, Way], name: str | None) -> str:
    return "" if name is None else f"{ways[name]['images_per_s']:.1f}"
