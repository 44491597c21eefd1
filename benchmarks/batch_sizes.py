"""A file with schedules for several batch sizes, at these sizes and at others, compared with onnxruntime.

    python benchmarks/batch_sizes.py squeezenet inception_v3@139    # adds to results/batch-sizes.json
    python benchmarks/batch_sizes.py squeezenet --others 2,8,64     # sizes for which the file has no schedule
    python benchmarks/batch_sizes.py --memory resnet50              # memory of each open size

At each size, these run interleaved: the schedule that the file uses for the size ("file"), the one for the smallest
size ("smallest"), for sizes without a schedule in the file the one that a search for this size finds ("own"), and plain
onnxruntime. If plain onnxruntime shipped, it counts as that schedule and is not measured again.

A call begins nothing new after --minutes, and the next call continues: schedules are kept in --work, and measured sizes
in the results. Rounds with interference do not count. If too few rounds remain, the next call measures again.
NAME@PIXELS is a network on smaller images, light_NAME one of the onnx package.

Options:
    --others: batch sizes besides those of the file, separated by commas
    --minutes: approximate time limit of this call
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

from command_line import read_options
from result_tables import NAMES, Table, markdown_table, ratio_text
from results_files import RESULTS, keep_results, resumed_results
from testbed import in_turn

from iosched import BatchSchedules, LoadedBatches, Model, OptimizeSettings, ScheduleDocument, open_executor
from iosched.jobs.optimize import optimize
from iosched.jobs.optimize_batches import optimize_batches
from iosched.jobs.schedule_selection import for_batch
from iosched.models import zoo
from iosched.models.dynamic_batch import DynamicBatchModel, with_dynamic_batch
from iosched.models.load import read_unbound
from iosched.models.zoo.light import light_model
from iosched.profiler.measuring.idle import wait_until_idle
from iosched.profiler.measuring.interleave import compare
from iosched.profiler.measuring.interleaved_models import Budget, measure_interleaved
from iosched.profiler.measuring.statistics import Measurement, summarize
from iosched.runtime.executor import Candidate
from iosched.runtime.inputs import random_inputs

T = TypeVar("T")

OUT = RESULTS / "batch-sizes.json"
SIZES = (1, 4, 16)
SEARCH_S, MEASURE_S, ROUNDS, THREADS = 40.0, 20.0, 25, 2
MOST_OTHERS = 0.05  # share of the cores that other processes may use in a turn
FEWEST_ROUNDS = 8
REST_S = 0.3
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Network:
    """A network whose schedules are kept in a folder, one file for each batch size."""

    name: str
    folder: Path

    @cached_property
    def model(self) -> DynamicBatchModel:
        return dynamic(self.name)

    def document(self, size: int) -> ScheduleDocument:
        """The schedule found for this batch size, now or in an earlier call."""
        path = self.folder / f"{self.name}.{size}.json"
        if not path.exists():
            settings = OptimizeSettings(device="cpu", threads=THREADS, budget_s=SEARCH_S)
            model = self.model.at(size)
            found, others = beside_others(lambda: optimize(model, settings).document)
            print(self.name, size, f"searched: {found.shipped}, others took {others:.1%}", file=sys.stderr, flush=True)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(found.to_json(), encoding="utf-8")
        return ScheduleDocument.from_json(path.read_text(encoding="utf-8"))

    def schedules(self, *sizes: int) -> BatchSchedules:
        found = {size: self.document(size) for size in sizes}
        return BatchSchedules(self.model.name, self.model.inputs, found)

    def measure(self, size: int) -> dict[str, Any]:
        model = self.model.at(size)
        sets = (("file", SIZES), ("smallest", SIZES[:1]))
        ways = {way: for_batch(self.schedules(*of), model).document for way, of in sets}
        if size not in SIZES:
            ways["own"] = self.document(size)
        found, others = samples(model, ways)
        shipped = {way: document.shipped for way, document in ways.items()}
        return {"shipped": shipped, "others": others, "samples_us": found}


def beside_others(does: Callable[[], T]) -> tuple[T, float]:
    """The result of a call, and the share of the cores that other processes used meanwhile, by the kernel's ticks."""
    before, own, began = processor_s(), time.process_time(), time.monotonic()
    found = does()
    own_s, took_s = time.process_time() - own, time.monotonic() - began
    others_s = processor_s() - before - own_s - TICK_S
    return found, max(others_s, 0.0) / (took_s * len(os.sched_getaffinity(0)))


def processor_s() -> float:
    """Seconds of processor time that were spent on this machine, or stolen from it."""
    user, nice, system, _idle, _waiting, *others = map(int, Path("/proc/stat").read_text().splitlines()[0].split()[1:9])
    return (user + nice + system + sum(others)) * TICK_S


def dynamic(name: str) -> DynamicBatchModel:
    base, _, pixels = name.partition("@")
    proto = light_model(base) if base.startswith("light_") else zoo.build(base)
    if pixels:
        for dim in proto.graph.input[0].type.tensor_type.shape.dim[2:]:
            dim.dim_value = int(pixels)
        del proto.graph.value_info[:]
    return with_dynamic_batch(read_unbound(proto.SerializeToString(), name=base), SIZES)


def advance(network: Network, sizes: Sequence[int], rows: dict[str, Any], deadline: float) -> Iterator[None]:
    """Searches and measures missing results; yields after each step, and starts none after the deadline."""
    for size in (*SIZES, *sizes):
        if time.monotonic() < deadline:
            network.document(size)
    for size in sorted({*SIZES, *sizes}):
        known = counted(rows.get(str(size)))
        if time.monotonic() >= deadline or known >= FEWEST_ROUNDS:
            continue
        row = network.measure(size)
        if str(size) not in rows or counted(row) > known:
            rows[str(size)] = row
        medians = {way: round(summarize(each).median_us) for way, each in row["samples_us"].items()}
        print(network.name, size, row["shipped"], medians, row["others"], file=sys.stderr, flush=True)
        yield


