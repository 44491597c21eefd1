"""What one call costs in `iosched.InferenceSession` and in onnxruntime's own session, where the model takes nothing.

    python benchmarks/session_calls.py [--output benchmarks/results/session_calls.json]

Both run the same file on one thread, in turn, round by round; a sample is the median of the calls of a round. The model
is one Relu of 8 numbers, optimized as `iosched` would ship it, so all that is measured is the way there and back.
"""

from __future__ import annotations

import time
from argparse import ArgumentParser
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np
import onnx
from onnx import TensorProto, helper
from testbed import keep_results

import iosched
from iosched.profiler.measuring.interleave import interleave
from iosched.runtime.processor import cpu_name
from iosched.runtime.session import load_onnxruntime
from iosched.scheduler.baselines import sequential

onnxruntime = load_onnxruntime()  # without its telemetry

CALLS = 500


def main() -> None:
    parser = ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/session_calls.json"))
    parser.add_argument("--rounds", type=int, default=60)
    options = parser.parse_args()
    x = np.ones((1, 8), np.float32)
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = 1
    with TemporaryDirectory() as folder:
        path = Path(folder, "relu.iosched.onnx")
        write(path)
        sessions = {"iosched": iosched.InferenceSession, "onnxruntime": onnxruntime.InferenceSession}
        calls = {name: caller(kind(path, settings), x) for name, kind in sessions.items()}
        found = interleave(calls, options.rounds)
    result = {
        "calls_a_round": CALLS,
        "samples_us": {name: each.samples_us for name, each in found.items()},
    }
    keep_results(options.output, result, seeds={})
    for name, each in found.items():
        print(f"{name:12} {each.median_us:6.1f} us a call ({each.low_us:.1f} to {each.high_us:.1f})")


def write(path: Path) -> None:
    """One Relu, with the schedule that `optimize` would have found: there is only one."""
    node = helper.make_node("Relu", ["x"], ["y"])
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 8]) for name in "xy"]
    graph = helper.make_graph([node], "relu", value[:1], value[1:])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    model = iosched.load_model(proto.SerializeToString())
    device = {"kind": "cpu", "name": cpu_name()}
    document = iosched.ScheduleDocument(
        *(model.name, model.digest, model.bindings, "float32", device), sequential(model.graph)
    )
    onnx.save(iosched.annotated(model, document), path)


def caller(session: onnxruntime.InferenceSession | iosched.InferenceSession, x: np.ndarray) -> Callable[[], float]:
    """A function that calls the session a number of times, and returns the microseconds of the median call."""

    def call() -> float:
        times_us = []
        for _ in range(CALLS):
            began = time.perf_counter_ns()
            session.run(None, {"x": x})
            times_us.append((time.perf_counter_ns() - began) / 1e3)
        return median(times_us)

    return call


if __name__ == "__main__":
    main()
