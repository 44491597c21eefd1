"""Tables of reports/analytic-evidence.md: results of analytic.py, kernels.py, kernels_fit.py and scaling.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from published import STRATEGIES, V100_MS
from result_tables import NAMES, Table
from results_files import results

GPUS = {
    "v100pcie": "V100", "t4": "T4", "p100pcie": "P100", "a100pcie40": "A100 40 GB", "a100pcie80": "A100 80 GB",
    "titanxp": "Titan Xp",
}  # fmt: skip
NEUSIGHT = tuple(f"{gpu}, fp32" for gpu in GPUS if gpu != "titanxp")
KINDS = {"convolution": "convolutions", "product": "products", "elementwise": "elementwise"}
SERIES = {
    "neusight, above 300 us": NEUSIGHT,
    "neusight, 40 to 300 us": NEUSIGHT,
    "deepbench": ("t4, fp32", "t4, fp16", "p100pcie, fp32", "titanxp, fp32"),
}
SCALINGS = {
    "not scaled": "not scaled", "median": "median of all", "median of the kind": "median of the kind",
    "prior 2": "by n / (n + 2), one factor", "prior 1, by kind": "by n / (n + 1), kinds",
    "prior 2, by kind": "**by n / (n + 2), kinds**", "prior 4, by kind": "by n / (n + 4), kinds",
}  # fmt: skip


def kernel_errors() -> Table:
    """Errors of each series by the earlier model and by this one."""
    rows = []
    for source, devices in SERIES.items():
        for device in devices:
            for kind, words in KINDS.items():
                if (now := results("kernels")[source].get(f"{device}, {kind}")) is None:
                    continue
                before = results("kernels-before")[source][f"{device}, {kind}"]
                gpu, precision = device.split(", ")
                title = source.replace("neusight", "NeuSight").replace("deepbench", "DeepBench").replace(" us", " µs")
                name = f"{title}: {GPUS[gpu]}{' fp16' * (precision == 'fp16')}, {words}"
                errors = (
                    f"{before['mean_error']:.0%}",
                    f"**{_percent(now['mean_error'])}**",
                    f"{now['median_error']:.0%}",
                )
                pairs = (f"{one[key]:{form}}" for key, form in _PAIRS.items() for one in (before, now))
                rows.append([name, now["kernels"], *errors, *pairs])
    headers = ["", "kernels", "before", "now", "median, now", "median ratio, before", "now", "Spearman, before", "now"]
    return headers, rows


_PAIRS = {"median_ratio": ".2f", "spearman": ".3f"}


def _percent(part: float) -> str:
    return f"{part:.0%}".replace("%", " %")


def left_out_errors() -> Table:
    """Mean errors on a GPU that is left out of the fit."""
    rows = []
    for gpu, ways in results("kernels-fit")["left_out"].items():
        name = GPUS[gpu].removesuffix(" 40 GB")
        rows.append([name, *(f"{way[kind]['mean_error']:.0%}" for way in ways.values() for kind in KINDS)])
    first, *others = KINDS.values()
    return ["left out", *KINDS.values(), f"clock and bandwidth known: {first}", *others], rows


def latencies() -> Table:
    """The published latencies and those of the model, fitted and with each network left out."""
    rows = []
    for network, published in V100_MS.items():
        for strategy, ms in zip(STRATEGIES, published, strict=True):
            cells = []
            for part in ("packaged", "leave_one_out"):
                computed = results("analytic-v100")[part]["ms"][network][strategy]
                cells += [f"{computed:.2f}", f"{computed / ms - 1:+.0%}".replace("+0%", "0%").replace("-0%", "0%")]
            title = NAMES[network].removesuffix(" large") if strategy == STRATEGIES[0] else ""
            rows.append([title, strategy, f"{ms:.2f}", *cells])
    return ["network", "schedule", "published", "fitted", "", "left out", ""], rows


def correlations() -> Table:
    """Agreement of groups of these latencies."""
    found = [results("analytic-v100")[part] for part in ("packaged", "leave_one_out")]
    groups: dict[str, list[Mapping[str, Any]]] = {
        "all 20 latencies": [each["all_cells"] for each in found],
        "the 16 speed-ups over sequential": [each["speedups"] for each in found],
    }
    for network in V100_MS:
        groups[f"within {NAMES[network].removesuffix(' large')}"] = [each["within_network"][network] for each in found]
    rows = [[name, *(cell for each in both for cell in _agreement(each))] for name, both in groups.items()]
    columns = ["Spearman / Kendall", "mean error", "worst"]
    return ["", *(f"{part}: " * (c == columns[0]) + c for part in ("fitted", "left out") for c in columns)], rows


def _agreement(found: Mapping[str, float]) -> list[str]:
    orders = f"{found['spearman']:.3f} / {found['kendall']:.3f}"
    return [orders, f"{found['mean_error']:.0%}", f"{found['worst_error']:.0%}"]


def batch_sizes() -> Table:
    """Inception V3 at five batch sizes, published and by the model."""
    found = results("analytic-v100")["batch_sizes"]
    rows = []
    for batch, published in found["published_ms"].items():
        pairs = list(zip(published, found["sequential_and_both_ms"][batch], strict=True))
        saved = (f"{1 - both / sequential:.0%}" for sequential, both in zip(*pairs, strict=True))
        rows.append([batch, *(f"{ms:.2f}" for pair in pairs for ms in pair), *saved])
    headers = ["batch", "sequential, published", "model", "both, published", "model", "saved, published", "model"]
    return headers, rows


def scaling() -> Table:
    """Errors of one kernel and of the mean of all, by the ways to scale with a few measured kernels."""
    cases = {
        "seen": "clock and bandwidth known",
        "by the specification": "specification only",
        "kinds off as the former model": "kinds off as the former model was",
    }
    counts = ("1", "6", "24")
    found = results("scaling")
    rows = []
    for way, words in SCALINGS.items():
        cells = [found[case][f"{count} given"][way] for case in cases for count in counts]
        rows.append([words, *(f"{each['kernel']:.2f} / {each['all']:.2f}" for each in cells)])
    return ["", *(f"{words}: 1 given" if n == "1" else n for words in cases.values() for n in counts)], rows
