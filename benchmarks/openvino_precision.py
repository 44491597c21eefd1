"""OpenVINO in bf16 or fp16 on this CPU, interleaved with both libraries in fp32.

    python benchmarks/openvino_precision.py MODEL... [--precision bf16] [--rounds 21] [-o results.json]

MODEL is a file, `zoo:NAME`, or `light_NAME` of the onnx package.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from command_line import read_options
from cpu_models import cpu_model
from result_tables import NAMES, Table, print_table, ratio_text, within_rounds
from results_files import write_results
from testbed import in_turn

from iosched import Model
from iosched.profiler.baselines.openvino import OpenvinoBaseline
from iosched.profiler.devices.cpu.open import CPU_OPENERS
from iosched.profiler.measuring.interleaved_models import Budget
from iosched.runtime.cores import cpu_count
from iosched.runtime.inputs import random_inputs


def main(words: Sequence[str] | None = None) -> None:
    """Measures each model and prints the table."""
    takes = {"models": {"nargs": "+"}}
    options = read_options(__file__, words, takes, precision="bf16", rounds=21, output=Path)
    found: dict[str, Any] = {}
    for text in options.models:
        model = cpu_model(text)
        found[model.name] = measured(model, options.precision, options.rounds)
        write_results(options, {"precision": options.precision, "models": found}, rivals=["openvino"])
    print_table(*table({"precision": options.precision, "models": found}))


def table(found: Mapping[str, Any]) -> Table:
    """OpenVINO in fp32 and in the other precision."""
    precision = found["precision"]
    rows = []
    for name, entry in found["models"].items():
        taken = entry["samples_us"]
        ms = (f"{median(taken[each]) / 1e3:.2f}" for each in ("openvino", precision))
        speedup = ratio_text(within_rounds(taken, "openvino", precision))
        rows.append([NAMES.get(name, name), *ms, speedup, f"{entry['max_rel']:.4f}"])
    headers = ["network", "OpenVINO fp32 ms", f"{precision} ms", f"{precision} times as fast as fp32"]
    return [*headers, "off by, relative to the largest output"], rows


def measured(model: Model, precision: str, rounds: int) -> dict[str, Any]:
    """Samples of OpenVINO in that precision and of both libraries in fp32, and its difference from onnxruntime."""
    inputs, threads = random_inputs(model.graph.inputs), cpu_count()
    reduced = OpenvinoBaseline(model, threads, precision)
    openers = {name: partial(CPU_OPENERS[name], model, threads, inputs) for name in ("onnxruntime", "openvino")}
    taken = in_turn({**openers, precision: partial(reduced.ready, inputs)}, Budget(rounds, 60.0))
    return {
        "max_abs": reduced.agreement.max_abs,
        "max_rel": reduced.agreement.max_rel,
        "samples_us": {name: list(each.samples_us) for name, each in taken.items()},
    }


if __name__ == "__main__":
    main()
