"""Latency of int8 networks on the cores of this machine: our schedules, plain onnxruntime and OpenVINO.

    python benchmarks/cpu_quantized.py [--networks NAME:ACTIVATIONS,...] [--rounds N] [-o results.json]

Networks of the zoo and the `light_*` of the onnx package, quantized by onnxruntime's quantizer with one scale per
channel of a weight, int8 weights and uint8 or int8 activations. Each network is searched, and all alternatives run
interleaved, A B C A B C. The results have every sample, and the largest differences from onnxruntime's outputs in steps
of the last operator's numbers.

Options:
    --rounds: samples of each alternative
    --output: raw results as JSON
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from result_tables import NAMES, Table, latency_cells, print_table
from results_files import write_results

from iosched import Model, bench, load_model
from iosched.jobs.optimize import OptimizeSettings, optimize
from iosched.models import zoo
from iosched.models.zoo.light import light_model
from iosched.runtime.cores import cpu_count
from iosched.runtime.cpu.backend import CpuBackend
from iosched.runtime.executor import Runnable
from iosched.runtime.inputs import Arrays, random_inputs
from iosched.runtime.openvino.openvino_model import OpenvinoModel
from iosched.runtime.reference import Reference
from iosched.scheduler.baselines import sequential

sys.path.append(str(Path(__file__).parents[1] / "tests" / "support"))
from command_line import read_options
from quantized import quantized

NETWORKS = (
    "squeezenet:uint8", "light_inception_v2:uint8", "light_shufflenet:uint8", "inception_v3:uint8", "squeezenet:int8",
)  # fmt: skip
ALTERNATIVES = ("onnxruntime", "sequential", "both", "openvino")


def main() -> None:
    options = read_options(__file__, networks=NETWORKS, rounds=15, profile_db=Path, output=Path)
    found: dict[str, Any] = {}
    for text in options.networks:
        name, activations = text.split(":")
        model = _quantized(name, activations)
        rounds, database = options.rounds, options.profile_db
        result = optimize(model, OptimizeSettings(profile_db=database))
        measured = bench(model, result.document, names=ALTERNATIVES, rounds=rounds, profile_db=database)
        samples = {key: [round(sample, 1) for sample in turns] for key, turns in measured.samples_us.items()}
        found[text] = {
            "shipped": result.shipped,
            "missing": dict(measured.missing),
            "steps_off": _steps_off(model, openvino="openvino" in samples),
            "samples_us": samples,
        }
        write_results(options, {"networks": found})
    print_table(*table(found))


def table(networks: Mapping[str, Any]) -> Table:
    """Latencies with speedups over onnxruntime, and the error of OpenVINO where it can run a model."""
    rows = []
    for text, entry in sorted(networks.items()):
        name, _, activations = text.partition(":")
        samples = {key: entry["samples_us"][key] for key in ALTERNATIVES if key in entry["samples_us"]}
        cells = dict(zip(samples, latency_cells(samples, "onnxruntime"), strict=True))
        off = f"{entry['steps_off']['openvino']:.0f}" if "openvino" in cells else ""
        rows.append([f"{NAMES.get(name, name)}, {activations}", *(cells.get(key, "-") for key in ALTERNATIVES), off])
    headers = ["network, activations", "onnxruntime", "one after another", "schedule found", "OpenVINO"]
    return [*headers, "OpenVINO off by"], rows


def _quantized(name: str, activations: str) -> Model:
    floats = light_model(name) if name.startswith("light_") else zoo.build(name)
    made = quantized(floats, activations=activations)
    return load_model(made.SerializeToString(), name=f"{name}-{activations}", batch_size=1)


def _steps_off(model: Model, *, openvino: bool) -> dict[str, float]:
    """Largest differences from onnxruntime's results, in quantization steps."""
    inputs = random_inputs(model.graph.inputs)
    with Reference(model) as reference:
        expected = reference.run(inputs)
    step = {name: _step(array) for name, array in expected.items()}
    with CpuBackend(model) as backend:
        found = {"sequential": _outputs(backend.compile(sequential(backend.graph)), inputs)}
    if openvino:
        found["openvino"] = _outputs(OpenvinoModel(model, cpu_count()), inputs)
    return {who: _off(outputs, expected, step) for who, outputs in found.items()}


def _outputs(opened: Runnable, inputs: Arrays) -> Arrays:
    with closing(opened):
        return opened.run(inputs)


def _step(array: np.ndarray) -> float:
    """The smallest distance between two numbers of a tensor: its quantization step."""
    return float(np.diff(np.unique(array)).min(initial=np.inf))


def _off(found: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray], step: Mapping[str, float]) -> float:
    return round(max(float(np.abs(found[name] - expected[name]).max()) / step[name] for name in expected), 2)


if __name__ == "__main__":
    main()
