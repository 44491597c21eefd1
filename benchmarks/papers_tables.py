"""The tables of benchmarks/reports/papers.md: published numbers beside those of the results files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import published
from cpu_table import ratio, ratio_text
from testbed import markdown, results

TITLES = {
    "inception_v3": "Inception V3", "randwire": "RandWire", "nasnet_a": "NASNet-A", "squeezenet": "SqueezeNet",
    "v100": "V100", "k80": "K80", "titanxp": "Titan Xp", "rtx2080ti": "RTX 2080 Ti",
}  # fmt: skip

Row = Sequence[object]


def cpu_ratio(network: str, baseline: str, candidate: str) -> str:
    """The speedup of the candidate on the CPU, with its interval."""
    return ratio_text(ratio(results("cpu_networks")["networks"][network]["samples_us"], baseline, candidate))


def percent(ratio: float) -> str:
    return f"{round(100 * (ratio - 1), 1) + 0.0:+.1f} %"  # no "-0.0"


def number(value: int) -> str:
    return f"{value:,}" if value < 10**12 else f"{value:.2e}"


def table_3_1() -> str:
    rows = []
    for network, printed in published.TABLE_3_1.items():
        ours = results("papers")["table_3_1"][network]
        counted = [" / ".join(map(number, ours[endings].values())) for endings in ("published", "all")]
        rows.append([
            TITLES[network], ours["operators"], ours["width"], f"{ours['upper_bound']:,.0f}",
            " / ".join(map(number, printed)), *counted,
        ])  # fmt: skip
    endings = ["authors' enumeration", "ours, endings as there", "ours, all endings"]
    return markdown(["network", "n", "d", "bound", *endings], rows)


def table_4_1() -> str:
    rows = []
    for network, (printed, operators, in_code) in published.TABLE_4_1.items():
        ours = results("papers")["blocks"][network]
        most = max(ours["types"], key=ours["types"].__getitem__)
        blocks = len(ours["blocks"]), ", ".join(map(str, ours["blocks"]))
        rows.append([TITLES[network], operators, ours["operators"], most, printed, in_code, *blocks])
    headers = ["network", "operators", "ours", "most are", "blocks printed", "in the authors' code"]
    return markdown([*headers, "ours", "operators of ours"], rows)


def figure_1_2() -> str:
    ours, rows = results("papers")["four_convolutions"], []
    for name, found in ours.items():
        printed = published.FIGURE_1_2.get(name, {})
        ends_us = 0.0
        for stage in found["stages"]:
            ends_us += stage["us"]
            end, gflop, tflops, share = printed.get(stage["stage"], ("", "", "", 0))
            rows.append([
                name, stage["stage"], end, gflop, tflops, f"{share:.0%}" if share else "",
                f"{ends_us / 1e3:.2f}", f"{stage['gflop']:.1f}", f"{stage['tflops']:.1f}",
                f"{stage['share_of_peak']:.0%}", f"{stage['sm_share']:.0%}",
            ])  # fmt: skip
    rates = ["GFLOP", "TFLOP/s", "of peak"]
    return markdown(["schedule", "stage", "ends at ms", *rates, "model: ms", *rates, "of the SMs"], rows)


def figure_4_1() -> str:
    rows = []
    for network, printed in published.V100_MS.items():
        ours = list(results("papers")["v100_ms"][network].values())
        both = zip(printed[1:], ours[1:], strict=True)
        pairs = [f"{printed[0] / theirs:.2f} / {ours[0] / mine:.2f}" for theirs, mine in both]
        rows.append([TITLES[network], *pairs, *(cpu_ratio(network, "sequential", way) for way in ("greedy", "both"))])
    return markdown(["network", "greedy", "merge", "concurrent", "both", "CPU: greedy", "CPU: both"], rows)


def figure_4_2() -> str:
    rows = []
    for network, frameworks in published.FRAMEWORKS_MS.items():
        ours = published.V100_MS[network][-1]
        peers = [cpu_ratio(network, name, "both") for name in ("onnxruntime", "openvino")]
        rows.append([TITLES[network], *(f"{ms / ours:.2f}" for ms in frameworks.values()), *peers])
    names = next(iter(published.FRAMEWORKS_MS.values()))
    return markdown(["network", *names, "CPU: onnxruntime", "CPU: OpenVINO"], rows)


def figure_4_4() -> str:
    rows = []
    for network, ours in results("papers")["rtx2080ti_ms"].items():
        gain = f"{ours['sequential'] / ours['both']:.2f}"
        rows.append([TITLES[network], *(f"{ms:.2f}" for ms in ours.values()), gain])
    return markdown(["network", *published.STRATEGIES, "both over sequential"], rows)


def figure_4_6() -> str:
    by_limit = {(row["network"], row["r"], row["s"]): row for row in results("ablation-pruning")["rows"]}
    rows: list[Row] = []
    for place, (r, s) in enumerate(published.LIMITS):
        cells: list[object] = [r, s]
        for network, printed in published.FIGURE_4_6_MS.items():
            best, ours = by_limit[network, 3, 8], by_limit[network, r, s]
            cells += [percent(printed[place] / printed[0]), percent(ours["latency_us"] / best["latency_us"])]
            cells += [published.FIGURE_4_6_SECONDS[network][place], f"{ours['asked']}"]
        rows.append(cells)
    headers = ["r", "s"]
    for name in ("Inception V3", "NASNet-A"):
        headers += [f"{name}: published", "model", "search, s, published", "stages asked for"]
    return markdown(headers, rows)


def cross(name: str, printed: Mapping[tuple[object, object], float]) -> str:
    """A cross table beside the published one."""
    names, latency_us = results("papers")["matrices"][name].values()
    rows = []
    for run, executed in enumerate(names):
        cells: list[object] = [TITLES.get(executed, executed)]
        for made, optimized in enumerate(names):
            theirs = printed[executed, optimized]
            ours, own = latency_us[run][made], latency_us[run][run]
            extra = f", {percent(theirs / printed[executed, executed])} / {percent(ours / own)}"
            cells.append(f"{theirs:.2f} / {ours / 1e3:.2f}{extra if run != made else ''}")
        rows.append(cells)
    where = "run on" if names[0] in TITLES else "run at batch"
    return markdown([where, *(f"for {TITLES.get(each, each)}" for each in names)], rows)


def table_4_2_batch() -> str:
    return cross("batch-sizes", published.BATCH_CROSS_MS)


def table_4_2_device() -> str:
    return cross("devices", published.DEVICE_CROSS_MS)


def by_pair(table: Sequence[tuple[object, Sequence[float]]]) -> dict[tuple[object, object], float]:
    return {(run, made): ms for run, row in table for (made, _), ms in zip(table, row, strict=True)}


def dos_table_1() -> str:
    return cross("dos-devices", by_pair(published.DOS_TABLE_1_MS))


def dos_table_2() -> str:
    return cross("dos-batch-sizes", by_pair(published.DOS_TABLE_2_MS))


def figure_4_7_us() -> str:
    found = results("papers")["last_block"]
    rows = []
    for name, stages in found["schedules"].items():
        us = (f"{found['us'][place][name]:,.0f}" for place in found["us"])
        rows.append([name, ", ".join(f"{{{words}}}" for words in stages), *us])
    return markdown(["schedule", "stages", *(f"{place}, µs" for place in found["us"])], rows)


def figure_4_7_stages() -> str:
    ours = results("papers")["last_block"]["stages_of_blocks"]
    rows = []
    for place, printed in published.STAGES_OF_BLOCKS.items():
        counts = (cell for each in (printed, ours[place]) for cell in (sum(each), " ".join(map(str, each))))
        rows.append([place, *counts])
    return markdown(["", "published", "of each block", "ours", "of each block"], rows)


def figure_4_9() -> str:
    ours = {row["batch_size"]: row for row in results("ablation-batch")["rows"]}
    rows = []
    for size, (plain, best) in published.BATCH_MS.items():
        row = ours[size]
        us = 1e3 * plain, 1e3 * best, row["sequential_us"], row["both_us"]
        gains = (us[0] / us[1], us[2] / us[3])
        rows.append([size, *(f"{1e6 * size / each:,.0f}" for each in us), *(f"{gain:.2f}" for gain in gains)])
    headers = ["batch", "sequential, published", "IOS", "sequential, model", "ours", "gain, published", "model"]
    return markdown(headers, rows)


def figure_4_10() -> str:
    rows = []
    for network, ms in published.FIGURE_4_10_MS.items():
        seconds = results("cpu_networks")["networks"][network]["search"]["seconds"]
        rows.append([TITLES[network], f"{ms:.2f}", f"{published.V100_MS[network][-1]:.2f}", f"{seconds:.0f} s"])
    return markdown(["network", "TVM-AutoTune, ms", "IOS, ms", "our search, two CPU cores"], rows)


def dos_table_4() -> str:
    planned = {row["network"]: row for row in results("search-v100")["rows"]}
    rows = []
    for network, printed in published.DOS_TABLE_4.items():
        search = results("cpu_networks")["networks"][network]["search"]
        measured = f"{search['seconds']:.0f} s, {search['measurements']:,} stages"
        rows.append([TITLES[network], *printed, f"{planned[network]['seconds']:.2f} s", measured])
    return markdown(["network", "DOS", "MetaFlow, alpha = 1.01", "without limit", "ours: model", "CPU: measured"], rows)


def dos_table_5() -> str:
    rows = []
    for network, (theirs, dos) in published.DOS_TABLE_5.items():
        ours = results("papers")["dos"][network]
        for name, printed, found in (("TensorRT / sequential", theirs, ours["sequential"]), ("DOS", dos, ours["dos"])):
            ms, read, kernels, giga = printed
            rows.append([
                TITLES[network], name, f"{ms} / {found['ms']:.2f}", f"{read} / {found['read_mib']:.0f}",
                f"{kernels} / {found['kernels']}", f"{giga:.2f} / {found['giga_multiply_adds']:.2f}",
                f"{giga / ms:.2f} / {found['tera_multiply_adds_per_s']:.2f}",
            ])  # fmt: skip
    headers = ["network", "", "ms", "read, MB", "kernels", "10^9 multiply-adds", "10^12 a second"]
    return markdown(headers, rows)


def dos_and_ios() -> str:
    rows = []
    for network, (_, (dos_ms, *_)) in published.DOS_TABLE_5.items():
        ours, ios_ms = results("papers")["dos"][network], published.V100_MS[network][-1]
        mine = [ours[name]["ms"] for name in ("dos", "both")]
        rows.append([
            TITLES[network], f"{dos_ms:.2f}", f"{ios_ms:.2f}", f"{dos_ms / ios_ms:.2f}",
            f"{mine[0]:.2f}", f"{mine[1]:.2f}", f"{mine[0] / mine[1]:.2f}",
        ])  # fmt: skip
    return markdown(["network", "DOS", "IOS", "IOS over DOS", "model: DOS", "IOS", "IOS over DOS"], rows)


def eanas_table_5() -> str:
    runs = results("fleet-simulation")["table_5"]
    first = runs[0]["individuals"] / runs[0]["hours"]
    rows = []
    for run in runs:
        low, median, high = run["published"]["speed_up"]
        an_hour = run["individuals"] / run["hours"]
        simulated = f"{median:.2f} ({low:.2f} to {high:.2f})"
        rows.append([run["workers"], run["individuals"], run["hours"], f"{an_hour / first:.2f}", simulated])
    return markdown(["nodes", "individuals", "hours", "speed-up by individuals an hour", "simulated"], rows)


TABLES = (
    table_3_1, table_4_1, figure_1_2, figure_4_1, figure_4_2, figure_4_4, figure_4_6, table_4_2_batch,
    table_4_2_device, figure_4_7_us, figure_4_7_stages, figure_4_9, figure_4_10, dos_table_1, dos_table_2, dos_table_4,
    dos_table_5, dos_and_ios, eanas_table_5,
)  # fmt: skip
