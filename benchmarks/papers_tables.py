"""The tables and numbers of reports/papers.md: published numbers alongside those of the results files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import ablation_batch
import published
from cpu_table import ratio, ratio_text
from result_tables import Table
from results_files import results

TITLES = {
    "inception_v3": "Inception V3", "randwire": "RandWire", "nasnet_a": "NASNet-A", "squeezenet": "SqueezeNet",
    "v100": "V100", "k80": "K80", "titanxp": "Titan Xp", "rtx2080ti": "RTX 2080 Ti",
}  # fmt: skip

Row = Sequence[object]
FILE = "batching-paper"
POLICIES = ("serial", "fcfs", "greedy", "dpbat")
RETIARII = {"12": 1.76, "192": 3.08}
"""Speedup of these numbers of models over the 12 that fit concurrently: figure 14."""
WORDS = {"sampled": "sampled", "same": "one architecture", "frozen": "frozen weights"}

Batch = dict[str, dict[str, Any]]
NETWORKS = tuple(published.V100_MS)


def cpu_ratio(network: str, baseline: str, candidate: str) -> str:
    """The speedup of the candidate on the CPU, with its interval."""
    return ratio_text(ratio(results("cpu_networks")["networks"][network]["samples_us"], baseline, candidate))


def percent(ratio: float) -> str:
    return f"{round(100 * (ratio - 1), 1) + 0.0:+.1f} %"  # no "-0.0"


def number(value: int) -> str:
    return f"{value:,}" if value < 10**12 else f"{value:.2e}"


def table_3_1() -> Table:
    rows = []
    for network, printed in published.TABLE_3_1.items():
        ours = results("papers")["table_3_1"][network]
        counted = [" / ".join(map(number, ours[endings].values())) for endings in ("published", "all")]
        rows.append([
            TITLES[network], ours["operators"], ours["width"], f"{ours['upper_bound']:,.0f}",
            " / ".join(map(number, printed)), *counted,
        ])  # fmt: skip
    endings = ["authors' enumeration", "ours, endings as there", "ours, all endings"]
    return ["network", "n", "d", "bound", *endings], rows


def table_4_1() -> Table:
    rows = []
    for network, (printed, operators, in_code) in published.TABLE_4_1.items():
        ours = results("papers")["blocks"][network]
        most = max(ours["types"], key=ours["types"].__getitem__)
        blocks = len(ours["blocks"]), ", ".join(map(str, ours["blocks"]))
        rows.append([TITLES[network], operators, ours["operators"], most, printed, in_code, *blocks])
    headers = ["network", "operators", "ours", "most are", "blocks printed", "in the authors' code"]
    return [*headers, "ours", "operators of ours"], rows


def figure_1_2() -> Table:
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
    return ["schedule", "stage", "ends at ms", *rates, "model: ms", *rates, "of the SMs"], rows


def figure_4_1() -> Table:
    rows = []
    for network, printed in published.V100_MS.items():
        ours = list(results("papers")["v100_ms"][network].values())
        both = zip(printed[1:], ours[1:], strict=True)
        pairs = [f"{printed[0] / theirs:.2f} / {ours[0] / mine:.2f}" for theirs, mine in both]
        rows.append([TITLES[network], *pairs, *(cpu_ratio(network, "sequential", way) for way in ("greedy", "both"))])
    return ["network", "greedy", "merge", "concurrent", "both", "CPU: greedy", "CPU: both"], rows


def figure_4_2() -> Table:
    rows = []
    for network, frameworks in published.FRAMEWORKS_MS.items():
        ours = published.V100_MS[network][-1]
        peers = [cpu_ratio(network, name, "both") for name in ("onnxruntime", "openvino")]
        rows.append([TITLES[network], *(f"{ms / ours:.2f}" for ms in frameworks.values()), *peers])
    names = next(iter(published.FRAMEWORKS_MS.values()))
    return ["network", *names, "CPU: onnxruntime", "CPU: OpenVINO"], rows


def figure_4_4() -> Table:
    rows = []
    for network, ours in results("papers")["rtx2080ti_ms"].items():
        gain = f"{ours['sequential'] / ours['both']:.2f}"
        rows.append([TITLES[network], *(f"{ms:.2f}" for ms in ours.values()), gain])
    return ["network", *published.STRATEGIES, "both over sequential"], rows


def figure_4_6() -> Table:
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
    return headers, rows


def cross(name: str, printed: Mapping[tuple[object, object], float]) -> Table:
    """A cross table alongside the published one."""
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
    return [where, *(f"for {TITLES.get(each, each)}" for each in names)], rows


def table_4_2_batch() -> Table:
    return cross("batch-sizes", published.BATCH_CROSS_MS)


def table_4_2_device() -> Table:
    return cross("devices", published.DEVICE_CROSS_MS)


def by_pair(table: Sequence[tuple[object, Sequence[float]]]) -> dict[tuple[object, object], float]:
    return {(run, made): ms for run, row in table for (made, _), ms in zip(table, row, strict=True)}


def dos_table_1() -> Table:
    return cross("dos-devices", by_pair(published.DOS_TABLE_1_MS))


def dos_table_2() -> Table:
    return cross("dos-batch-sizes", by_pair(published.DOS_TABLE_2_MS))


def figure_4_7_us() -> Table:
    found = results("papers")["last_block"]
    rows = []
    for name, stages in found["schedules"].items():
        us = (f"{found['us'][place][name]:,.0f}" for place in found["us"])
        rows.append([name, ", ".join(f"{{{words}}}" for words in stages), *us])
    return ["schedule", "stages", *(f"{place}, µs" for place in found["us"])], rows


def figure_4_7_stages() -> Table:
    ours = results("papers")["last_block"]["stages_of_blocks"]
    rows = []
    for place, printed in published.STAGES_OF_BLOCKS.items():
        counts = (cell for each in (printed, ours[place]) for cell in (sum(each), " ".join(map(str, each))))
        rows.append([place, *counts])
    return ["", "published", "of each block", "ours", "of each block"], rows


def figure_4_9() -> Table:
    ours = {row["batch_size"]: row for row in results("ablation-batch")["rows"]}
    rows = []
    for size, (plain, best) in published.BATCH_MS.items():
        row = ours[size]
        us = 1e3 * plain, 1e3 * best, row["sequential_us"], row["both_us"]
        gains = (us[0] / us[1], us[2] / us[3])
        rows.append([size, *(f"{1e6 * size / each:,.0f}" for each in us), *(f"{gain:.2f}" for gain in gains)])
    headers = ["batch", "sequential, published", "IOS", "sequential, model", "ours", "gain, published", "model"]
    return headers, rows


def ablation_of_batch_sizes() -> Table:
    """The model's latencies at each batch size, with the published ones."""
    headers, rows = ablation_batch.table(results("ablation-batch")["rows"])
    printed = [published.BATCH_MS.get(int(row[1])) for row in rows]
    cells = [
        ["", ""] if each is None else [f"{each[0]:.2f}, {each[1]:.2f}", f"{each[0] / each[1]:.2f}"] for each in printed
    ]
    more = ["published: sequential, IOS ms", "speed-up"]
    return [*headers, *more], [[*row, *each] for row, each in zip(rows, cells, strict=True)]


