"""The tables of benchmarks/reports/papers.md about several models in one, from what `batching.py --paper` found."""

from __future__ import annotations

from collections import Counter
from typing import Any

from papers_tables import markdown, results

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


TABLES = (heads, dpbat_policies, dpbat_types, frozen_models)
