"""Tables and a chart of what `gpu.py` measured so far, for the documentation.

    python benchmarks/gpu_report.py benchmarks/results/gpu.json [--plot gpu.svg] [--batch 1] [--precision fp32]
    python benchmarks/gpu_report.py benchmarks/results/gpu-h100.json --predicted h100

Latencies are medians of runs in a row, in microseconds, and how many times as fast as one operator after another in
one CUDA graph, measured in turn with it: the quotient of the medians, with its 95 % interval. Prints
Markdown. Of what was begun and is not done, the last table says why.

Options:
    results: what gpu.py wrote, on one GPU
    --plot: draw the speed-ups (needs matplotlib)
    --batch: batch size that is drawn
    --precision: precision that is drawn
    --predicted: print the analytic model's latencies for this GPU instead
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

from gpu_cases import PIECES, key_of
from gpu_results import ResultsError, load_results
from testbed import chart, compared, gpu_spec, print_table, ratio_text, read_options, refuse, speedup_text, zoo_model

from iosched.profiler.devices.analytic.device import SimulatedGpu
from iosched.profiler.devices.gpus import GpuSpec
from iosched.profiler.devices.open_settings import OpenSettings
from iosched.scheduler.baselines import greedy, sequential
from iosched.scheduler.search import search

BASE, GRAPHED = "sequential", "torch-cudagraph"
FOUND = "both"
_COLOURS = (
    "#8a8f98", "#e08a3c", "#54a24b", "#4c78a8", "#7a5aa6", "#b279a2", "#9d755d", "#d67195", "#bab0ac", "#f58518",
)  # fmt: skip
Entry = Mapping[str, Any]
Cases = Mapping[str, Entry]
Table = tuple[list[str], list[list[str]]]


def main(words: Sequence[str] | None = None) -> None:
    options = read_options(
        __file__, words, {"results": {"type": Path, "nargs": "+"}}, plot=Path, batch=1, precision="fp32", predicted=str
    )
    try:
        results = [load_results(path) for path in options.results]
    except ResultsError as error:
        refuse(str(error))
    gpus = sorted({each.gpu for each in results} - {""})
    if len(gpus) > 1:
        refuse(f"these were measured on {len(gpus)} GPUs: {', '.join(gpus)}")
    cases = in_order({key: entry for each in results for key, entry in each.cases.items()})
    if options.predicted is not None:
        print_table(*predicted_table(measured(cases), options.predicted))
        return
    for title, table in tables(cases):
        if table[1]:
            print(f"{title}\n")
            print_table(*table)
            print()
    if options.plot is not None:
        wanted = (options.batch, options.precision)
        drawn = [each for each in measured(cases).values() if (each["batch"], each["precision"]) == wanted]
        plot(options.plot, drawn, f"{gpus[0] if gpus else ''}, batch {options.batch}, {options.precision}")


def tables(cases: Cases) -> list[tuple[str, Table]]:
    """All tables with their titles."""
    found = measured(cases)
    return [
        ("Measured on", device_table(found)),
        ("In short", summary_table(found)),
        ("By network", network_table(summary_table(found))),
        (f"Latency in a row in us, and how many times as fast as {BASE!r}", latency_table(found)),
        (f"How many times as fast as {GRAPHED!r}", ratio_table(found, GRAPHED)),
        ("Latency on an idle GPU in us, in which the launch counts, and what it adds", idle_table(found)),
        ("Searches", search_table(found)),
        ("Scripts", command_table(cases)),
        ("Seconds of each case on the GPU, as estimated and as they were", seconds_table(cases)),
        ("Not measured to its end", missing_table(cases)),
    ]


def in_order(cases: Cases) -> Cases:
    """Cases as their pieces have them; those that no piece has any more come last."""
    known = [key_of(case) for piece in PIECES.values() for case in piece.cases]
    keys = [key for key in known if key in cases] + [key for key in cases if key not in known]
    return {key: cases[key] for key in keys}


def measured(cases: Cases) -> Mapping[str, Entry]:
    """What was found of the networks that have latencies, by key."""
    return {key: entry["found"] for key, entry in cases.items() if "median_us" in (entry["found"] or {})}


def device_table(found: Mapping[str, Entry]) -> Table:
    """The GPU, with each set of versions that is among the results, and the clocks right after comparing."""
    rows: dict[tuple[str, str], list[int]] = {}
    for each in found.values():
        versions = ", ".join(f"{name} {version}" for name, version in each["versions"].items())
        clock = each["clock"]["after"]
        rows.setdefault((each["gpu"], versions), []).extend([] if clock is None else [clock["sm_mhz"]])
    cells = [[gpu, text, f"{min(mhz)} to {max(mhz)}" if mhz else "not read"] for (gpu, text), mhz in rows.items()]
    return ["GPU", "versions", "SM clock in MHz"], cells


def summary_table(found: Mapping[str, Entry]) -> Table:
    """Our fastest schedule of each network, against one operator after another and against PyTorch's CUDA graph.

    Of several cases of a network, one that was searched to its end speaks for it.
    """
    rows: dict[tuple[str, str], list[str]] = {}
    for _, each in sorted(found.items(), key=lambda item: not item[0].startswith("searched-")):
        latency_us = each["median_us"]
        best = min((name for name in each["kernels"] if name in latency_us), key=latency_us.__getitem__)
        speedups = [compared(each["samples_us"], base).get(best) for base in (BASE, GRAPHED) if base in latency_us]
        cells = ["1" if best == BASE else ratio_text(speedups[0]), *(ratio_text(other) for other in speedups[1:]), ""]
        row = [each["network"], each["precision"], f"{latency_us[BASE]:.0f}", f"{latency_us[best]:.0f}", best, *cells]
        rows.setdefault((each["network"], each["precision"]), row[:7])
    headers = ["network", "precision", f"{BASE} (us)", "fastest (us)", "schedule", "speedup", f"over {GRAPHED}"]
    return headers, list(rows.values())


def network_table(summary: Table) -> Table:
    """The fastest schedule of each network in fp32 and fp16, for docs/cuda.md; `summary` is the table in short."""
    _, rows = summary
    cells = {(network, precision): [us, *ratios] for network, precision, _, us, _, *ratios in rows}
    networks = [network for network, precision in cells if precision == "fp32" and (network, "fp16") in cells]
    headers = [text for name in ("fp32", "fp16") for text in (f"{name} (us)", "speedup", "over PyTorch")]
    return ["network", *headers], [[name, *cells[name, "fp32"], *cells[name, "fp16"]] for name in networks]


def predicted_table(found: Mapping[str, Entry], gpu: str) -> Table:
    """The analytic model's latency over the measured one, and the speedup of the model's schedule by both."""
    spec = gpu_spec(gpu)
    rows: dict[tuple[str, str], list[str]] = {}
    ratios: dict[str, list[float]] = {}
    for each in found.values():
        if (key := (each["network"], each["precision"])) in rows:
            continue
        predicted_us = _predicted_us(spec, each)
        quotient = {name: latency_us / each["median_us"][name] for name, latency_us in predicted_us.items()}
        for name, ratio in quotient.items():
            ratios.setdefault(name, []).append(ratio)
        speedups = [latency_us[BASE] / latency_us["paper"] for latency_us in (predicted_us, each["median_us"])]
        rows[key] = [*key, *(f"{ratio:.2f}" for ratio in (*quotient.values(), *speedups))]
    means = [f"{geometric_mean(each):.2f}" for each in ratios.values()]
    headers = ["network", "precision", *ratios, "predicted speedup", "measured"]
    return headers, [*rows.values(), ["geometric mean", "", *means, "", ""]]


def _predicted_us(spec: GpuSpec, each: Entry) -> dict[str, float]:
    model = zoo_model(each["network"], each["batch"])
    opened = SimulatedGpu(spec).open(model, OpenSettings(precision=each["precision"]))
    schedules = {BASE: sequential(opened.graph), "greedy": greedy(opened.graph)}
    schedules["paper"] = search(opened.graph, opened.cost, effort=opened.effort).schedule
    return {name: sum(map(opened.cost.stage_latency_us, each.stages)) for name, each in schedules.items()}


def latency_table(found: Mapping[str, Entry]) -> Table:
    """Every alternative's latency, the largest error of our own, and the bound of the roofline."""
    names = _names(found)
    rows = []
    for key, each in found.items():
        roofline = each["roofline_us"]
        bound = f"{max(roofline.values()):.0f}" if roofline else ""
        error = max(each["relative_error"][name] for name in each["kernels"])
        against = compared(each["samples_us"], BASE)
        cells = [
            f"{each['median_us'][name]:.0f}{speedup_text(against.get(name))}" if name in each["median_us"] else ""
            for name in names
        ]
        rows.append([key, *cells, bound, f"{error:.0e}{'' if each['correct'] else ' WRONG'}"])
    return ["case", *names, "roofline", "error"], rows