def counted(row: Mapping[str, Any] | None) -> int:
    """Number of rounds that count; none if other processes were not watched."""
    return 0 if row is None else sum(share <= MOST_OTHERS for share in row.get("others", ()))


def samples(model: Model, ways: Mapping[str, ScheduleDocument]) -> tuple[dict[str, list[float]], list[float]]:
    """Latencies by alternative and round, and the largest share of the cores used by others in a turn of the round.

    If enough rounds count, the others are left out.
    """
    inputs = random_inputs(model.graph.inputs)
    documents = {"onnxruntime": None, **{way: each for way, each in ways.items() if not each.is_plain}}
    shares: dict[str, list[float]] = {way: [] for way in documents}

    def ready(way: str) -> Candidate:
        executor = open_executor(model, documents[way], device="cpu", threads=THREADS)
        return _watched(executor.ready(inputs), shares[way])

    measure = partial(measure_interleaved, rest=rest)
    found = in_turn({way: partial(ready, way) for way in documents}, Budget(ROUNDS, MEASURE_S), measure)
    count = len(next(iter(found.values())).samples_us)
    others = [round(max(each), 4) for each in zip(*(share[-count:] for share in shares.values()), strict=True)]
    counting = [index for index, share in enumerate(others) if share <= MOST_OTHERS]
    if len(counting) < FEWEST_ROUNDS:
        counting = [*range(count)]
    samples_us = {way: [each.samples_us[index] for index in counting] for way, each in found.items()}
    return samples_us, [others[index] for index in counting]


def _watched(candidate: Candidate, shares: list[float]) -> Candidate:
    def timed(count: int) -> Sequence[float]:
        found, share = beside_others(lambda: candidate.time(count))
        shares.append(share)
        return found

    return replace(candidate, time=timed)


def rest() -> None:
    """Waits until this process is idle, and a short time for others."""
    wait_until_idle()
    until = time.monotonic() + REST_S
    while time.monotonic() < until and beside_others(lambda: time.sleep(0.05))[1] > 0.1:
        pass


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


def measured_text(results: Mapping[str, Any]) -> str:
    """The generated part of the page."""
    machine, versions = results["machine"], results["versions"]
    head = ["network", "batch", "onnxruntime", "the file", "ships", "gain", "by the smallest's", "by its own search"]
    table = markdown_table(head, [list(row) for row in _rows(results["networks"])])
    return (
        f"The table is of {THREADS} threads on {machine['cores']} cores of {machine['processor']}, with onnxruntime\n"
        f"{versions['onnxruntime']} and OpenVINO {versions['openvino']}. Each search had {SEARCH_S:.0f} seconds.\n"
        f"Rounds in which other processes took more than {MOST_OTHERS:.0%} of the cores do not count. Where fewer\n"
        f"than {FEWEST_ROUNDS} rounds were left, the row has an asterisk, and is of all rounds.\n\n"
        f"{table}\n"
    )


def memory_table(networks: Mapping[str, Any]) -> Table:
    """MiB of the process before, and with more and more sizes open."""
    rows = [
        [NAMES[name], *(f"{mib:.0f}" for mib in (found["weights_mib"], *found["resident_mib"]))]
        for name, found in networks.items()
    ]
    sizes = next(iter(networks.values()))["sizes"]
    opened = (", ".join(map(str, sizes[: place + 1])) for place in range(len(sizes)))
    return ["network", "weights", "before", *opened], rows


def _rows(networks: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for name, sizes in networks.items():
        for size, row in sorted(sizes.items(), key=lambda item: int(item[0])):
            plain = summarize(row["samples_us"]["onnxruntime"])
            file = row["samples_us"].get("file")
            batch = size if int(size) in SIZES else f"{size}, not in the file"
            batch += "" if counted(row) >= FEWEST_ROUNDS else " *"
            both = plain, plain if file is None else summarize(file)
            medians = (f"{each.median_us / 1000:.2f} ms" for each in both)
            gains = (_gain(row, plain, way) for way in ("file", "smallest", "own"))
            yield title(name), batch, *medians, row["shipped"]["file"], *gains


def title(name: str) -> str:
    base, _, pixels = name.partition("@")
    found = base if base.startswith("light_") else zoo.describe(base).title
    return f"{found}, {pixels} pixels" if pixels else found


def _gain(row: Mapping[str, Any], plain: Measurement, way: str) -> str:
    """Speedup of an alternative over plain onnxruntime; "" if it was not measured, 1 if it is the same."""
    if way not in row["samples_us"]:
        return "1" if way in row["shipped"] else ""
    return ratio_text(compare(plain, summarize(row["samples_us"][way])))


def main() -> None:
    others = {"type": lambda text: [int(size) for size in text.split(",")], "default": []}
    options = read_options(
        __file__, None, {"names": []}, others=others, minutes=9.0, work=Path("build/batch-sizes"), memory=False
    )
    deadline = time.monotonic() + 60 * options.minutes
    known = resumed_results(OUT)
    results = {part: known.get(part, {}) for part in ("networks", "memory")}
    part = results["memory" if options.memory else "networks"]
    for name in options.names:
        if options.memory:
            part[name] = memory(name)
            save(results)
            continue
        for _ in advance(Network(name, options.work), options.others, part.setdefault(name, {}), deadline):
            save(results)


def save(results: Mapping[str, Any]) -> None:
    keep_results(OUT, results, rivals=["openvino"], goes_on=True)


if __name__ == "__main__":
    main()
