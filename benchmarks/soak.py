"""Whether memory stays constant and outputs correct: many runs of one plan, many loads of one model, and many threads.

    python benchmarks/soak.py                                                   # two minutes
    python benchmarks/soak.py --kind onnx_read read sessions loaded             # growth by loading models: ten minutes

A small network runs by its schedule on two lanes of the compiled executor. Memory is the resident set of the process.

Options:
    --part: share of all runs and loads
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import closing
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from command_line import read_options
from fuzz import versions
from fuzz_corpus import iosched, model_of
from results_files import keep_results, known_results

from iosched import Model, ScheduleDocument, load_model, open_executor
from iosched.runtime.executor import Executor
from iosched.runtime.inputs import random_inputs
from iosched.runtime.processor import cpu_name
from iosched.runtime.session import load_onnxruntime

onnxruntime = load_onnxruntime()  # without its telemetry

RESULTS = Path(__file__).parent / "results" / "soak.json"
RUNS, LOADS, THREADS, RUNS_OF_A_THREAD = 100_000, 1_000, 8, 2_000
_LOOKS = 40


def resident_kib() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


def repeated(number: int, do: Callable[[], None]) -> dict[str, Any]:
    """Repeats an action; returns memory at equal intervals, and its growth after the first tenth."""
    do()
    series, start = [resident_kib()], time.monotonic()
    for part in range(_LOOKS):
        for _ in range(number * part // _LOOKS, number * (part + 1) // _LOOKS):
            do()
        series.append(resident_kib())
    grown = series[-1] - series[_LOOKS // 10]
    seconds = round(time.monotonic() - start, 1)
    return {"number": number, "seconds": seconds, "resident_kib": series, "grown_kib_after_a_tenth": grown}


class _Heap(ctypes.Structure):
    """`struct mallinfo2` of glibc (malloc.h); the eighth number is the memory in use."""

    _fields_ = tuple((f"number_{place}", ctypes.c_size_t) for place in range(10))


def heap_kib() -> int:
    """Memory in use by the count of the C library."""
    find = ctypes.CDLL(None).mallinfo2
    find.restype = _Heap
    return int(find().number_7) // 1024


def grown(number: int, do: Callable[[], object]) -> dict[str, Any]:
    """Repeats an action; returns memory resident and in use, and small objects of Python, at eleven times."""
    do()
    looks, start = [], time.monotonic()
    for part in range(11):
        gc.collect()
        looks.append((number * part // 10, resident_kib(), heap_kib(), sys.getallocatedblocks()))
        for _ in range(number // 10 if part < 10 else 0):
            do()
    names = ("done", "resident_kib", "heap_kib", "python_blocks")
    seconds = round(time.monotonic() - start, 1)
    return {"number": number, "seconds": seconds} | dict(zip(names, zip(*looks, strict=True), strict=True))


def onnx_read(path: Path, number: int) -> dict[str, Any]:
    """onnx reads a model."""
    return grown(number, lambda: onnx.load(path))


def read(path: Path, number: int) -> dict[str, Any]:
    """iosched reads a model without opening it."""
    return grown(number, lambda: load_model(path))


def sessions(path: Path, number: int) -> dict[str, Any]:
    """onnxruntime opens a model in one session, and closes it."""
    data, options = path.read_bytes(), onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return grown(number, lambda: onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"]))


def loaded(path: Path, number: int) -> dict[str, Any]:
    """iosched loads a model and closes it, without a run."""
    return grown(number, lambda: opened(path)[1].close())


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
    """Threads that all run one executor, each on its own inputs."""
    model, executor = opened(path)
    with closing(executor):
        inputs = [random_inputs(model.graph.inputs, seed) for seed in range(THREADS)]
        expected = [executor.run(each) for each in inputs]
        wrong = [0] * THREADS

        def work(own: int) -> None:
            for _ in range(number):
                found = executor.run(inputs[own])
                wrong[own] += any(not np.array_equal(found[name], value) for name, value in expected[own].items())

        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(work, range(THREADS)))
    return {"threads": THREADS, "runs_of_each": number, "wrong": sum(wrong)}


KINDS: Mapping[str, tuple[Callable[[Path, int], dict[str, Any]], int]] = {
    "runs": (runs, RUNS), "at_once": (at_once, RUNS_OF_A_THREAD), "loads": (loads, LOADS),
}  # fmt: skip
GROWTH: Mapping[str, tuple[Callable[[Path, int], dict[str, Any]], int]] = {
    **{each.__name__: (each, 5_000) for each in (onnx_read, read, sessions, loaded)},
}


def main() -> None:
    kinds = {"choices": (*KINDS, *GROWTH), "nargs": "+", "default": list(KINDS)}
    asked = read_options(__file__, kind=kinds, part=1.0, results=RESULTS)
    path = asked.results.resolve()
    known = known_results(path)
    content = {kind: known[kind] for kind in (*KINDS, *GROWTH) if kind in known}
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        os.chdir(folder)
        os.environ["IOSCHED_PROFILE_DB"] = ":memory:"
        onnx.save(model_of("separable"), "separable.onnx")
        iosched("optimize", "separable.onnx", "--device", "v100", "-q")
        for kind in asked.kind:
            soak, number = {**KINDS, **GROWTH}[kind]
            model = Path(folder) / "separable.iosched.onnx"
            with ProcessPoolExecutor(1, get_context("spawn")) as pool:  # each kind in a process of its own
                content[kind] = pool.submit(soak, model, int(number * asked.part)).result()
            content |= {"machine": f"{cpu_name()}, {os.cpu_count()} cores", "versions": versions()}
            keep_results(path, content, seeds={"first inputs": 0}, goes_on=True, in_lines=True)
            print(kind, json.dumps(content[kind]), flush=True)


if __name__ == "__main__":
    main()