def ratio_table(found: Mapping[str, Entry], base: str) -> Table:
    """How many times as fast each alternative is as `base`, with its interval, where that was measured too."""
    beside = {key: compared(each["samples_us"], base) for key, each in found.items() if base in each["samples_us"]}
    names = list(dict.fromkeys(name for each in beside.values() for name in each))
    rows = [[key, *(ratio_text(each.get(name)) for name in names)] for key, each in beside.items()]
    return ["case", *names], rows


def idle_table(found: Mapping[str, Entry]) -> Table:
    """Medians of runs that find the GPU idle, and the difference to those in a row."""
    names = _names(found)
    rows = []
    for key, each in found.items():
        idle_us = {name: median(samples) for name, samples in each["idle_us"].items() if samples}
        added_us = {name: f"{idle:.0f}, {idle - each['median_us'][name]:+.1f}" for name, idle in idle_us.items()}
        rows.append([key, *(added_us.get(name, "") for name in names)])
    return ["case", *names], rows


def search_table(found: Mapping[str, Entry]) -> Table:
    """What finding the schedule of strategy `both` took, and what it predicted."""
    rows = []
    for key, each in found.items():
        search = each["search"].get("strategies", {}).get(FOUND)
        kind = each["search"].get("kind", "none")
        if search is None or FOUND not in each["median_us"]:
            rows.append([key, kind, *[""] * 6, str(each["kernels"][BASE]), ""])
            continue
        ended = ", ended by time" if each["search"]["ended_by_time"] else ""
        predicted = each["median_us"][FOUND] / search["predicted_us"]
        rows.append([
            key, kind + ended, f"{search['seconds']:.1f}", str(search["measurements"]), str(search["from_database"]),
            str(search["signatures"]), f"{search['gap']:.1%}", f"{predicted:.2f}",
            str(each["kernels"][BASE]), str(each["kernels"][FOUND]),
        ])  # fmt: skip
    headers = ["case", "search", "seconds", "measured", "from database", "distinct stages", "gap"]
    return [*headers, "measured / predicted", "kernels, sequential", "kernels, both"], rows


