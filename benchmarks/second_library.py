"""What ships where OpenVINO is installed, beside what would ship without it and the two libraries themselves.

    python benchmarks/second_library.py MODEL... [--budget 40] [--rounds 21] [--precision bf16] [-o results.json]

MODEL is a file, `zoo:NAME`, or `light_NAME` of the onnx package. Each is optimized with an empty
profile database, and then what shipped, what would have shipped without OpenVINO, plain onnxruntime at its best setting
and OpenVINO are measured in turn. With --precision nothing is optimized: OpenVINO in that precision is measured in turn
with the two libraries in 32-bit floats, and how far off it is from onnxruntime.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median

from cpu_models import cpu_model
from testbed import compared, print_table, speedup_text, write_results

from iosched.jobs.optimize import OptimizeResult, OptimizeSettings, optimize
from iosched.jobs.run import open_executor
from iosched.models.model import Model
from iosched.profiler.baselines.openvino import OpenvinoBaseline
from iosched.profiler.devices.cpu.open import CPU_OPENERS
from iosched.profiler.measuring.interleaved_models import Budget, close_all, measure_interleaved
from iosched.runtime.cores import cpu_count
from iosched.runtime.executor import Candidate
from iosched.runtime.inputs import random_inputs


def main(words: Sequence[str]) -> None:
    """Measures each model and prints the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="+", metavar="MODEL")
    parser.add_argument("--budget", type=float, default=40.0)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--precision", choices=("bf16", "fp16"))
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args(words)
    found, rows = {}, []
    for text in options.models:
        model = cpu_model(text)
        entry = found[model.name] = (
            measured(model, options.budget, options.rounds)
            if options.precision is None
            else in_precision(model, options.precision, options.rounds)
        )
        samples_us = entry["samples_us"]
        against = compared(samples_us, "onnxruntime")
        cells = [f"{median(each) / 1e3:.2f}{speedup_text(against.get(name))}" for name, each in samples_us.items()]
        rows.append([model.name, *cells, *(str(entry[key]) for key in entry if key in _SHOWN)])
        write_results(options, Path(__file__).stem, words, {"models": found}, rivals=["openvino"])
    print_table(["model", *(f"{name}, ms" for name in samples_us), *(key for key in entry if key in _SHOWN)], rows)


_SHOWN = ("ships without", "ships with", "max_rel")


def measured(model: Model, budget_s: float, rounds: int) -> dict[str, object]:
    """Optimizes `model`, and measures in turn what ships and what it has to beat."""
    with tempfile.TemporaryDirectory() as folder:
        result = optimize(model, OptimizeSettings(device="cpu", budget_s=budget_s, profile_db=Path(folder) / "p.db"))
    inputs, threads = random_inputs(model.graph.inputs), cpu_count()
    without = _without(result)
    documents = {"without": replace(result.document, shipped=without), "with": result.document}
    openers = {
        **{name: partial(CPU_OPENERS[name], model, threads, inputs) for name in ("onnxruntime", "openvino")},
        **{
            name: partial(lambda each: open_executor(model, each).ready(inputs), each)
            for name, each in documents.items()
        },
    }
    return {
        "ships without": without,
        "ships with": result.shipped,
        "reason": result.reason,
        "latency_us": dict(result.document.latency_us),
        "samples_us": _in_turn({name: opened() for name, opened in openers.items()}, rounds),
    }


def in_precision(model: Model, precision: str, rounds: int) -> dict[str, object]:
    """Measures OpenVINO in that precision in turn with the libraries in 32-bit floats."""
    inputs, threads = random_inputs(model.graph.inputs), cpu_count()
    reduced = OpenvinoBaseline(model, threads, precision)
    candidates = {name: CPU_OPENERS[name](model, threads, inputs) for name in ("onnxruntime", "openvino")}
    return {
        "max_abs": reduced.agreement.max_abs,
        "max_rel": reduced.agreement.max_rel,
        "samples_us": _in_turn({**candidates, precision: reduced.ready(inputs)}, rounds),
    }


def _in_turn(candidates: Mapping[str, Candidate], rounds: int) -> dict[str, list[float]]:
    try:
        return {
            name: list(each.samples_us) for name, each in measure_interleaved(candidates, Budget(rounds, 60.0)).items()
        }
    finally:
        close_all(candidates.values())


def _without(result: OptimizeResult) -> str:
    return str(result.document.runtime.get("without_openvino", result.shipped))


if __name__ == "__main__":
    main(sys.argv[1:])
