"""Whole-model candidates on a GPU: schedules, each in one CUDA graph, measured in turn on inputs that lie there."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from iosched.profiler.interleave import interleave
from iosched.profiler.statistics import Measurement
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
    for model in models.values():
        model.run(inputs)
    return interleave({name: launched(model) for name, model in models.items()}, rounds, observer=observer)


def launched(model: CudaModel) -> Callable[[], float]:
    """What runs a model once on what lies on the GPU, and tells the microseconds."""
    return lambda: model.executor.time_launches(1)[0]