def command_table(cases: Cases) -> Table:
    """The last line of what each script printed."""
    commands = {key: entry for key, entry in cases.items() if "printed" in (entry["found"] or {})}
    rows = [[key, entry["state"], _last_line(entry["found"])] for key, entry in commands.items()]
    return ["case", "state", "last line"], rows


_ON_HOST = ("import", "build", "check", "paper")


def seconds_table(cases: Cases) -> Table:
    """What each case took in all and in its longest steps, beside what it was estimated to take."""
    estimated_s = {key_of(case): case.estimate_s for piece in PIECES.values() for case in piece.cases}
    rows = []
    for key, entry in cases.items():
        seconds = (entry["found"] or {}).get("seconds", {})
        on_gpu = {step: spent for step, spent in seconds.items() if step not in _ON_HOST}
        searches = (entry["found"] or {}).get("search", {}).get("strategies", {})
        on_gpu |= {f"search {name}": search["seconds"] for name, search in searches.items()}
        if on_gpu:
            steps = ", ".join(f"{step} {spent:.1f}" for step, spent in sorted(on_gpu.items(), key=lambda one: -one[1]))
            estimate = f"{estimated_s[key]:.0f}" if key in estimated_s else ""
            rows.append([key, estimate, f"{sum(on_gpu.values()):.1f}", steps])
    return ["case", "estimated", "took", "of these"], rows


def missing_table(cases: Cases) -> Table:
    """Cases that are not done, with why each of their attempts ended."""
    rows = [
        [key, entry["state"], str(entry["attempts"]), "; ".join(entry["reasons"]) or "never came back"]
        for key, entry in cases.items()
        if entry["state"] != "done"
    ]
    return ["case", "state", "attempts", "why"], rows


def case_row(entry: Entry) -> str:
    """One line of one case: what was found so far, or why nothing was."""
    found = entry["found"]
    if not found:
        return f"{entry['state']}: {'; '.join(entry['reasons']) or 'never came back'}"
    if "printed" in found:
        return f"{entry['state']}: {_last_line(found)}"
    title = f"{found['network']:13s} b{found['batch']:<3d} {found['precision']}"
    against = compared(found["samples_us"], BASE)
    cells = [f"{name} {value:.0f}{speedup_text(against.get(name))}" for name, value in found["median_us"].items()]
    error = max(found["relative_error"][name] for name in found["kernels"])
    return f"{title} {'ok' if found['correct'] else 'WRONG'} {error:.0e} | " + " | ".join(cells)


def _last_line(found: Entry) -> str:
    return str((found["printed"] or [""])[-1]).strip("= ")


def _names(found: Mapping[str, Entry]) -> list[str]:
    return list(dict.fromkeys(name for each in found.values() for name in each["median_us"]))


def plot(path: Path, found: Sequence[Entry], title: str) -> None:
    """Bars of the speed over the sequential CUDA graph with its interval, a group for each network."""
    against = [compared(each["samples_us"], BASE) for each in found]
    names = list(dict.fromkeys(name for each in against for name in each))
    width = 0.8 / max(len(names), 1)
    with chart(path, figsize=(2 + 2.2 * len(found), 3.8)) as (_, axis):
        for place, name in enumerate(names):
            drawn = {index: each[name] for index, each in enumerate(against) if name in each}
            speeds = [each.value for each in drawn.values()]
            ends = list(zip(*((each.value - each.low, each.high - each.value) for each in drawn.values()), strict=True))
            at = [index + place * width - 0.4 for index in drawn]
            style = {"error_kw": {"lw": 0.6}, "label": name, "color": _COLOURS[place % len(_COLOURS)]}
            bars = axis.bar(at, speeds, width, yerr=ends, **style)
            axis.bar_label(bars, fmt="%.2f", fontsize=6, rotation=90, padding=2)
        axis.axhline(1, c="#8a8f98", lw=0.8)
        axis.set_xticks([index - width / 2 for index in range(len(found))], [each["network"] for each in found])
        axis.set(ylabel="times as fast as sequential", title=title)
        axis.margins(y=0.15)
        axis.legend(fontsize=7, ncols=2)


if __name__ == "__main__":
    main()
