"""Writes benchmarks/reports/papers.md: the page's text, with numbers and tables from the results files.

    python benchmarks/papers_page.py      # after any of the results below has changed

The text is `papers.template.md`. A field like `{throughput[inception_v3][both][tflops]:.1f}` is a number of
`results/papers.json` or of what is derived below; `{table_4_1}` is a table. Nothing is computed but ratios.
"""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from papers_tables import TABLES
from published import V100_MS
from testbed import markdown, results

FILE = "batching-paper"
POLICIES = ("serial", "fcfs", "greedy", "dpbat")
RETIARII = {"12": 1.76, "192": 3.08}
"""How many times as fast so many models are as the most that fit side by side, which were 12: figure 14."""
WORDS = {"sampled": "sampled", "same": "one architecture", "frozen": "frozen weights"}

Batch = dict[str, dict[str, Any]]


def settings(alike: str) -> dict[str, list[Batch]]:
    """By device, number together and size all batches of networks that are so alike."""
    found: dict[str, list[Batch]] = {}
    for name, batch in results(FILE)["batches"].items():
        setting = name.partition(", ")[2]
        if f" {alike}, " in setting:
            found.setdefault(setting, []).append(batch)
    return found


def latency_us(batches: list[Batch], policy: str) -> float:
    """What all operators take one after another, by a policy's plans."""
    return sum(sum(batch[policy]["latency_us"].values()) for batch in batches)


def packed_us(batches: list[Batch]) -> float:
    """What networks take side by side, as many as are together."""
    return sum(batch["packed"]["latency_us"] for batch in batches)


def dpbat_policies() -> str:
    """How many times as fast DPBat's plans are as those of others, and as networks side by side."""
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
    return markdown(("networks", "pixels", *over, "kernels", "saves, ms", "planning"), [printed, *rows])


def dpbat_types() -> str:
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
    return markdown(("pixels", "type", *POLICIES), rows)


def over_packed() -> dict[str, float]:
    """By how many networks have weights in common: how many times as fast DPBat's plan is as all side by side."""
    found = {count_of(setting): batch for setting, (batch,) in settings("frozen").items()}
    return {count: packed_us([batch]) / latency_us([batch], "dpbat") for count, batch in found.items()}


def count_of(setting: str) -> str:
    """How many networks are together."""
    return setting.partition(": ")[2].partition(" ")[0]


def frozen_models() -> str:
    """Networks of which most weights are equal: how many times as fast as without batching, and what weights take."""
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
    return markdown((*titles, "weights alone", "together"), rows)


def heads() -> str:
    """Heads on one backbone: milliseconds of each row, and how many times as fast as the better rival what ships is."""
    rows = []
    for setting, batches in settings("heads").items():
        us = batches[0]["rows"]["latency_us"]
        best = min(us["batched"], us["mixed"])
        times = f"{min(us['serial'], us['packed']) / best:.1f}"
        rows.append((count_of(setting), *(f"{each / 1e3:.2f}" for each in us.values()), times))
    return markdown(("heads", "serial", "packed", "batched", "mixed", "times as fast as the better"), rows)


BATCHING_TABLES = (heads, dpbat_policies, dpbat_types, frozen_models)


FOLDER = Path(__file__).parent
TEMPLATE = FOLDER / "papers.template.md"
PAGE = FOLDER / "reports" / "papers.md"
NETWORKS = tuple(V100_MS)
WIDTH = 125


def main() -> None:
    PAGE.write_text(page(), encoding="utf-8")


def page() -> str:
    """The text of benchmarks/reports/papers.md."""
    tables = {table.__name__: table() for table in (*TABLES, *BATCHING_TABLES)}
    text = TEMPLATE.read_text(encoding="utf-8").format_map({**results("papers"), **derived(), **tables})
    spaced = re.sub(r"(?<=\d)%", " %", text)
    return "\n\n".join(map(_wrapped, spaced.rstrip("\n").split("\n\n"))) + "\n"


