"""Tables of the measurements of `gpu.py`: the page of a folder of evidence, and those of reports/cuda-h100.md.

    python benchmarks/gpu_report.py evidence                            # the page, which gpu.py also writes
    python benchmarks/gpu_report.py benchmarks/results/gpu-h100.json
    python benchmarks/gpu_report.py benchmarks/results/gpu-h100.json --predicted h100

Latencies are medians of runs in a row, in microseconds. Speedups are quotients of medians of interleaved runs, with a
95 % interval.

Options:
    results: the folder of gpu.py, or the results file in it
    --predicted: print the analytic model's latencies for this GPU instead
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import Any

from command_line import read_options, refuse
from result_tables import Table, compared, markdown_table, print_table, ratio_text, speedup_text
from results_files import known_results
from testbed import gpu_spec, zoo_model

from iosched.profiler.devices.analytic.device import SimulatedGpu
from iosched.profiler.devices.gpus import GpuSpec
from iosched.profiler.devices.open_settings import OpenSettings
from iosched.scheduler.baselines import greedy, sequential
from iosched.scheduler.search import search

FORMAT, VERSION = "iosched.gpu-benchmark", 1
BASE, GRAPHED = "sequential", "torch-cudagraph"
Entry = Mapping[str, Any]
Cases = Mapping[str, Entry]


def main(words: Sequence[str] | None = None) -> None:
    options = read_options(__file__, words, {"results": Path}, predicted=str)
    try:
        cases = known_cases(options.results)
    except ValueError as error:
        refuse(str(error))
    if options.predicted is not None:
        print_table(*predicted_table(cases, options.predicted))
        return
    print(page(cases), end="")


def known_cases(path: Path) -> Cases:
    """The entries of a results file, or of that in a folder; none without a file.

    Raises:
        ValueError: the file has other content.
    """
    file = path if path.suffix == ".json" else path / "results.json"
    try:
        content = known_results(file) or {"format": FORMAT, "version": VERSION, "cases": {}}
        if (content["format"], content["version"]) != (FORMAT, VERSION):
            raise KeyError("format")
        return dict(content["cases"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{file} has no results of gpu.py: give another --output") from error


def page(cases: Cases) -> str:
    """All tables that have rows, as Markdown."""
    gpus = {each["gpu"] for each in found(cases).values() if each.get("gpu")}
    texts = [f"# Measured on {', '.join(sorted(gpus)) or 'no GPU'}"]
    for title, table in SECTIONS.items():
        headers, rows = table(cases)
        texts += [f"## {title}", markdown_table(headers, rows)] if rows else []
    return "\n\n".join(texts) + "\n"


def found(cases: Cases, key: str = "") -> Mapping[str, Entry]:
    """Results of the cases that have `key`."""
    entries = {name: entry["found"] for name, entry in cases.items() if entry["found"]}
    return {name: each for name, each in entries.items() if key in each or not key}


def environment_table(cases: Cases) -> Table:
    """The self-test's line, the output of `iosched devices`, and versions."""
    rows = [["self-test", each["self-test"]] for each in found(cases, "self-test").values()]
    known = [next(iter(found(cases, key).values()), {}).get(key, {}) for key in ("devices", "about")]
    return ["what", "found"], [*rows, *(list(item) for each in known for item in each.items())]


def tests_table(cases: Cases) -> Table:
    """The last line of each command."""
    rows = [[key, cases[key]["state"], _last_line(each)] for key, each in found(cases, "printed").items()]
    return ["command", "state", "last line"], rows


def outputs_table(cases: Cases) -> Table:
    """The largest relative error of each network, precision and layout."""
    rows = {each: found(cases, "outputs")[each]["outputs"] for each in found(cases, "outputs")}
    columns = [*dict.fromkeys(column for row in rows.values() for column in row)]

    def cell(row: Mapping[str, Any]) -> str:
        return f"{max(row['errors'].values()):.0e}" if "errors" in row else "; ".join(row.values())

    cells = [[key.partition("/")[2], *(cell(row.get(column, {})) for column in columns)] for key, row in rows.items()]
    return ["network", *columns], cells


def measured(cases: Cases) -> Mapping[str, Entry]:
    """Results of the networks that have latencies, by key."""
    return found(cases, "median_us")


def best_of(each: Entry) -> str:
    """Our fastest schedule."""
    return min((name for name in each["kernels"] if name in each["median_us"]), key=each["median_us"].__getitem__)


def summary_table(cases: Cases) -> Table:
    """Our fastest schedule of each network, against one operator after another and against PyTorch's CUDA graph.

    Of several cases of a network, one with a complete search is used.
    """
    rows: dict[tuple[str, str], list[str]] = {}
    for _, each in sorted(measured(cases).items(), key=lambda item: not item[0].startswith("searched-")):
        latency_us, best = each["median_us"], best_of(each)
        speedups = [compared(each["samples_us"], base).get(best) for base in (BASE, GRAPHED) if base in latency_us]
        cells = ["1" if best == BASE else ratio_text(speedups[0]), *(ratio_text(other) for other in speedups[1:]), ""]
        row = [each["network"], each["precision"], f"{latency_us[BASE]:.0f}", f"{latency_us[best]:.0f}", best, *cells]
        rows.setdefault((each["network"], each["precision"]), row[:7])
    headers = ["network", "precision", f"{BASE} (us)", "fastest (us)", "schedule", "speedup", f"over {GRAPHED}"]
    return headers, list(rows.values())


