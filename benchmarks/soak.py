"""Whether memory stays flat and answers right: many runs of one plan, many loads of one model, and many threads.

    python benchmarks/soak.py          # two minutes

A small network runs by its schedule on two lanes of the compiled executor. Memory is what the process has resident.
"""

from __future__ import annotations

import json
import os
import tempfile
import threading
import time
from argparse import ArgumentParser
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from fuzz import versions
from fuzz_corpus import iosched, model_of
from testbed import keep_results

from iosched.jobs.run import open_executor
from iosched.models.load import load_model
from iosched.models.model import Model
from iosched.profiler.devices.executor import Executor
from iosched.runtime.inputs import random_inputs
from iosched.runtime.processor import cpu_name
from iosched.scheduler.document import ScheduleDocument

RESULTS = Path(__file__).parent / "results" / "soak.json"
RUNS, LOADS, THREADS, RUNS_OF_A_THREAD = 100_000, 1_000, 8, 2_000
_LOOKS = 40


def resident_kib() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


def repeated(number: int, do: Callable[[], None]) -> dict[str, Any]:
    """Does something so often; memory at equal distances, and how much it grew from a tenth of the way to the end."""
    do()
    series, start = [resident_kib()], time.monotonic()
    for part in range(_LOOKS):
        for _ in range(number * part // _LOOKS, number * (part + 1) // _LOOKS):
            do()
        series.append(resident_kib())
    grown = series[-1] - series[_LOOKS // 10]
    seconds = round(time.monotonic() - start, 1)
    return {"number": number, "seconds": seconds, "resident_kib": series, "grown_kib_after_a_tenth": grown}


def opened(path: Path) -> tuple[Model, Executor]:
    model = load_model(path)
    assert model.schedule_json is not None
    return model, open_executor(model, ScheduleDocument.from_json(model.schedule_json), device="cpu", threads=2)


def runs(path: Path, number: int) -> dict[str, Any]:
    model, executor = opened(path)
    with closing(executor):
        inputs = random_inputs(model.graph.inputs)
        expected = executor.run(inputs)
        wrong = 0

        def run() -> None:
            nonlocal wrong
            found = executor.run(inputs)
            wrong += any(not np.array_equal(found[name], value) for name, value in expected.items())

        return repeated(number, run) | {"wrong": wrong, "runs_by": executor.description}


def loads(path: Path, number: int) -> dict[str, Any]:
    def load() -> None:
        model, executor = opened(path)
        with closing(executor):
            executor.run(random_inputs(model.graph.inputs))

    return repeated(number, load)


def at_once(path: Path, number: int) -> dict[str, Any]:
    """Threads that all run one executor, each on inputs of its own."""
    model, executor = opened(path)
    with closing(executor):
        inputs = [random_inputs(model.graph.inputs, seed) for seed in range(THREADS)]
        expected = [executor.run(each) for each in inputs]
        wrong = [0] * THREADS

        def work(own: int) -> None:
            for _ in range(number):
                found = executor.run(inputs[own])
                wrong[own] += any(not np.array_equal(found[name], value) for name, value in expected[own].items())

        workers = [threading.Thread(target=work, args=(own,)) for own in range(THREADS)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    return {"threads": THREADS, "runs_of_each": number, "wrong": sum(wrong)}


KINDS: Mapping[str, tuple[Callable[[Path, int], dict[str, Any]], int]] = {
    "runs": (runs, RUNS),
    "at_once": (at_once, RUNS_OF_A_THREAD),
    "loads": (loads, LOADS),
}


def main() -> None:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=KINDS, nargs="+", default=list(KINDS))
    parser.add_argument("--part", type=float, default=1.0, help="of all runs and loads")
    parser.add_argument("--results", type=Path, default=RESULTS)
    asked = parser.parse_args()
    path = asked.results.resolve()
    known = json.loads(path.read_text()) if path.exists() else {}
    content = {kind: known[kind] for kind in KINDS if kind in known}
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        os.chdir(folder)
        os.environ["IOSCHED_PROFILE_DB"] = ":memory:"
        onnx.save(model_of("separable"), "separable.onnx")
        iosched("optimize", "separable.onnx", "--device", "v100", "-q")
        for kind in asked.kind:
            soak, number = KINDS[kind]
            content[kind] = soak(Path(folder) / "separable.iosched.onnx", int(number * asked.part))
            content |= {"machine": f"{cpu_name()}, {os.cpu_count()} cores", "versions": versions()}
            keep_results(path, content, seeds={"first inputs": 0}, goes_on=True, in_lines=True)
            print(kind, json.dumps(content[kind]), flush=True)


if __name__ == "__main__":
    main()
