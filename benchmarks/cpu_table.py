"""Tables and a chart of `cpu_networks.py` for the README and reports/cpu-networks.md, and of `cpu_sequential.py`.

Latencies are medians in milliseconds; a speedup divides two of them; its 95 % interval is that of `interleave.compare`.
Sequential execution in reports/cpu-rewrites.md has medians of speedups within rounds, at any speed of the machine.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from operator import truediv
from pathlib import Path
from statistics import fmean, median
from typing import Any

from result_tables import NAMES, Table, chart, interval_text, markdown_table, ratio_text, speedup_text, within_rounds
from results_files import results

from iosched.profiler.measuring.interleave import compare
from iosched.profiler.measuring.statistics import Interval, summarize

_DRAWS = 2000

PLAIN, FOUND, SHIPPED = "onnxruntime", "both", "iosched"
COLUMNS = {
    "onnxruntime-default": "without settings", "openvino": "OpenVINO", "sequential": "one after another, on both cores",
    FOUND: "schedule found",
}  # fmt: skip
BRANCHY = (
    "squeezenet", "googlenet", "inception_v3", "randwire", "nasnet_a", "nasnet_a@224", "keras_nasnetmobile",
)  # fmt: skip
_SHIPS = {
    SHIPPED: "schedule found", "lanes": "list schedule", "greedy": "greedy schedule",
    "session": "rewritten, in one session", "by_image": "one image at a time on each core",
    "sequential": "one after another", "reference": "onnxruntime", "openvino": "OpenVINO",
}  # fmt: skip
_LINKS = (
    ("alignment", PLAIN, "aligned"), ("other rewriting", "aligned", "rewritten"),
    ("our executor", "rewritten", "sequential"), ("scheduling", "sequential", FOUND), ("all of it", PLAIN, FOUND),
)  # fmt: skip
"""Each gain by its name: from one alternative to another."""

Entry = Mapping[str, Any]


def section(size: str, found: Mapping[str, Any]) -> str:
    """The shipped alternatives at a batch size, in sentences and as a table."""
    networks = found["networks"] if size == "1" else found["batches"][size]
    missing = _missing(found["networks"], networks)
    return f"{goals(networks)}{missing}\n\n{markdown_table(*table(networks))}"


def table(networks: Mapping[str, Entry]) -> Table:
    """Latencies of all alternatives, and the shipped one."""
    headers = ["network", PLAIN, *COLUMNS.values(), "ships", "that, over the better baseline", "search"]
    return headers, [_row(name, entry) for name, entry in in_order(networks)]


def short_table(networks: Mapping[str, Entry]) -> Table:
    """The README's table: latencies of baselines and the schedule found, and speedups over the faster baseline."""
    headers = ["network", PLAIN, COLUMNS["openvino"], COLUMNS[FOUND], "its speedup", "speedup of what ships", "ships"]
    return headers, [_short_row(name, entry) for name, entry in in_order(networks)]


def _short_row(name: str, entry: Entry) -> list[str]:
    samples = entry["samples_us"]
    cells = [f"{median(samples[each]) / 1e3:.1f}" if each in samples else "" for each in (PLAIN, "openvino", FOUND)]
    speedups = [ratio_text(ratio(samples, better_rival(samples), each)) for each in (FOUND, SHIPPED)]
    return [NAMES.get(name, name), *cells, *speedups, _ships(entry)]


def _ships(entry: Entry) -> str:
    name = (entry.get("candidate") or SHIPPED) if entry["shipped"] == SHIPPED else entry["shipped"]
    return _SHIPS.get(name, name)


def in_order(networks: Mapping[str, Entry]) -> Iterator[tuple[str, Entry]]:
    """The measured networks: those of `NAMES` in its order, then others."""
    for name in dict.fromkeys((*NAMES, *networks)):
        if name in networks and networks[name]["samples_us"]:
            yield name, networks[name]


def _row(name: str, entry: Entry) -> list[str]:
    samples = entry["samples_us"]
    cells = [
        f"{median(samples[each]) / 1e3:.1f}{speedup_text(ratio(samples, PLAIN, each))}" if each in samples else ""
        for each in COLUMNS
    ]
    shipped = ratio_text(ratio(samples, better_rival(samples), SHIPPED)) if SHIPPED in samples else ""
    plain = f"{median(samples[PLAIN]) / 1e3:.1f}"
    return [NAMES.get(name, name), plain, *cells, _ships(entry), shipped, f"{entry['search']['seconds']:.0f} s"]


def better_rival(samples_us: Mapping[str, Sequence[float]]) -> str:
    """The one with the smaller median of onnxruntime at its best and OpenVINO."""
    return min((name for name in (PLAIN, "openvino") if name in samples_us), key=lambda name: median(samples_us[name]))


def ratio(samples_us: Mapping[str, Sequence[float]], base: str, name: str) -> Interval | None:
    """Speedup of an alternative over `base`; None if one of them was not measured."""
    if base not in samples_us or name not in samples_us:
        return None
    return compare(summarize(samples_us[base]), summarize(samples_us[name]))


def split_table(networks: Mapping[str, Entry]) -> Table:
    """Steps of the speedup of the schedule found over plain onnxruntime."""
    headers = ["network", *(name for name, _, _ in _LINKS)]
    rows = [
        [NAMES.get(name, name), *(ratio_text(ratio(entry["samples_us"], before, after)) for _, before, after in _LINKS)]
        for name, entry in in_order(networks)
        if "rewritten" in entry["samples_us"]
    ]
    return headers, rows


