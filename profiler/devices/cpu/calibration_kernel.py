"""The calibration kernel: a fixed convolution, timed with each stage to correct for the machine's speed.

Clocks, neighbours on a shared host and heat change the speed of a machine by a quarter and more within minutes, which
is less than a search takes. The kernel's latency just before and after a batch of runs gives the speed at that time
(variation with and without it: benchmarks/yardstick.py). It is short, since preemption during a kernel of milliseconds
would look like a slower machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from iosched.models.load import load_model
from iosched.models.model import Model
from iosched.profiler.measuring.disturbance import FAR_OFF
from iosched.profiler.measuring.idle import wait_until_idle
from iosched.profiler.measuring.statistics import Measurement, quantile, summarize
from iosched.runtime.cpu.backend import CompiledStage, CpuBackend
from iosched.scheduler.schedule import Stage, Strategy

CHANNELS, ROWS_PER_LANE, COLUMNS = 64, 9, 18  # 12 million operations for each lane: about 0.2 ms on all of them
KERNEL_RUNS = 5
REFERENCE_GROUPS = 15
WAKING_RUNS = 10  # after a rest: threads sleep, and clocks are low

CALIBRATION = 2
"""Raised whenever the kernel or its reference changes, since latencies then do not compare."""

RunBatch = Callable[[int], Sequence[float]]


def corrected(
    run_batch: RunBatch,
    kernel: RunBatch,
    reference_us: Callable[[], float],
    noted: Callable[[float], None] = lambda slowness: None,
) -> RunBatch:
    """A function that runs `run_batch` and corrects its latencies to the machine's reference speed.

    Args:
        run_batch, kernel: run the stage or the calibration kernel, and return microseconds.
        reference_us: returns the kernel's latency at the reference speed; called only when something runs.
        noted: receives each time the kernel's latency over the reference.
    """
    before: Sequence[float] = ()

    def run(count: int) -> Sequence[float]:
        nonlocal before
        before = before or _noted(kernel_runs(kernel), reference_us(), noted)
        samples = run_batch(count)
        after = _noted(kernel_runs(kernel), reference_us(), noted)
        # A preempted kernel takes up to 200 times as long, on a machine that is no slower.
        speed = max(reference_us() / quantile([*before, *after], 0.5), 1 / FAR_OFF)
        before = after
        return [sample * speed for sample in samples]

    return run


def _noted(runs_us: Sequence[float], reference_us: float, noted: Callable[[float], None]) -> Sequence[float]:
    noted(quantile(runs_us, 0.5) / reference_us)
    return runs_us


def kernel_runs(kernel: RunBatch) -> Sequence[float]:
    """Latencies of a few runs, after one that finds the caches full."""
    return kernel(1 + KERNEL_RUNS)[1:]


def slowness_now(kernel: RunBatch, reference_us: float) -> float:
    """The kernel's present latency over its reference, on a machine that is awake."""
    kernel(WAKING_RUNS)
    return quantile(kernel_runs(kernel), 0.5) / reference_us


def compile_calibration_kernel(backend: CpuBackend) -> CompiledStage:
    """Compiles the calibration kernel for all lanes of `backend`, on its executor and threads."""
    own = CpuBackend(_convolution(backend.lanes), sharing=backend)
    stage = own.compile_stage(Stage(Strategy.CONCURRENT, ((own.graph.operators[0].name,),)))
    assert stage is not None  # only a merge can be refused
    return stage


def measure_reference(kernel: RunBatch, rest: Callable[[], None] = wait_until_idle) -> Measurement:
    """Measures the kernel's reference latency, in groups of runs over a second and more.

    All groups count, as do all runs of a whole model: with the faster half alone, sums of stages were too low.
    """
    medians = []
    for _ in range(REFERENCE_GROUPS):
        rest()
        medians.append(slowness_now(kernel, 1.0))
    return summarize(medians)


def _convolution(lanes: int) -> Model:
    values = np.random.default_rng(0).standard_normal((CHANNELS, CHANNELS, 3, 3)).astype(np.float32)
    shape = [1, CHANNELS, ROWS_PER_LANE * lanes, COLUMNS]
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"], pads=[1] * 4)],
        "calibration",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(values / np.sqrt(CHANNELS * 9, dtype=np.float32), "w")],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return load_model(proto.SerializeToString(), name="calibration")
