"""Compares the speed of two builds of the compiled executor on this machine's CPU.

    python benchmarks/executor_builds.py g++=A/_executor.so zig=B/_executor.so [--models zoo:squeezenet,pairs]
                                         [--background-load N] [--rounds 101] [-o F.json]

Each library runs the same models under their greedy schedules, interleaved, A B A B, in one process. In SqueezeNet,
nearly all of the time is onnxruntime's. In `pairs`, a chain of pairs of tiny operators, much of it is the executor's,
since one core waits for the other in each stage. A sample is the median of a few runs. The first library is loaded
twice; its second row shows how much it differs from itself.

Options:
    builds: libraries made from runtime/cpu/executor.cpp
    --models: `pairs`, or a name of cpu_models.py
    --background-load: number of other processes, each of which keeps a core busy
    --output: raw results as JSON
"""

from __future__ import annotations

import ctypes
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

from command_line import read_options
from cpu_models import cpu_model, model_of, short_name
from onnx.helper import make_node
from result_tables import NAMES, Table, print_table, ratio_text
from results_files import write_results

from iosched import Model, load_model
from iosched.jobs.bench import busy_processes
from iosched.profiler.measuring.idle import wait_until_idle
from iosched.profiler.measuring.interleave import compare, interleave
from iosched.profiler.measuring.statistics import Measurement, summarize
from iosched.runtime.cpu import library, native
from iosched.runtime.cpu.backend import CompiledModel, CpuBackend
from iosched.runtime.cpu.lane_cpus import SHARE_VARIABLE
from iosched.runtime.inputs import Arrays, random_inputs
from iosched.scheduler.baselines import greedy

MODELS = ("zoo:squeezenet", "pairs")
PAIRS = 100  # stages of two operators each
RUNS = 20  # runs in a sample
HEADERS = ("model", "library", "median us", "times as fast as the first", "95 % interval")


def main(words: Sequence[str] | None = None) -> None:
    options = read_options(
        __file__, words, {"builds": {"nargs": "+"}}, models=MODELS, background_load=0, rounds=101, output=Path
    )
    os.environ[SHARE_VARIABLE] = "1"  # all use the same cores, in turn
    files = {name: Path(file) for name, _, file in (each.partition("=") for each in options.builds)}
    first = next(iter(files))
    with tempfile.TemporaryDirectory() as folder:
        again = shutil.copy(files[first], Path(folder) / "again.so")
        loaded = {name: load(file) for name, file in {**files, f"{first} again": again}.items()}
    models = {short_name(name): pairs_model() if name == "pairs" else cpu_model(name) for name in options.models}
    with busy_processes(options.background_load):
        measured = {name: measure(model, loaded, options.rounds) for name, model in models.items()}
    print_table(HEADERS, [row for name, found in measured.items() for row in rows(name, found)])
    samples = {}
    for name, found in measured.items():
        samples[name] = {each: [round(us, 2) for us in found[each].samples_us] for each in found}
    write_results(options, {"background_load": options.background_load, "samples_us": samples})


def load_table(*files: Mapping[str, Any]) -> Table:
    """For each background load, the latency of the first library and the speedup of the second."""
    headers, found = ["network"], {NAMES.get(name, name): [] for name in files[0]["samples_us"]}
    for content in files:
        load = content["background_load"]
        headers += [f"{load} busy: before, ms", "speedup"]
        for cells, samples_us in zip(found.values(), content["samples_us"].values(), strict=True):
            first, second, *_ = map(summarize, samples_us.values())
            cells += [f"{first.median_us / 1e3:.1f}", ratio_text(compare(first, second))]
    return headers, [[name, *cells] for name, cells in found.items()]


def load(file: Path) -> ctypes.CDLL:
    return library._declared(ctypes.CDLL(str(file.resolve())))


def pairs_model() -> Model:
    """A chain of pairs of concurrent operators of about a microsecond each."""
    nodes, last = [], "x"
    for index in range(PAIRS):
        names = [f"{letter}{index}" for letter in "abc"]
        nodes += [make_node(kind, [last], [name]) for kind, name in zip(("Sin", "Cos"), names, strict=False)]
        nodes.append(make_node("Mul", names[:2], names[2:]))
        last = names[2]
    return load_model(model_of(nodes, ["x"], [last], (1, 64)), name="pairs")


def measure(model: Model, loaded: Mapping[str, ctypes.CDLL], rounds: int) -> Mapping[str, Measurement]:
    """Interleaved samples of each library on this model."""
    inputs = random_inputs(model.graph.inputs)
    with ExitStack() as stack:
        compiled = {name: stack.enter_context(backend_of(each, model)) for name, each in loaded.items()}
        runs = {name: partial(sample, each.compile(greedy(each.graph)), inputs) for name, each in compiled.items()}
        return interleave(runs, rounds, rest=wait_until_idle)


def backend_of(loaded: ctypes.CDLL, model: Model) -> CpuBackend:
    with mock.patch.object(native, "compiled", return_value=loaded):
        return CpuBackend(model)


def sample(compiled: CompiledModel, inputs: Arrays) -> float:
    return median(compiled.time(inputs, RUNS + 1)[1:])


def rows(model: str, found: Mapping[str, Measurement]) -> list[Sequence[str]]:
    first = next(iter(found.values()))
    against = {name: compare(first, each) for name, each in found.items()}
    texts = {
        name: ("-", "-") if each is None else tuple(ratio_text(each, ".3f")[:-1].split(" ("))
        for name, each in against.items()
    }
    return [(model, name, f"{each.median_us:.1f}", *texts[name]) for name, each in found.items()]


if __name__ == "__main__":
    main()
