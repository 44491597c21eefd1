"""A yardstick: a convolution that is always the same, timed beside each stage to correct for the machine's speed.

Clocks, neighbours on a shared host and heat change the speed of a machine by a quarter and more within minutes. A stage
is measured in less time, but a search takes longer, so that latencies of its stages cannot be compared as they are. The
latency of the yardstick just before and after a batch of runs says how fast the machine was then. Over a minute on two
shared cores, correcting by it reduced the variation of a convolution's medians from 17 % to 6 %, but of a pooling's,
which waits for memory, only from 22 % to 16 % (benchmarks/yardstick.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from iosched.models.load import load_model
from iosched.models.model import Model
from iosched.profiler.measuring.idle import wait_until_idle
from iosched.profiler.measuring.statistics import Measurement, quantile, summarize
from iosched.runtime.cpu.backend import CompiledStage, CpuBackend
from iosched.scheduler.schedule import Stage, Strategy

CHANNELS, SIZE = 64, 56  # 231 million operations: a millisecond or two, as most stages, on all lanes
RUNS_BESIDE = 3
REFERENCE_GROUPS = 15

RunBatch = Callable[[int], Sequence[float]]


def corrected(
    run_batch: RunBatch,
    yardstick: RunBatch,
    reference_us: Callable[[], float],
    noted: Callable[[float], None] = lambda slowness: None,
) -> RunBatch:
    """Returns a function that runs `run_batch` and corrects its latencies to the machine's reference speed.

    Args:
        run_batch: runs the stage a number of times and returns the latency of each run in microseconds.
        yardstick: runs the yardstick a number of times and returns the latency of each run in microseconds.
        reference_us: returns the yardstick's latency at the reference speed; called only when something runs.
        noted: is told each time how many times the reference the yardstick took.
    """
    before: Sequence[float] = ()

    def run(count: int) -> Sequence[float]:
        nonlocal before
        before = before or _noted(yardstick(RUNS_BESIDE), reference_us(), noted)
        samples = run_batch(count)
        after = _noted(yardstick(RUNS_BESIDE), reference_us(), noted)
        speed = reference_us() / quantile([*before, *after], 0.5)
        before = after
        return [sample * speed for sample in samples]

    return run


def _noted(runs_us: Sequence[float], reference_us: float, noted: Callable[[float], None]) -> Sequence[float]:
    noted(quantile(runs_us, 0.5) / reference_us)
    return runs_us


def compile_yardstick(backend: CpuBackend) -> CompiledStage:
    """Compiles the yardstick for all lanes of `backend`, to run in its executor and on its threads."""
    own = CpuBackend(_convolution(), beside=backend)
    stage = own.compile_stage(Stage(Strategy.CONCURRENT, ((own.graph.operators[0].name,),)))
    assert stage is not None  # only a merge can be refused
    return stage


def measure_reference(yardstick: RunBatch, rest: Callable[[], None] = wait_until_idle) -> Measurement:
    """Measures the yardstick's latency when nothing disturbs the machine, to be kept as the reference.

    Groups of runs are spread over a second and more, and only the faster half of them counts: a disturbance makes the
    machine slower, hardly ever faster.
    """
    yardstick(RUNS_BESIDE)
    medians = []
    for _ in range(REFERENCE_GROUPS):
        rest()
        medians.append(quantile(yardstick(RUNS_BESIDE), 0.5))
    return summarize(sorted(medians)[: REFERENCE_GROUPS // 2])


def _convolution() -> Model:
    values = np.random.default_rng(0).standard_normal((CHANNELS, CHANNELS, 3, 3)).astype(np.float32)
    shape = [1, CHANNELS, SIZE, SIZE]
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"], pads=[1] * 4)],
        "yardstick",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(values / np.sqrt(CHANNELS * 9, dtype=np.float32), "w")],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return load_model(proto.SerializeToString(), name="yardstick")
