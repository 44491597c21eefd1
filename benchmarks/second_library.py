"""What ships where OpenVINO is installed, beside what would ship without it and the two libraries themselves.

    python benchmarks/second_library.py MODEL... [--budget 40] [--rounds 21] [--precision bf16] [-o results.json]

MODEL is a file, `zoo:NAME`, or `light_NAME` of the onnx package. Each is optimized with an empty
profile database, and then what shipped, what would have shipped without OpenVINO, plain onnxruntime at its best setting
and OpenVINO are measured in turn. With --precision nothing is optimized: OpenVINO in that precision is measured in turn
with the two libraries in 32-bit floats, and how far off it is from onnxruntime.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from cpu_models import cpu_model
from testbed import (
    NAMES,
    Openers,
    Table,
    in_turn,
    latency_cells,
    print_table,
    ratio_text,
    read_options,
    within_rounds,
    write_results,
)

from iosched import Model, open_executor
from iosched.jobs.optimize import OptimizeSettings, optimize
from iosched.profiler.baselines.openvino import OpenvinoBaseline
from iosched.profiler.devices.cpu.open import CPU_OPENERS
from iosched.profiler.measuring.interleaved_models import Budget
from iosched.runtime.cores import cpu_count
from iosched.runtime.inputs import random_inputs


def main(words: Sequence[str] | None = None) -> None:
    """Measures each model and prints the table."""
    precision = {"choices": ("bf16", "fp16")}
    takes = {"models": {"nargs": "+"}}
    options = read_options(__file__, words, takes, budget=40.0, rounds=21, precision=precision, output=Path)
    found: dict[str, Any] = {}
    for text in options.models:
        model = cpu_model(text)
        found[model.name] = (
            measured(model, options.budget, options.rounds)
            if options.precision is None
            else in_precision(model, options.precision, options.rounds)
        )
        write_results(options, {"models": found}, rivals=["openvino"])
    print_table(*(shipped_table(found) if options.precision is None else precision_table(found)))


_WORDS = {"reference": "onnxruntime", "iosched": "schedule", "openvino": "OpenVINO"}


def shipped_table(models: Mapping[str, Any]) -> Table:
    """Latencies with speedups over onnxruntime, and what ships without OpenVINO and with it."""
    rows = []
    for name, entry in models.items():
        plain, openvino, *both = latency_cells(entry["samples_us"], "onnxruntime", in_rounds=True)
        words = (_WORDS[entry[f"ships {way}"]] for way in ("without", "with"))
        rows.append(
            [NAMES.get(name, name), plain, openvino, *(cell for pair in zip(words, both, strict=True) for cell in pair)]
        )
    return ["network", "onnxruntime", "OpenVINO", "ships without OpenVINO", "", "ships with it", ""], rows


def precision_table(models: Mapping[str, Any]) -> Table:
    """OpenVINO in 32-bit floats and in bf16."""
    rows = []
    for name, entry in models.items():
        taken = entry["samples_us"]
        ms = (f"{median(taken[each]) / 1e3:.2f}" for each in ("openvino", "bf16"))
        speedup = ratio_text(within_rounds(taken, "openvino", "bf16"))
        rows.append([NAMES.get(name, name), *ms, speedup, f"{entry['max_rel']:.4f}"])
    headers = ["network", "OpenVINO fp32 ms", "bf16 ms", "bf16 times as fast as fp32"]
    return [*headers, "off by, relative to the largest output"], rows


def measured(model: Model, budget_s: float, rounds: int) -> dict[str, Any]:
    """Optimizes `model`, and measures in turn what ships and what it has to beat."""
    with tempfile.TemporaryDirectory() as folder:
        result = optimize(model, OptimizeSettings(device="cpu", budget_s=budget_s, profile_db=Path(folder) / "p.db"))
    inputs, threads = random_inputs(model.graph.inputs), cpu_count()
    without = str(result.document.runtime.get("without_openvino", result.shipped))
    documents = {"without": replace(result.document, shipped=without), "with": result.document}
    openers = {
        **{name: partial(CPU_OPENERS[name], model, threads, inputs) for name in ("onnxruntime", "openvino")},
        **{name: lambda each=each: open_executor(model, each).ready(inputs) for name, each in documents.items()},
    }
    return {
        "ships without": without,
        "ships with": result.shipped,
        "reason": result.reason,
        "latency_us": dict(result.document.latency_us),
        "samples_us": samples_of(openers, rounds),
    }


def in_precision(model: Model, precision: str, rounds: int) -> dict[str, Any]:
    """Measures OpenVINO in that precision in turn with the libraries in 32-bit floats."""
    inputs, threads = random_inputs(model.graph.inputs), cpu_count()
    reduced = OpenvinoBaseline(model, threads, precision)
    openers = {name: partial(CPU_OPENERS[name], model, threads, inputs) for name in ("onnxruntime", "openvino")}
    return {
        "max_abs": reduced.agreement.max_abs,
        "max_rel": reduced.agreement.max_rel,
        "samples_us": samples_of({**openers, precision: partial(reduced.ready, inputs)}, rounds),
    }


def samples_of(openers: Openers, rounds: int) -> dict[str, list[float]]:
    return {name: list(each.samples_us) for name, each in in_turn(openers, Budget(rounds, 60.0)).items()}


if __name__ == "__main__":
    main()