def alternatives_table(cases: Cases) -> Table:
    """Every alternative of every case: kernels and nodes of ours, speedup over sequential, missing ones."""
    rows = []
    for key, each in measured(cases).items():
        against = compared(each["samples_us"], BASE)
        for name, latency_us in each["median_us"].items():
            nodes = ", ".join(f"{n} {kind}" for kind, n in (each["nodes"].get(name) or {}).items())
            error = each["relative_error"].get(name)
            cells = ["" if error is None else f"{error:.0e}", each["kernels"].get(name, ""), nodes]
            rows.append([key, name, f"{latency_us:.0f}", ratio_text(against.get(name)), *cells])
        rows += [[key, name, reason, "", "", "", ""] for name, reason in each["missing"].items()]
    return ["case", "alternative", "latency (us)", "speedup", "error", "kernels", "nodes"], rows


def others_table(cases: Cases) -> Table:
    """Our fastest schedule against onnxruntime at batch 1, and against PyTorch's CUDA graph at larger batches."""
    rows = []
    for each in measured(cases).values():
        other = "onnxruntime-cuda" if each["batch"] == 1 else GRAPHED
        latency_us = each["median_us"]
        if other not in latency_us:
            continue
        best = best_of(each)
        us = [f"{latency_us[name]:.0f}" for name in (BASE, best, other)]
        names = each["network"], each["batch"], each["precision"]
        rows.append([*names, *us[:2], best, other, us[2], ratio_text(compared(each["samples_us"], other).get(best))])
    headers = ["network", "batch", "precision", f"{BASE} (us)", "fastest (us)", "schedule", "other", "other (us)"]
    return [*headers, "over it"], rows


def stages_table(cases: Cases) -> Table:
    """Errors of the analytic model for stages, by kind, and for the sums of whole schedules."""
    rows = []
    for each in found(cases, "stages").values():
        kinds = {
            "single operators": [row for row in each["stages"] if sum(map(len, row["groups"])) == 1],
            "concurrent": [row for row in each["stages"] if row["strategy"] == "concurrent" and len(row["groups"]) > 1],
            "merged": [row for row in each["stages"] if row["strategy"] == "merge"],
        }
        for kind, stages in kinds.items():
            ratios = [row["predicted_us"] / us for row in stages if 0 < (us := row["measured_us"]) < float("inf")]
            if ratios:
                error = fmean(abs(ratio - 1) for ratio in ratios)
                cells = [len(ratios), f"{geometric_mean(ratios):.2f}", f"{error:.0%}"]
                rows.append([each["network"], each["precision"], kind, *cells])
    return ["network", "precision", "stages", "number", "predicted/measured", "mean error"], rows


def refit_table(cases: Cases) -> Table:
    """Errors of the analytic model on kernels outside of the fit, before and after, and the constants."""
    rows = []
    for each in found(cases, "mean_error").values():
        for name, row in each["mean_error"].items():
            rows.append([name, row["kernels"], f"{row['before']:.0%}", f"{row['after']:.0%}"])
        old, new = each["constants"]["before"], each["constants"]["after"]
        rows += [[f"{name} of {each['card']}, fitted to {each['fit']}", "", old[name], new[name]] for name in new]
    return ["kernels held out", "number", "mean error before", "after"], rows


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
    """Cases that are not done, with the reason for the end of each attempt."""
    rows = [
        [key, entry["state"], str(entry["attempts"]), _reasons(entry)]
        for key, entry in cases.items()
        if entry["state"] != "done"
    ]
    return ["case", "state", "attempts", "why"], rows


SECTIONS: Mapping[str, Callable[[Cases], Table]] = {
    "Machine": environment_table,
    "Tests": tests_table,
    "Outputs: largest error, relative to the largest output": outputs_table,
    "Fastest schedule": summary_table,
    "Alternatives": alternatives_table,
    "Stages, predicted and measured": stages_table,
    "Analytic model, fitted to this GPU": refit_table,
    "Not done": missing_table,
}


def case_row(key: str, entry: Entry) -> str:
    """One line of one case: its results so far, or the reason for having none."""
    each, text = entry["found"] or {}, f"{key}: {entry['state']}"
    if entry["state"] != "done":
        return f"{text}, {_reasons(entry)}"
    if "median_us" in each:
        against = compared(each["samples_us"], BASE)
        cells = [f"{name} {value:.0f}{speedup_text(against.get(name))}" for name, value in each["median_us"].items()]
        return f"{text}, {'ok' if each['correct'] else 'WRONG'} | " + " | ".join(cells)
    return f"{text} {_last_line(each)}"


def _reasons(entry: Entry) -> str:
    return "; ".join(dict.fromkeys(entry["reasons"])) or "never came back"


def _last_line(each: Entry) -> str:
    return str((each.get("printed") or [""])[-1]).strip("= ")


if __name__ == "__main__":
    main()
