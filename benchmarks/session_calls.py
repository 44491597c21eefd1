"""Overhead of a call of `iosched.InferenceSession` and of onnxruntime's session, with a model that takes no time.

    python benchmarks/session_calls.py [--output benchmarks/results/session_calls.json]

Both run the same file on one thread, interleaved; a sample is the median of the calls of a round. The model is one Relu
of 8 numbers, optimized as `iosched` would ship it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
from command_line import read_options
from cpu_models import model_of
from onnx import helper
from results_files import RESULTS, write_results

import iosched
from iosched.profiler.measuring.interleave import interleave
from iosched.runtime.processor import cpu_name
from iosched.runtime.session import load_onnxruntime
from iosched.scheduler.baselines import sequential

onnxruntime = load_onnxruntime()  # without its telemetry

CALLS = 500


def main() -> None:
    options = read_options(__file__, output=RESULTS / "session_calls.json", rounds=60)
    x = np.ones((1, 8), np.float32)
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = 1
    with TemporaryDirectory() as folder:
        path = Path(folder, "relu.iosched.onnx")
        write(path)
        sessions = {"iosched": iosched.InferenceSession, "onnxruntime": onnxruntime.InferenceSession}
        calls = {name: caller(kind(path, settings), {"x": x}, CALLS) for name, kind in sessions.items()}
        found = interleave(calls, options.rounds)
    samples_us = {name: each.samples_us for name, each in found.items()}
    write_results(options, {"calls_a_round": CALLS, "samples_us": samples_us}, seeds={})
    for name, each in found.items():
        print(f"{name:12} {each.median_us:6.1f} us a call ({each.low_us:.1f} to {each.high_us:.1f})")


def write(path: Path) -> None:
    """One Relu, with the schedule that `optimize` would have found: there is only one."""
    node = helper.make_node("Relu", ["x"], ["y"])
    model = iosched.load_model(model_of([node], ["x"], ["y"], (1, 8)))
    about = (model.name, model.digest, model.bindings, "float32", {"kind": "cpu", "name": cpu_name()})
    document = iosched.ScheduleDocument(*about, sequential(model.graph))
    onnx.save(iosched.annotated(model, document), path)


def caller(session: Any, inputs: Mapping[str, np.ndarray], count: int) -> Callable[[], float]:
    """A function that calls the session n times, and returns the microseconds of the median call."""

    def call() -> float:
        times_us = []
        for _ in range(count):
            began = time.perf_counter_ns()
            session.run(None, inputs)
            times_us.append((time.perf_counter_ns() - began) / 1e3)
        return median(times_us)

    return call


if __name__ == "__main__":
    main()