def figure_4_10() -> Table:
    rows = []
    for network, ms in published.FIGURE_4_10_MS.items():
        seconds = results("cpu_networks")["networks"][network]["search"]["seconds"]
        rows.append([TITLES[network], f"{ms:.2f}", f"{published.V100_MS[network][-1]:.2f}", f"{seconds:.0f} s"])
    return ["network", "TVM-AutoTune, ms", "IOS, ms", "our search, two CPU cores"], rows


def dos_table_4() -> Table:
    planned = {row["network"]: row for row in results("search-v100")["rows"]}
    rows = []
    for network, printed in published.DOS_TABLE_4.items():
        search = results("cpu_networks")["networks"][network]["search"]
        measured = f"{search['seconds']:.0f} s, {search['measurements']:,} stages"
        rows.append([TITLES[network], *printed, f"{planned[network]['seconds']:.2f} s", measured])
    return ["network", "DOS", "MetaFlow, alpha = 1.01", "without limit", "ours: model", "CPU: measured"], rows


def dos_table_5() -> Table:
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
    return headers, rows


def dos_and_ios() -> Table:
    rows = []
    for network, (_, (dos_ms, *_)) in published.DOS_TABLE_5.items():
        ours, ios_ms = results("papers")["dos"][network], published.V100_MS[network][-1]
        mine = [ours[name]["ms"] for name in ("dos", "both")]
        rows.append([
            TITLES[network], f"{dos_ms:.2f}", f"{ios_ms:.2f}", f"{dos_ms / ios_ms:.2f}",
            f"{mine[0]:.2f}", f"{mine[1]:.2f}", f"{mine[0] / mine[1]:.2f}",
        ])  # fmt: skip
    return ["network", "DOS", "IOS", "IOS over DOS", "model: DOS", "IOS", "IOS over DOS"], rows


