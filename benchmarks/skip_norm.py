"""A sum and its normalization as one kernel of onnxruntime, and as one kernel each.

    python benchmarks/skip_norm.py       # a minute; writes results/skip_norm.json

onnxruntime makes one node of both when it loads a transformer; `runtime/cpu/rewrite/skip_norm.py` splits it. Both run
on one thread, interleaved; a sample is the median of the calls of a round.
"""

from __future__ import annotations

import numpy as np
import onnx
from command_line import read_options
from cpu_models import model_of
from onnx import helper
from result_tables import ratio_text
from results_files import RESULTS, keep_results
from session_calls import caller

from iosched.profiler.measuring.interleave import compare, interleave
from iosched.runtime.session import load_onnxruntime

onnxruntime = load_onnxruntime()  # without its telemetry

OUT = RESULTS / "skip_norm.json"
SHAPES = ((1, 32, 256), (1, 128, 256), (1, 128, 768), (1, 512, 768))
JOINED, APART = "one kernel", "two kernels"
CALLS = 30
SEED = 0


def main() -> None:
    options = read_options(__file__, rounds=40)
    cases = {"x".join(map(str, shape)): measure(shape, options.rounds) for shape in SHAPES}
    content = {"calls_a_round": CALLS, "samples_us": cases}
    keep_results(OUT, content, seeds={"inputs": SEED}, rivals=["onnxruntime"])


def measure(shape: tuple[int, ...], rounds: int) -> dict[str, list[float]]:
    random = np.random.default_rng(SEED)
    inputs = {name: random.standard_normal(shape, np.float32) for name in ("x", "skip")}
    sessions = {way: session(nodes, shape) for way, nodes in ways().items()}
    joined, apart = (sessions[way].run(None, inputs)[0] for way in (JOINED, APART))
    np.testing.assert_allclose(apart, joined, rtol=1e-4, atol=1e-4)
    found = interleave({way: caller(each, inputs, CALLS) for way, each in sessions.items()}, rounds)
    medians = ", ".join(f"{way} {each.median_us:.0f} us" for way, each in found.items())
    print(f"{shape}: {medians}: {ratio_text(compare(found[JOINED], found[APART]))} times as fast")
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
    """A session of these nodes on one thread, without optimizations, which would fuse them."""
    weights = [onnx.numpy_helper.from_array(np.ones(shape[-1:], np.float32), name) for name in ("scale", "bias")]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model_of(nodes, ["x", "skip"], ["y"], shape, weights), options)


if __name__ == "__main__":
    main()
