"""Whole-model candidates on a GPU: schedules, each in one CUDA graph, measured in turn on inputs that lie there."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from iosched.profiler.measuring.interleave import interleave
from iosched.profiler.measuring.statistics import Measurement
from iosched.profiler.peers.cuda import Once
from iosched.runtime.cuda.backend import CudaModel


def measure_in_turn(
    models: Mapping[str, CudaModel],
    inputs: Mapping[str, np.ndarray],
    rounds: int,
    observer: Callable[[int, int], None] | None = None,
) -> Mapping[str, Measurement]:
    """Latency of every model, sample k of each taken in round k; microseconds between events on the GPU.

    Raises:
        ExecutionError: a kernel fails, or the GPU is lost.
    """
    runs = {name: ready(model, inputs) for name, model in models.items()}
    return interleave(runs, rounds, observer=observer)


def ready(model: CudaModel, inputs: Mapping[str, np.ndarray]) -> Once:
    """The model with its inputs on the GPU, run once."""
    model.run(inputs)
    return lambda: model.executor.time_launches(1)[0]
