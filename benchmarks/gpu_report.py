"""Tables of what `gpu.py` measured so far: those of reports/cuda-h100.md.

    python benchmarks/gpu_report.py benchmarks/results/gpu.json
    python benchmarks/gpu_report.py benchmarks/results/gpu-h100.json --predicted h100

Latencies are medians of runs in a row, in microseconds. Speedups are quotients of medians of interleaved runs, with a
95 % interval. Prints Markdown, with the reason for each case that was begun and is not done.

Options:
    results: what gpu.py wrote
    --predicted: print the analytic model's latencies for this GPU instead
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from gpu_cases import PIECES, key_of
from gpu_results import ResultsError, load_results
from testbed import Table, compared, gpu_spec, print_table, ratio_text, read_options, refuse, speedup_text, zoo_model

from iosched.profiler.devices.analytic.device import SimulatedGpu
from iosched.profiler.devices.gpus import GpuSpec
from iosched.profiler.devices.open_settings import OpenSettings
from iosched.scheduler.baselines import greedy, sequential
from iosched.scheduler.search import search

BASE, GRAPHED = "sequential", "torch-cudagraph"
Entry = Mapping[str, Any]
Cases = Mapping[str, Entry]


def main(words: Sequence[str] | None = None) -> None:
    options = read_options(__file__, words, {"results": Path}, predicted=str)
    try:
        cases = load_results(options.results).cases
    except ResultsError as error:
        refuse(str(error))
    if options.predicted is not None:
        print_table(*predicted_table(cases, options.predicted))
        return
    for table in (summary_table(cases), missing_table(cases)):
        if table[1]:
            print_table(*table)
            print()


def in_order(cases: Cases) -> Cases:
    """Cases as their pieces have them; those that no piece has any more come last."""
    known = [key_of(case) for piece in PIECES.values() for case in piece.cases]
    keys = [key for key in known if key in cases] + [key for key in cases if key not in known]
    return {key: cases[key] for key in keys}


def measured(cases: Cases) -> Mapping[str, Entry]:
    """What was found of the networks that have latencies, by key."""
    return {key: entry["found"] for key, entry in in_order(cases).items() if "median_us" in (entry["found"] or {})}


def summary_table(cases: Cases) -> Table:
    """Our fastest schedule of each network, against one operator after another and against PyTorch's CUDA graph.

    Of several cases of a network, one that was searched to its end speaks for it.
    """
    rows: dict[tuple[str, str], list[str]] = {}
    for _, each in sorted(measured(cases).items(), key=lambda item: not item[0].startswith("searched-")):
        latency_us = each["median_us"]
        best = min((name for name in each["kernels"] if name in latency_us), key=latency_us.__getitem__)
        speedups = [compared(each["samples_us"], base).get(best) for base in (BASE, GRAPHED) if base in latency_us]
        cells = ["1" if best == BASE else ratio_text(speedups[0]), *(ratio_text(other) for other in speedups[1:]), ""]
        row = [each["network"], each["precision"], f"{latency_us[BASE]:.0f}", f"{latency_us[best]:.0f}", best, *cells]
        rows.setdefault((each["network"], each["precision"]), row[:7])
    headers = ["network", "precision", f"{BASE} (us)", "fastest (us)", "schedule", "speedup", f"over {GRAPHED}"]
    return headers, list(rows.values())


def others_table(cases: Cases) -> Table:
    """Our fastest schedule against onnxruntime at batch 1, and against PyTorch's CUDA graph at larger batches."""
    rows = []
    for each in measured(cases).values():
        other = "onnxruntime-cuda" if each["batch"] == 1 else GRAPHED
        latency_us = each["median_us"]
        if other not in latency_us:
            continue
        best = min((name for name in each["kernels"] if name in latency_us), key=latency_us.__getitem__)
        us = [f"{latency_us[name]:.0f}" for name in (BASE, best, other)]
        names = each["network"], each["batch"], each["precision"]
        rows.append([*names, *us[:2], best, other, us[2], ratio_text(compared(each["samples_us"], other).get(best))])
    headers = ["network", "batch", "precision", f"{BASE} (us)", "fastest (us)", "schedule", "other", "other (us)"]
    return [*headers, "over it"], rows


def predicted_table(cases: Cases, gpu: str) -> Table:
    """The analytic model's latency over the measured one, and the speedup of the model's schedule by both."""
    spec = gpu_spec(gpu)
    rows: dict[tuple[str, str], list[str]] = {}
    ratios: dict[str, list[float]] = {}
    for each in measured(cases).values():
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


if __name__ == "__main__":
    main()
