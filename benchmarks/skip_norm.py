"""A sum and its normalization as onnxruntime's one kernel for both, and as its two kernels for each.

    python benchmarks/skip_norm.py       # a minute; writes results/skip_norm.json

onnxruntime makes one node of both where it loads a transformer; `runtime/cpu/rewrite/skip_norm.py` takes it apart. Both
run on one thread, in turn, round by round; a sample is the median of the calls of a round.
"""

from __future__ import annotations

import time
from argparse import ArgumentParser
from collections.abc import Callable, Mapping
from statistics import median

import numpy as np
import onnx
from onnx import TensorProto, helper
from testbed import RESULTS, keep_results

from iosched.profiler.measuring.interleave import compare, interleave
from iosched.runtime.session import load_onnxruntime

onnxruntime = load_onnxruntime()  # without its telemetry

OUT = RESULTS / "skip_norm.json"
SHAPES = ((1, 32, 256), (1, 128, 256), (1, 128, 768), (1, 512, 768))
JOINED, APART = "one kernel", "two kernels"
CALLS = 30
SEED = 0


def main() -> None:
    parser = ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=40)
    options = parser.parse_args()
    cases = {"x".join(map(str, shape)): measure(shape, options.rounds) for shape in SHAPES}
    content = {"calls_a_round": CALLS, "samples_us": cases}
    keep_results(OUT, content, seeds={"inputs": SEED}, rivals=["onnxruntime"])


def measure(shape: tuple[int, ...], rounds: int) -> dict[str, list[float]]:
    random = np.random.default_rng(SEED)
    inputs = {name: random.standard_normal(shape, np.float32) for name in ("x", "skip")}
    sessions = {way: session(nodes, shape) for way, nodes in ways().items()}
    joined, apart = (sessions[way].run(None, inputs)[0] for way in (JOINED, APART))
    np.testing.assert_allclose(apart, joined, rtol=1e-4, atol=1e-4)
    found = interleave({way: caller(each, inputs) for way, each in sessions.items()}, rounds)
    gain = compare(found[JOINED], found[APART])
    assert gain is not None
    medians = ", ".join(f"{way} {each.median_us:.0f} us" for way, each in found.items())
    print(f"{shape}: {medians}: {gain.value:.2f} times as fast ({gain.low:.2f} to {gain.high:.2f})")
    return {way: list(each.samples_us) for way, each in found.items()}


def ways() -> dict[str, list[onnx.NodeProto]]:
    parameters = ["scale", "bias"]
    joined = helper.make_node(
        "SkipLayerNormalization", ["x", "skip", *parameters], ["y"], domain="com.microsoft", epsilon=1e-5
    )
    apart = [
        helper.make_node("Add", ["x", "skip"], ["sum"]),
        helper.make_node("LayerNormalization", ["sum", *parameters], ["y"], epsilon=1e-5),
    ]
    return {JOINED: [joined], APART: apart}


def session(nodes: list[onnx.NodeProto], shape: tuple[int, ...]) -> onnxruntime.InferenceSession:
    """A session of these nodes on one thread, without optimizations, which would make them one."""
    given = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("x", "skip")]
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)
    weights = [onnx.numpy_helper.from_array(np.ones(shape[-1:], np.float32), name) for name in ("scale", "bias")]
    graph = helper.make_graph(nodes, "norm", given, [result], weights)
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    model = helper.make_model(graph, opset_imports=imports, ir_version=8)
    return onnxruntime.InferenceSession(model.SerializeToString(), options)


def caller(kernels: onnxruntime.InferenceSession, inputs: Mapping[str, np.ndarray]) -> Callable[[], float]:
    """A function that calls the session a number of times, and returns the microseconds of the median call."""

    def call() -> float:
        times_us = []
        for _ in range(CALLS):
            began = time.perf_counter_ns()
            kernels.run(None, inputs)
            times_us.append((time.perf_counter_ns() - began) / 1e3)
        return median(times_us)

    return call


if __name__ == "__main__":
    main()
