"""Tables and the chart of reports/cpu-where-time-goes.md, from the results of cpu_profile.py and cpu_roofline.py."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from result_tables import Table, chart
from results_files import results

LIBRARIES = {"onnxruntime": "onnxruntime", "ours": "ours", "openvino": "OpenVINO"}
COLOURS = {"onnxruntime": "#e0a458", "ours": "#1d242d", "openvino": "#4c78a8"}
KINDS = (
    "1x1 convolution", "depthwise convolution", "other convolution", "matrix product", "pooling", "elementwise", "copy",
    "layout change",
)  # fmt: skip
WORST = 6
Entry = Mapping[str, Any]


def latency_us(profile: Entry) -> float:
    """The median of the faster half of the runs without a profile."""
    runs = sorted(us for turn in profile["latency_us"] for us in turn)
    return median(runs[: (len(runs) + 1) // 2])


def parts_us(profile: Entry) -> dict[str, float]:
    """Parts of a latency: kernels by their kind, calls and waiting if known, and the rest."""
    kinds: Counter[str] = Counter()
    for kernel in profile["kernels"]:
        kinds[kernel["kind"]] += kernel["us"]
    calls, waiting = profile.get("calls_us", 0.0), profile.get("waiting_us", 0.0)
    found = {**kinds, "calls of kernels": calls, "waiting for the other": waiting}
    return {**found, "rest": latency_us(profile) - sum(found.values())}


def time_table(entry: Entry) -> Table:
    """Milliseconds of each kind of kernel in each library, on all cores and on one."""
    columns = [(library, n) for library in LIBRARIES for n in map(str, entry["threads"])]
    profiles = [entry["libraries"][library][n] for library, n in columns]
    parts, latencies = [parts_us(each) for each in profiles], [latency_us(each) for each in profiles]
    headers = ["ms", *(f"{LIBRARIES[library]}, {n} {'core' if n == '1' else 'cores'}" for library, n in columns)]
    shown = [*KINDS, "calls of kernels", "waiting for the other", "rest"]
    known = [kind for kind in shown if any(each.get(kind) for each in parts)]
    rows = [[kind, *(_ms(each.get(kind, 0.0)) for each in parts)] for kind in known]
    rows.append(["**latency**", *(f"**{_ms(us)}**" for us in latencies)])
    most = entry["threads"][0]
    by_column = dict(zip(columns, latencies, strict=True))
    lost = [by_column[library, n] - by_column[library, "1"] / most if n != "1" else None for library, n in columns]
    rows.append([f"more than 1/{most} of one core", *("" if us is None else _ms(us) for us in lost)])
    return headers, rows


def _ms(us: float) -> str:
    return f"{us / 1e3:.2f}" if us else ""


def loss_table(entry: Entry) -> Table:
    """The operators furthest behind the faster baseline on all cores; fused ones count as one."""
    rows = []
    for operators, us in groups(entry).items():
        if len(us) == len(LIBRARIES):
            rows.append((us["ours"] - min(us["onnxruntime"], us["openvino"]), operators, us))
    worst = sorted(rows, key=lambda row: -row[0])[:WORST]
    headers = ["operators", *(f"{text}, µs" for text in LIBRARIES.values())]
    named = [[_named(operators, entry), *(f"{us[name]:.0f}" for name in LIBRARIES)] for _, operators, us in worst]
    return headers, named


def _named(operators: Sequence[str], entry: Entry) -> str:
    types = Counter(entry["operators"][name] for name in operators)
    words = ", ".join(f"{count} {kind}" if count > 1 else kind for kind, count in types.items())
    return f"{words}: `{operators[0]}`"


def groups(entry: Entry) -> dict[tuple[str, ...], dict[str, float]]:
    """Microseconds by library and group; no kernel of any library crosses the border of a group."""
    kernels = {name: entry["libraries"][name][str(entry["threads"][0])]["kernels"] for name in LIBRARIES}
    home = _joined(kernel["operators"] for each in kernels.values() for kernel in each)
    members: dict[str, list[str]] = defaultdict(list)
    for operator in entry["operators"]:
        if operator in home:
            members[home[operator]].append(operator)
    found: dict[tuple[str, ...], dict[str, float]] = {tuple(names): {} for names in members.values()}
    for library, each in kernels.items():
        for kernel in each:
            if kernel["operators"]:
                us = found[tuple(members[home[kernel["operators"][0]]])]
                us[library] = us.get(library, 0.0) + kernel["us"]
    return found


def _joined(sets: Iterable[Sequence[str]]) -> dict[str, str]:
    """For each name a representative of all names that sets connect, directly or indirectly."""
    home: dict[str, str] = {}

    def root(name: str) -> str:
        home.setdefault(name, name)
        while home[name] != name:
            name = home[name]
        return name

    for names in sets:
        for name in names:
            home[root(name)] = root(names[0])
    return {name: root(name) for name in home}


def peak_table(roof: Entry) -> Table:
    """Medians of the loops."""
    counts = list(roof["gflops"])
    rows = [["multiply-adds in registers, GFLOP/s", *(f"{median(roof['gflops'][n]):.0f}" for n in counts)]]
    for name in roof["product_gflops"][counts[0]]:
        cells = [f"{median(roof['product_gflops'][n][name]):.0f}" for n in counts]
        rows.append([f"product of matrices in {LIBRARIES[name]}, GFLOP/s", *cells])
    for key, words in (("read_gb", "sum of an array"), ("triad_gb", "a = b + 3 c")):
        for size in roof[key][counts[0]]:
            cells = [f"{median(roof[key][n][size]):.0f}" for n in counts]
            rows.append([f"{words}, in {size}, GB/s", *cells])
    return ["", *(f"{n} {'core' if n == '1' else 'cores'}" for n in counts)], rows


def roof_table(roof: Entry, models: Mapping[str, Entry]) -> Table:
    """Arithmetic of each network, and the share of the peak of all cores that each library reaches."""
    peak = _peak(roof)
    headers = ["network", "GFLOP", "FLOP a byte", *(f"{text}, GFLOP/s" for text in LIBRARIES.values())]
    rows = []
    for name, counted in roof["models"].items():
        if name in models:
            rates = rates_gflops(models[name], counted["flops"])
            cells = [f"{rate:.0f} ({rate / peak:.0%})" for rate in rates.values()]
            intensity = counted["flops"] / counted["nbytes"]
            rows.append([name, f"{counted['flops'] / 1e9:.2f}", f"{intensity:.0f}", *cells])
    return headers, rows


def _peak(roof: Entry) -> float:
    return median(roof["gflops"][max(roof["gflops"], key=int)])


def rates_gflops(entry: Entry, flops: int) -> dict[str, float]:
    """Operations per nanosecond of each library on all cores."""
    n = str(entry["threads"][0])
    return {library: flops / latency_us(entry["libraries"][library][n]) / 1e3 for library in LIBRARIES}


def draw(path: Path) -> None:
    """Operations per second over operations per byte: the roof of all cores, and each network in each library."""
    roof, models = results("cpu-roofline"), results("cpu-profile")["models"]
    cores = max(roof["gflops"], key=int)
    intensities, peak = [1.1**step for step in range(57)], _peak(roof)
    known = {name: counted for name, counted in roof["models"].items() if name in models}
    places = {name: counted["flops"] / counted["nbytes"] for name, counted in known.items()}
    rates = {name: rates_gflops(models[name], counted["flops"]) for name, counted in known.items()}
    label = {"textcoords": "offset points", "ha": "center", "fontsize": 7}
    with chart(path, figsize=(8, 5)) as (_, axis):
        for size, style in (("L2", ":"), ("L3", "--"), ("memory", "-")):
            bandwidth = median(roof["read_gb"][cores][size])
            limits = [min(peak, bandwidth * x) for x in intensities]
            axis.plot(intensities, limits, style, c="#8a8f98", lw=1, label=f"read from {size}")
        for library, text in LIBRARIES.items():
            reached = [each[library] for each in rates.values()]
            axis.plot(list(places.values()), reached, "o", c=COLOURS[library], ms=5, label=text)
        for name, each in rates.items():
            axis.annotate(name, (places[name], max(each.values())), (0, 7), **label)
        axis.set(xlabel="operations a byte that operators read and write", ylabel="GFLOP/s on all cores")
        axis.set(xscale="log", yscale="log")
        axis.set_ylim(10, 2 * peak)
        axis.legend(fontsize=8, loc="lower right")
