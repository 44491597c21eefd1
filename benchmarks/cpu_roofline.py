"""Measures the peaks of this machine's cores: multiply-adds in registers, and memory bandwidth.

    python benchmarks/cpu_roofline.py MODEL... [--seconds 0.5] [-o results.json]

The C++ compiler of the executor compiles a few loops, which run on one core and on all: fused multiply-adds without
memory; sums of an array; a = b + 3 c. The arrays have the size of a core's cache, a few times its L2, and more than the
L3. One large matrix product shows how much of the peak each library reaches. For each MODEL, named as in
`cpu_models.py`, the results have the arithmetic and the bytes of its operators, counted from their shapes.

Options:
    --seconds: minimum duration of each loop
    --output: raw results as JSON
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from command_line import read_options
from cpu_models import cpu_model, model_of, short_name
from cpu_profile_tables import peak_table
from onnx import helper
from result_tables import print_table
from results_files import write_results

from iosched.models.load import load_model
from iosched.profiler.baselines.openvino import open_openvino
from iosched.profiler.measuring.idle import wait_until_idle
from iosched.runtime.cores import allowed_cpus, cpu_count
from iosched.runtime.inputs import random_inputs
from iosched.runtime.reference import Reference, ReferenceSettings

SOURCE = Path(__file__).with_suffix(".cpp")
FLOPS_A_STEP = 12 * 16 * 2
SIZES = {"L1": 24 << 10, "L2": 1 << 20, "L3": 24 << 20, "memory": 768 << 20}  # bytes of a core's arrays together
PRODUCT = 1536  # rows and columns of the matrices
REPEATS = 9

Loop = Callable[[int], object]  # of a core, given its number


def main(words: Sequence[str] | None = None) -> None:
    options = read_options(__file__, words, {"models": []}, seconds=0.5, output=Path)
    counts = sorted({1, cpu_count()})
    with tempfile.TemporaryDirectory(prefix="iosched-") as folder:
        loops = compiled(Path(folder))
        found: dict[str, Any] = {
            "gflops": {str(n): multiply_adds(loops, n, options.seconds) for n in counts},
            "read_gb": {str(n): {name: reads(loops, n, size) for name, size in SIZES.items()} for n in counts},
            "triad_gb": {str(n): {name: triads(loops, n, size) for name, size in SIZES.items()} for n in counts},
        }
    found["product_gflops"] = {str(n): products(n) for n in counts}
    found["models"] = {short_name(name): _counted(name) for name in options.models}
    print_table(*peak_table(found))
    write_results(options, found)


def compiled(folder: Path) -> ctypes.CDLL:
    """The loops, made for this processor."""
    library = folder / "loops.so"
    flags = ["-O3", "-march=native", "-mprefer-vector-width=512", "-ffp-contract=fast", "-shared", "-fPIC"]
    subprocess.run([os.environ.get("CXX", "c++"), *flags, str(SOURCE), "-o", str(library)], check=True)
    loops = ctypes.CDLL(str(library))
    pointer, long = ctypes.c_void_p, ctypes.c_long
    loops.multiply_add.argtypes, loops.multiply_add.restype = [long], ctypes.c_float
    loops.read.argtypes, loops.read.restype = [pointer, long, long], ctypes.c_float
    loops.triad.argtypes, loops.triad.restype = [pointer, pointer, pointer, long, long], None
    return loops


def multiply_adds(loops: ctypes.CDLL, cores: int, seconds: float) -> list[float]:
    """10^9 operations per second of each repeat."""
    steps = 1 << 20
    once_s = min(on_cores(1, lambda core: loops.multiply_add(steps)) for _ in range(3))
    steps = int(steps * max(seconds / REPEATS / once_s, 1.0))
    wall_s = [on_cores(cores, lambda core: loops.multiply_add(steps)) for _ in range(REPEATS)]
    return [round(cores * steps * FLOPS_A_STEP / each / 1e9, 2) for each in wall_s]


def reads(loops: ctypes.CDLL, cores: int, nbytes: int) -> list[float]:
    """10^9 bytes per second read by all cores, of each repeat."""
    arrays, times = [_ones(nbytes // 4) for _ in range(cores)], _passes(nbytes)

    def loop(core: int) -> None:
        loops.read(arrays[core].ctypes.data, arrays[core].size, times)

    return _gigabytes(loop, cores, times * nbytes)


def triads(loops: ctypes.CDLL, cores: int, nbytes: int) -> list[float]:
    """The same for three arrays: two are read, one is written; its read before the write does not count."""
    arrays, times = [[_ones(nbytes // 12) for _ in range(3)] for _ in range(cores)], _passes(nbytes)

    def loop(core: int) -> None:
        a, b, c = (array.ctypes.data for array in arrays[core])
        loops.triad(a, b, c, arrays[core][0].size, times)

    return _gigabytes(loop, cores, times * nbytes)


def _ones(count: int) -> np.ndarray:
    """An array of ones that starts at a cache line."""
    room = np.ones(count // 16 * 16 + 16, np.float32)
    start = -room.ctypes.data % 64 // 4
    return room[start : start + count // 16 * 16]


def _passes(nbytes: int) -> int:
    return max(1, (256 << 20) // nbytes)


def _gigabytes(loop: Loop, cores: int, nbytes: int) -> list[float]:
    wall_s = [on_cores(cores, loop) for _ in range(1 + REPEATS)][1:]
    return [round(cores * nbytes / each / 1e9, 2) for each in wall_s]


def on_cores(count: int, loop: Loop) -> float:
    """Seconds that `loop` takes on n cores at once, a thread pinned to each, from the last start to the end."""
    cpus, ready, spans = allowed_cpus()[:count], threading.Barrier(count), [(0.0, 0.0)] * count

    def run(core: int) -> None:
        os.sched_setaffinity(0, {cpus[core]})
        ready.wait()
        begun = time.perf_counter()
        loop(core)
        spans[core] = (begun, time.perf_counter())

    threads = [threading.Thread(target=run, args=(core,)) for core in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return max(end for _, end in spans) - min(begun for begun, _ in spans)


def products(threads: int) -> dict[str, list[float]]:
    """Speed of the libraries on one product of large matrices, in GFLOP/s."""
    node = helper.make_node("MatMul", ["a", "b"], ["c"], name="c")
    model = load_model(model_of([node], ["a", "b"], ["c"], (PRODUCT, PRODUCT)), name="product")
    inputs = random_inputs(model.graph.inputs)
    with Reference(model, ReferenceSettings(intra_threads=threads)) as reference:
        found = {"onnxruntime": reference.time(inputs, 2 + REPEATS)[2:]}
    wait_until_idle()
    found["openvino"] = tuple(open_openvino(model, threads, inputs).time(2 + REPEATS))[2:]
    wait_until_idle()
    return {name: [round(2 * PRODUCT**3 / us / 1e3, 2) for us in each] for name, each in found.items()}


def _counted(name: str) -> dict[str, int]:
    operators = cpu_model(name).graph.operators
    return {"flops": sum(each.flops for each in operators), "nbytes": sum(each.nbytes for each in operators)}


if __name__ == "__main__":
    main()
