"""A file with schedules for several batch sizes, at these sizes and at sizes between them, beside onnxruntime.

    python benchmarks/batch_sizes.py squeezenet googlenet      # adds to results/batch-sizes.json; minutes each
    python benchmarks/batch_sizes.py --memory resnet50         # what stays in memory with each size that is open
    python benchmarks/batch_sizes.py --write                   # the tables of docs/batch-sizes.md, from these results

All ways are measured in turn at each size: what the file has for the size or the nearest one ("file"), what was found
for the smallest size ("smallest"), at sizes between those of the file what a search for this very size finds ("own"),
and plain onnxruntime. A way in which plain onnxruntime was shipped is not measured again, but counted as that.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from testbed import RESULTS, keep_results, markdown_table

from iosched.jobs.fitting import for_batch
from iosched.jobs.loaded_batches import LoadedBatches
from iosched.jobs.optimize import optimize
from iosched.jobs.optimize_batches import optimize_batches
from iosched.jobs.run import open_executor
from iosched.jobs.settings import OptimizeSettings
from iosched.models import zoo
from iosched.models.dynamic_batch import DynamicBatchModel, with_dynamic_batch
from iosched.models.load import read_unbound
from iosched.models.model import Model
from iosched.profiler.measuring.in_turn import Budget, measure_in_turn
from iosched.profiler.measuring.interleave import compare
from iosched.profiler.measuring.statistics import Measurement, summarize
from iosched.runtime.inputs import random_inputs
from iosched.scheduler.batch_schedules import BatchSchedules
from iosched.scheduler.document import ScheduleDocument

OUT = RESULTS / "batch-sizes.json"
PAGE = Path(__file__).parents[1] / "docs" / "batch-sizes.md"
SIZES, ALL = (1, 4, 16), (1, 2, 4, 8, 16)
SEARCH_S, OWN_S, THREADS = 180.0, 40.0, 2


def measure(name: str) -> dict[str, Any]:
    model, settings = dynamic(name), OptimizeSettings(device="cpu", threads=THREADS)
    found = optimize_batches(model, SIZES, replace(settings, budget_s=SEARCH_S)).schedules
    rows = {}
    for size in ALL:
        bound = model.at(size)
        ways = {"file": for_batch(found, bound)[0], "smallest": for_batch(only(found, SIZES[0]), bound)[0]}
        if size not in SIZES:
            ways["own"] = optimize(bound, replace(settings, budget_s=OWN_S)).document
        shipped = {way: document.shipped for way, document in ways.items()}
        rows[str(size)] = {"shipped": shipped, "samples_us": samples(bound, ways)}
        medians = {way: summarize(each).median_us for way, each in rows[str(size)]["samples_us"].items()}
        print(name, size, shipped, medians, file=sys.stderr, flush=True)
    return rows


def dynamic(name: str) -> DynamicBatchModel:
    return with_dynamic_batch(read_unbound(zoo.build(name).SerializeToString(), name=name), SIZES)


def only(schedules: BatchSchedules, size: int) -> BatchSchedules:
    return replace(schedules, by_size={size: schedules.by_size[size]})


def samples(model: Model, ways: Mapping[str, ScheduleDocument]) -> dict[str, list[float]]:
    inputs = random_inputs(model.graph.inputs)
    documents = {"onnxruntime": None, **{way: each for way, each in ways.items() if not each.is_plain}}
    opened = {way: open_executor(model, each, device="cpu", threads=THREADS) for way, each in documents.items()}
    try:
        found = measure_in_turn({way: each.ready(inputs) for way, each in opened.items()}, Budget(25, 30.0))
    finally:
        for each in opened.values():
            each.close()
    return {way: list(each.samples_us) for way, each in found.items()}


def memory(name: str) -> dict[str, Any]:
    """MiB of resident memory, before any size is open and with more and more of them, by greedy schedules."""
    model = dynamic(name)
    schedules = optimize_batches(model, SIZES, OptimizeSettings(device="v100", strategy="greedy")).schedules
    resident = [resident_mib()]
    with closing(LoadedBatches(model, schedules, device="cpu", threads=THREADS)) as loaded:
        for size in SIZES:
            loaded.run(random_inputs(model.at(size).graph.inputs))
            resident.append(resident_mib())
    weights = sum(array.nbytes for array in model.unbound.weights.values()) / 2**20
    print(name, weights, resident, file=sys.stderr)
    return {"weights_mib": weights, "sizes": SIZES, "resident_mib": resident}


def resident_mib() -> float:
    status = Path("/proc/self/status").read_text()
    (kib,) = re.findall(r"VmRSS:\s+(\d+) kB", status)
    return int(kib) / 1024


def tables(results: Mapping[str, Any]) -> str:
    rows = [list(row) for row in _rows(results["networks"])]
    head = ["network", "batch", "onnxruntime", "the file", "ships", "gain", "by the smallest's", "by its own search"]
    return markdown_table(head, rows)


def _rows(networks: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for name, sizes in networks.items():
        for size, row in sizes.items():
            plain = summarize(row["samples_us"]["onnxruntime"])
            file = row["samples_us"].get("file")
            batch = size if int(size) in SIZES else f"{size}, between"
            medians = (
                f"{each.median_us / 1000:.2f} ms" for each in (plain, plain if file is None else summarize(file))
            )
            gains = (_gain(row, plain, way) for way in ("file", "smallest", "own"))
            first = next(gains)
            yield zoo.describe(name).title, batch, *medians, row["shipped"]["file"], first, *gains


def _gain(row: Mapping[str, Any], plain: Measurement, way: str) -> str:
    """How many times as fast as plain onnxruntime a way is; "" where it was not asked for, 1 where it is the same."""
    if way not in row["samples_us"]:
        return "1" if way in row["shipped"] else ""
    found = compare(plain, summarize(row["samples_us"][way]))
    assert found is not None
    return f"{found.speedup:.2f} ({found.low:.2f} to {found.high:.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    known = json.loads(OUT.read_text()) if OUT.exists() else {}
    results = {part: known.get(part, {}) for part in ("networks", "memory")}
    part = results["memory" if options.memory else "networks"]
    for name in options.names:
        part[name] = memory(name) if options.memory else measure(name)
        keep_results(OUT, results, rivals=["openvino"], goes_on=True)
    if options.write:
        text = PAGE.read_text()
        marks = "<!-- measured -->\n", "<!-- /measured -->"
        before, rest = text.split(marks[0])
        PAGE.write_text(f"{before}{marks[0]}{tables(results)}\n{marks[1]}{rest.split(marks[1])[1]}")


if __name__ == "__main__":
    main()
