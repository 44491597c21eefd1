"""Tables and a chart of what `gpu.py` measured, for the documentation.

    python benchmarks/gpu_report.py benchmarks/results/gpu.json [--plot gpu.svg] [--batch 1] [--precision fp32]

Latencies are medians of one run, in microseconds, and how many times as fast as one operator after another in one CUDA
graph, measured in turn with it: the median of the ratios within rounds, with its 95 % interval. Prints Markdown.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from testbed import compared, print_table, speedup_text

BASE = "sequential"
_COLOURS = (
    "#8a8f98",
    "#e08a3c",
    "#54a24b",
    "#4c78a8",
    "#7a5aa6",
    "#b279a2",
    "#9d755d",
    "#d67195",
    "#bab0ac",
    "#f58518",
)

Case = Mapping[str, Any]


def main(words: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("results", type=Path, nargs="+", help="what gpu.py wrote, on one GPU")
    parser.add_argument("--plot", type=Path, metavar="F.svg", help="draw the speed-ups (needs matplotlib)")
    parser.add_argument("--batch", type=int, default=1, help="batch size that is drawn")
    parser.add_argument("--precision", default="fp32", help="precision that is drawn")
    options = parser.parse_args(words)
    reports = [json.loads(path.read_text(encoding="utf-8")) for path in options.results]
    gpus = {report["gpu"] for report in reports}
    if len(gpus) > 1:
        parser.error(f"these were measured on {len(gpus)} GPUs: {', '.join(sorted(gpus))}")
    cases = [case for report in reports for case in report["cases"] if "median_us" in case]
    print_table(*latency_table(cases))
    print()
    print_table(*search_table(cases))
    if options.plot is not None:
        drawn = [case for case in cases if (case["batch"], case["precision"]) == (options.batch, options.precision)]
        plot(options.plot, drawn, f"{gpus.pop()}, batch {options.batch}, {options.precision}")


def latency_table(cases: Sequence[Case]) -> tuple[list[str], list[list[str]]]:
    """Headers and rows: every alternative's latency, the largest error of our own, and the bound of the roofline."""
    names = list(dict.fromkeys(name for case in cases for name in case["median_us"]))
    rows = []
    for case in cases:
        roofline = case["roofline_us"]
        bound = f"{max(roofline.values()):.0f}" if roofline else ""
        ours = max(case["relative_error"][name] for name in case["kernels"])
        against = compared(case["samples_us"], BASE)
        cells = [
            f"{case['median_us'][name]:.0f}{speedup_text(against.get(name))}" if name in case["median_us"] else ""
            for name in names
        ]
        rows.append([case["network"], str(case["batch"]), case["precision"], *cells, bound, f"{ours:.0e}"])
    return ["network", "batch", "precision", *names, "roofline", "error"], rows


def search_table(cases: Sequence[Case]) -> tuple[list[str], list[list[str]]]:
    """Headers and rows: what finding the schedule of strategy `both` took, and what it predicted."""
    rows = []
    for case in cases:
        search = case["search"]["both"]
        measured_us = case["median_us"]["both"]
        seconds = case["search"]["opening_seconds"] + search["seconds"]
        rows.append([
            case["network"], str(case["batch"]), case["precision"], f"{seconds:.1f}",
            str(search["measurements"]), str(search["signatures"]), f"{search['gap']:.1%}",
            f"{measured_us / search['predicted_us']:.2f}",
            str(case["kernels"][BASE]), str(case["kernels"]["both"]),
        ])  # fmt: skip
    headers = [
        "network",
        "batch",
        "precision",
        "search s",
        "measured",
        "distinct stages",
        "gap",
        "measured / predicted",
    ]
    return [*headers, "kernels, sequential", "kernels, both"], rows


def plot(path: Path, cases: Sequence[Case], title: str) -> None:
    """Bars of the speed over the sequential CUDA graph with its interval, a group for each network."""
    from matplotlib import pyplot

    against = [compared(case["samples_us"], BASE) for case in cases]
    names = list(dict.fromkeys(name for each in against for name in each))
    figure, axis = pyplot.subplots(figsize=(2 + 2.2 * len(cases), 3.8))
    width = 0.8 / max(len(names), 1)
    for place, name in enumerate(names):
        drawn = {index: each[name] for index, each in enumerate(against) if name in each}
        speeds = [each.speedup for each in drawn.values()]
        ends = [
            [each.speedup - each.low for each in drawn.values()],
            [each.high - each.speedup for each in drawn.values()],
        ]
        colour = _COLOURS[place % len(_COLOURS)]
        at = [index + place * width - 0.4 for index in drawn]
        bars = axis.bar(at, speeds, width, yerr=ends, error_kw={"lw": 0.6}, label=name, color=colour)
        axis.bar_label(bars, fmt="%.2f", fontsize=6, rotation=90, padding=2)
    axis.axhline(1, c="#8a8f98", lw=0.8)
    axis.set_xticks([index - width / 2 for index in range(len(cases))], [case["network"] for case in cases])
    axis.set(ylabel="times as fast as sequential", title=title)
    axis.margins(y=0.15)
    axis.legend(fontsize=7, ncols=2)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main(sys.argv[1:])
