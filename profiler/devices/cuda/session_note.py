"""A sentence that says which operators of a model have no CUDA kernel, and how long they take."""

from __future__ import annotations

from statistics import median

from iosched.runtime.cuda.backend import CudaModel
from iosched.runtime.cuda.onnxruntime.sessions import described

RUNS = 5


def session_notes(model: CudaModel) -> tuple[str, ...]:
    """A sentence on the operators that run in onnxruntime and their part of the latency; empty if there are none.

    Runs the model a few times on the inputs that already lie on the GPU.

    Raises:
        ExecutionError: a kernel fails on the GPU.
    """
    executor = model.executor
    if not executor.homes:
        return ()
    samples = [executor.time_sessions() for _ in range(RUNS)]
    within_us, total_us = (median(values) for values in zip(*samples, strict=True))
    text = described(model.lowering.sessions, executor.homes)
    cost = f"{within_us:.0f} of {total_us:.0f} µs ({within_us / total_us:.0%})"
    return (f"Outside of the CUDA graph run {text}: {cost}.",)