def goals(networks: Mapping[str, Entry]) -> str:
    """Sentences that compare the shipped alternative with the better of onnxruntime and OpenVINO."""
    found = {
        name: ratio(entry["samples_us"], better_rival(entry["samples_us"]), SHIPPED)
        for name, entry in in_order(networks)
    }
    known = {name: each.value for name, each in found.items() if each is not None}
    if not known:
        return "Nothing was measured often enough to compare."
    least = min(known, key=lambda name: known[name])
    behind = [NAMES.get(name, name) for name, speedup in known.items() if speedup < 0.97]
    sentences = [
        f"The lowest speedup of what ships over the better of onnxruntime and OpenVINO is {known[least]:.2f} "
        f"({NAMES.get(least, least)}).",
        f"It is below 0.97 on {len(behind) or 'none'} of {len(known)} networks"
        f"{': ' + ', '.join(behind) if behind else ''}.",
    ]
    samples_us = [networks[name]["samples_us"] for name in BRANCHY if found.get(name) is not None]
    if samples_us:
        shipped, found_ones = (_mean_text(samples_us, name) for name in (SHIPPED, FOUND))
        sentences.append(
            f"Over {len(samples_us)} of the {len(BRANCHY)} networks with many branches, the geometric mean of these "
            f"speedups is {shipped}, and that of the schedules found {found_ones}."
        )
    return " ".join(sentences)


def _mean_text(networks: Sequence[Mapping[str, Sequence[float]]], name: str) -> str:
    return _mean_of([_in_rounds(samples_us, better_rival(samples_us), name) for samples_us in networks])


def _mean_of(ratios: Sequence[Sequence[float]]) -> str:
    return interval_text(*geometric_mean(ratios))


def _in_rounds(samples_us: Mapping[str, Sequence[float]], base: str, name: str) -> list[float]:
    return list(map(truediv, samples_us[base], samples_us[name]))


def geometric_mean(ratios: Sequence[Sequence[float]]) -> tuple[float, float, float]:
    """The geometric mean of the networks' median ratios, and its 95 % interval by resampling rounds (bootstrap).

    Args:
        ratios: those of each network's rounds.
    """
    draw_from = random.Random(0)

    def mean(each: Sequence[Sequence[float]]) -> float:
        return math.exp(fmean(math.log(median(of_one)) for of_one in each))

    means = sorted(mean([draw_from.choices(of_one, k=len(of_one)) for of_one in ratios]) for _ in range(_DRAWS))
    return mean(ratios), means[int(0.025 * _DRAWS)], means[int(0.975 * _DRAWS)]


def _missing(wanted: Mapping[str, Entry], networks: Mapping[str, Entry]) -> str:
    """A sentence about networks that were measured at batch size 1 but not at this one."""
    found = len(dict(in_order(networks)))
    whole = len(dict(in_order(wanted)))
    return "" if found >= whole else f" {whole - found} more networks were not measured at this batch size."


def draw(path: Path) -> None:
    """A bar for each alternative of each network: its speedup over onnxruntime, with the interval."""
    networks = results("cpu_networks")["networks"]
    bars = {"openvino": "#a9b4c2", "sequential": "#e0a458", FOUND: "#4c78a8", SHIPPED: "#1d242d"}
    words = {**COLUMNS, "sequential": "one after another", SHIPPED: "what ships"}
    shown = list(in_order(networks))
    height = 0.8 / len(bars)
    style = {"ecolor": "#8a8f98", "error_kw": {"lw": 0.8}}
    with chart(path, figsize=(9, 0.62 * len(shown) + 1.4)) as (_, axis):
        for number, (name, colour) in enumerate(bars.items()):
            found = [ratio(entry["samples_us"], PLAIN, name) for _, entry in shown]
            places = [index + (number - (len(bars) - 1) / 2) * height for index, each in enumerate(found) if each]
            known = [each for each in found if each]
            errors = [[c.value - c.low for c in known], [c.high - c.value for c in known]]
            axis.barh(places, [c.value for c in known], height, xerr=errors, color=colour, label=words[name], **style)
        axis.axvline(1, c="#1d242d", lw=0.8)
        axis.set_yticks(range(len(shown)), [NAMES.get(name, name) for name, _ in shown])
        axis.invert_yaxis()
        axis.set(xlabel="times as fast as onnxruntime at its best setting, batch size 1")
        axis.legend(fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1), ncol=len(bars), frameon=False)


def sequential_table(models: Mapping[str, Entry]) -> Table:
    """The rewritten graph in one session, and each operator divided over the cores by the executor."""
    pairs = ((PLAIN, "session"), (PLAIN, "sequential"), ("session", "sequential"))
    medians = {_title(name): medians_us(entry) for name, entry in models.items()}
    rows = [
        [name, _ms(medians[name][PLAIN]), *(ratio_text(within_rounds(medians[name], *pair)) for pair in pairs), *counts]
        for name, counts in zip(medians, map(_counts, models.values()), strict=True)
    ]
    means = [_mean_of([_in_rounds(each, *pair) for each in medians.values()]) for pair in pairs]
    headers = [PLAIN, "one session", "divided", "divided over one session", "conversions", "tasks of the longer lane"]
    return ["network", *headers], [*rows, ["geometric mean", "", *means, "", ""]]


def medians_us(entry: Mapping[str, Any]) -> dict[str, list[float]]:
    """The median of each turn."""
    return {name: [median(turn) for turn in turns] for name, turns in entry["samples_us"].items()}


def _counts(entry: Entry) -> list[str]:
    counts = entry["counts"]["sequential"]
    return [str(counts["conversions"]), str(max(counts["tasks"]))]


def _ms(samples_us: Sequence[float]) -> str:
    return f"{median(samples_us) / 1e3:.1f}"


def _title(name: str) -> str:
    return NAMES.get(name.removeprefix("zoo:"), name)