def eanas_table_5() -> Table:
    runs = results("fleet-simulation")["table_5"]
    first = runs[0]["individuals"] / runs[0]["hours"]
    rows = []
    for run in runs:
        low, median, high = run["published"]["speed_up"]
        an_hour = run["individuals"] / run["hours"]
        simulated = f"{median:.2f} ({low:.2f} to {high:.2f})"
        rows.append([run["workers"], run["individuals"], run["hours"], f"{an_hour / first:.2f}", simulated])
    return ["nodes", "individuals", "hours", "speed-up by individuals an hour", "simulated"], rows


def settings(alike: str) -> dict[str, list[Batch]]:
    """Batches of networks with this similarity, by device, number and image size."""
    found: dict[str, list[Batch]] = {}
    for name, batch in results(FILE)["batches"].items():
        setting = name.partition(", ")[2]
        if f" {alike}, " in setting:
            found.setdefault(setting, []).append(batch)
    return found


def latency_us(batches: list[Batch], policy: str) -> float:
    """Sequential latency of all operators, by a policy's plans."""
    return sum(sum(batch[policy]["latency_us"].values()) for batch in batches)


def packed_us(batches: list[Batch]) -> float:
    """Latency of concurrent networks, by their number."""
    return sum(batch["packed"]["latency_us"] for batch in batches)


def dpbat_policies() -> Table:
    """Speedup of DPBat's plans over those of others, and over concurrent networks."""
    rows = []
    for setting, batches in {**settings("sampled"), **settings("same")}.items():
        ours = latency_us(batches, "dpbat")
        others = [*(latency_us(batches, policy) for policy in POLICIES[:-1]), packed_us(batches)]
        times = [f"{each / ours:.2f}" for each in others]
        kernels = [sum(batch[policy]["kernels"] for batch in batches) for policy in ("serial", "dpbat")]
        saved = latency_us(batches, "serial") - ours
        worth = sum(batch["dpbat"]["worth_us"] for batch in batches)
        seconds = sum(batch["dpbat"]["seconds"] for batch in batches) / len(batches)
        size = setting.rpartition(" x ")[2].removesuffix(" pixels")
        alike = next(words for key, words in WORDS.items() if f" {key}, " in setting)
        cells = (f"{len(batches) * 100:,} {alike}", size, *times, f"{kernels[0] / kernels[1]:.2f}")
        cells = (*cells, f"{saved / 1e3:.1f} ({worth / 1e3:.1f})", f"{seconds:.0f} s")
        rows.append(cells)
    printed = ("published", "", "2.1", "1.92", "1.25", "", "", "", "")
    over = (f"over {policy}" for policy in (*POLICIES[:-1], "packed"))
    return ("networks", "pixels", *over, "kernels", "saves, ms", "planning"), [printed, *rows]


def dpbat_types() -> Table:
    """Milliseconds of the first hundred sampled networks by type of operator, at each size."""
    rows = []
    for setting, batches in settings("sampled").items():
        first = batches[0]
        size = setting.rpartition(" x ")[2].removesuffix(" pixels")
        types = Counter({kind: us for policy in POLICIES for kind, us in first[policy]["latency_us"].items() if us})
        rows += [
            (size, kind, *(f"{first[policy]['latency_us'].get(kind, 0.0) / 1e3:.1f}" for policy in POLICIES))
            for kind in sorted(types)
        ]
    return ("pixels", "type", *POLICIES), rows


def over_packed() -> dict[str, float]:
    """Speedup of DPBat's plan over concurrent networks, by the number of networks with common weights."""
    found = {count_of(setting): batch for setting, (batch,) in settings("frozen").items()}
    return {count: packed_us([batch]) / latency_us([batch], "dpbat") for count, batch in found.items()}


def count_of(setting: str) -> str:
    """Number of networks together."""
    return setting.partition(": ")[2].partition(" ")[0]


def frozen_models() -> Table:
    """Networks with mostly equal weights: speedup over no batching, and bytes of weights."""
    rows = []
    times = over_packed()
    for setting, (batch,) in settings("frozen").items():
        count = count_of(setting)
        alone, together = batch["composing"]["weights_nbytes"]
        serial, ours = (latency_us([batch], policy) for policy in ("serial", "dpbat"))
        ratios = (f"{serial / ours:.2f}", f"{times[count]:.2f}", f"{RETIARII.get(count, '')}")
        each_us = (f"{us / int(count):.0f}" for us in (serial, packed_us([batch]), ours))
        rows.append((count, *ratios, *each_us, f"{alone / 1e6:.0f} MB", f"{together / 1e6:.0f} MB"))
    titles = ("models", "over serial", "over packed", "published", "serial, us a model", "packed", "batched")
    return (*titles, "weights alone", "together"), rows


