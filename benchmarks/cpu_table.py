"""The README's table of what `cpu_networks.py` measured, from its raw samples; measures nothing.

    python benchmarks/cpu_table.py [results/cpu_networks.json]

Medians in milliseconds, and how many times as fast as plain onnxruntime: the median of the ratios within rounds, with
its 95 % confidence interval. `ships` is what `optimize` decides from these samples (`iosched.jobs.decision`).
Prints Markdown.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from testbed import RESULTS, compared, print_table, speedup_text

from iosched.jobs.decision import decide
from iosched.profiler.measuring.statistics import summarize

PLAIN, FOUND = "onnxruntime", "both"
COLUMNS = {
    "openvino": "OpenVINO",
    "sequential": "one after another, on both cores",
    "greedy": "greedy",
    FOUND: "schedule found",
}
NAMES = {
    "squeezenet": "SqueezeNet",
    "googlenet": "GoogLeNet",
    "inception_v3": "Inception V3",
    "randwire": "RandWire",
    "nasnet_a": "NASNet-A large",
}
_SHIPS = {FOUND: "the schedule found", "sequential": "one after another", PLAIN: "onnxruntime"}


def main(words: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("results", type=Path, nargs="?", default=RESULTS / "cpu_networks.json")
    report = json.loads(parser.parse_args(words).results.read_text(encoding="utf-8"))
    print_table(*table(report["networks"]))


def table(networks: Mapping[str, Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Headers and rows."""
    headers = ["network", PLAIN, *COLUMNS.values(), "ships", "search"]
    return headers, [_row(name, entry) for name, entry in networks.items()]


def _row(name: str, entry: Mapping[str, Any]) -> list[str]:
    measured = {each: summarize(samples) for each, samples in entry["samples_us"].items()}
    against = compared(entry["samples_us"], PLAIN)
    cells = [
        f"{measured[each].median_us / 1e3:.1f}{speedup_text(against.get(each))}" if each in measured else ""
        for each in COLUMNS
    ]
    decided = decide(measured, PLAIN, (FOUND, "sequential"))
    no_difference = decided.chosen == PLAIN and decided.comparison is not None and not decided.comparison.is_slower
    ships = _SHIPS[decided.chosen] + (": no difference found" if no_difference else "")
    plain = f"{measured[PLAIN].median_us / 1e3:.1f}"
    return [NAMES.get(name, name), plain, *cells, ships, f"{entry['search']['seconds']:.0f} s"]


if __name__ == "__main__":
    main(sys.argv[1:])