def _wrapped(paragraph: str) -> str:
    """Sentences and the points of a list, wrapped again; tables, code and headlines as they are."""
    if paragraph.startswith(("|", "#", "```", "<!--")):
        return paragraph
    return "\n".join(
        textwrap.fill(" ".join(point.split()), WIDTH, subsequent_indent="  " * point.startswith("- "),
                      break_long_words=False, break_on_hyphens=False)
        for point in re.split(r"\n(?=- )", paragraph)
    )  # fmt: skip


def derived() -> dict[str, object]:
    """Numbers that stand in the page's sentences and in no results file as they are."""
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
        "cpu_blocks": span(row["sequential_us"] / row["found_us"] for row in results("ablation-blocks-cpu")["rows"]),
        "speedup_at": {f"b{size}": ratio for size, ratio in speedups.items()},
        "ti": span(found["sequential"] / found["both"] for found in ours["rtx2080ti_ms"].values()),
        "lost": {name: span(lost(found["latency_us"])) for name, found in ours["matrices"].items()},
        "dos_ios": span(found["dos"]["ms"] / found["both"]["ms"] for found in ours["dos"].values()),
        "dos_sequential": span(dos_over("sequential")),
        "dos_greedy": span(dos_over("greedy")),
        "one_operator": {name: one_operator_speedup(name) for name in ("inception_v3", "nasnet_a")},
        "resnet50": 1 - ours["resnet50_ms"]["both"] / ours["resnet50_ms"]["sequential"],
        "padding": _ratio(ours["dos"]["squeezenet"], "dos", "sequential", "giga_multiply_adds") - 1,
        "additive": {name: order_accuracies(name) for name in ("squeezenet", "inception_v3")},
        "additive_warm": results("ablation-additive")["networks"],
        "eanas": dict(zip(("low", "speed_up", "high"), four_nodes, strict=True)),
        "search": span(results("cpu_networks")["networks"][name]["search"]["seconds"] for name in NETWORKS),
        "stages": {place.replace(" ", "_"): sum(counts) for place, counts in stages.items()},
        "last": last_block_ratios(),
        "frozen": {f"m{count}": times for count, times in over_packed().items()},
    }


def dos_over(baseline: str) -> list[float]:
    """How many times as fast as a baseline DOS is, by the model, for each network."""
    ours = results("papers")
    return [ours["v100_ms"][name][baseline] / ours["dos"][name]["dos"]["ms"] for name in NETWORKS]


def one_operator_speedup(network: str) -> float:
    """How many times as fast as sequential the schedule for r = 1, s = 8 is, by the model."""
    rows = results("ablation-pruning")["rows"]
    (us,) = (row["latency_us"] for row in rows if (row["network"], row["r"], row["s"]) == (network, 1, 8))
    return results("papers")["v100_ms"][network]["sequential"] * 1e3 / us


def order_accuracies(network: str) -> str:
    """The share of pairs in the right order in both runs that measured stages as the search does."""
    files = ("ablation-additive-in-a-row-24", "ablation-additive-in-a-row")
    return " and ".join(f"{results(file)['networks'][network]['order_accuracy']:.0%}" for file in files)


def _ratio(found: Mapping[str, Mapping[str, float]], one: str, other: str, key: str) -> float:
    return found[one][key] / found[other][key]


def span(values: Iterable[float]) -> dict[str, float]:
    known = list(values)
    return {"least": min(known), "most": max(known)}


def lost(latency_us: Sequence[Sequence[float]]) -> list[float]:
    """The part that every foreign schedule of a cross table takes longer."""
    return [us / row[run] - 1 for run, row in enumerate(latency_us) for made, us in enumerate(row) if run != made]


def last_block_ratios() -> dict[str, float]:
    """How much longer the last block takes with the other batch size's published schedule."""
    us = results("papers")["last_block"]["us"]
    return {
        "at_1": us["batch 1"]["published, batch 32"] / us["batch 1"]["published, batch 1"],
        "at_32": us["batch 32"]["published, batch 1"] / us["batch 32"]["published, batch 32"],
    }


if __name__ == "__main__":
    main()