def heads() -> Table:
    """Heads on one backbone: milliseconds of each row, and speedup of the shipped one over the better baseline."""
    rows = []
    for setting, batches in settings("heads").items():
        us = batches[0]["rows"]["latency_us"]
        best = min(us["batched"], us["mixed"])
        times = f"{min(us['serial'], us['packed']) / best:.1f}"
        rows.append((count_of(setting), *(f"{each / 1e3:.2f}" for each in us.values()), times))
    return ("heads", "serial", "packed", "batched", "mixed", "times as fast as the better"), rows


@cache
def derived() -> dict[str, object]:
    """Numbers in the page's sentences that are not in a results file as they are."""
    ours = results("papers")
    speedups = {row["batch_size"]: row["sequential_us"] / row["both_us"] for row in results("ablation-batch")["rows"]}
    stages = ours["last_block"]["stages_of_blocks"]
    four_nodes = results("fleet-simulation")["table_5"][-1]["published"]["speed_up"]
    return {
        "sm_ratio": {
            name: _ratio(found, "both", "sequential", "sm_share") for name, found in ours["throughput"].items()
        },
        "four_ratio": _ratio(
            {name: all_of["all"] for name, all_of in ours["four_convolutions"].items()}, "IOS", "sequential", "sm_share"
        ),
        "blocks": span(row["sequential_us"] / row["found_us"] for row in results("ablation-blocks")["rows"]),
        "speedup_at": {f"b{size}": ratio for size, ratio in speedups.items()},
        "ti": span(found["sequential"] / found["both"] for found in ours["rtx2080ti_ms"].values()),
        "lost": {name: span(lost(found["latency_us"])) for name, found in ours["matrices"].items()},
        "dos_ios": span(found["dos"]["ms"] / found["both"]["ms"] for found in ours["dos"].values()),
        "dos_sequential": span(dos_over("sequential")),
        "dos_greedy": span(dos_over("greedy")),
        "one_operator": {name: one_operator_speedup(name) for name in ("inception_v3", "nasnet_a")},
        "resnet50": 1 - ours["resnet50_ms"]["both"] / ours["resnet50_ms"]["sequential"],
        "padding": _ratio(ours["dos"]["squeezenet"], "dos", "sequential", "giga_multiply_adds") - 1,
        "additive": results("ablation-additive")["networks"],
        "eanas": dict(zip(("low", "speed_up", "high"), four_nodes, strict=True)),
        "search": span(results("cpu_networks")["networks"][name]["search"]["seconds"] for name in NETWORKS),
        "stages": {place.replace(" ", "_"): sum(counts) for place, counts in stages.items()},
        "last": last_block_ratios(),
        "frozen": {f"m{count}": times for count, times in over_packed().items()},
    }


def dos_over(baseline: str) -> list[float]:
    """Speedup of DOS over a baseline, by the model, for each network."""
    ours = results("papers")
    return [ours["v100_ms"][name][baseline] / ours["dos"][name]["dos"]["ms"] for name in NETWORKS]


def one_operator_speedup(network: str) -> float:
    """Speedup of the schedule for r = 1, s = 8 over sequential, by the model."""
    rows = results("ablation-pruning")["rows"]
    (us,) = (row["latency_us"] for row in rows if (row["network"], row["r"], row["s"]) == (network, 1, 8))
    return results("papers")["v100_ms"][network]["sequential"] * 1e3 / us


def _ratio(found: Mapping[str, Mapping[str, float]], one: str, other: str, key: str) -> float:
    return found[one][key] / found[other][key]


def span(values: Iterable[float]) -> dict[str, float]:
    known = list(values)
    return {"least": min(known), "most": max(known)}


def lost(latency_us: Sequence[Sequence[float]]) -> list[float]:
    """The relative loss of each foreign schedule in a cross table."""
    return [us / row[run] - 1 for run, row in enumerate(latency_us) for made, us in enumerate(row) if run != made]


def last_block_ratios() -> dict[str, float]:
    """Slowdown of the last block by the other batch size's published schedule."""
    us = results("papers")["last_block"]["us"]
    return {
        "at_1": us["batch 1"]["published, batch 32"] / us["batch 1"]["published, batch 1"],
        "at_32": us["batch 32"]["published, batch 1"] / us["batch 32"]["published, batch 32"],
    }
