"""The constants of the analytic model, fitted to published latencies by `benchmarks/analytic.py`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Calibration:
    """The same for all GPUs; what tells GPUs apart is their specification.

    Attributes:
        kernel_us: what a kernel takes beside its work: its launch and its end.
        issue_us: several streams together start a kernel no more often than this.
        fork_us: what a stage of several groups takes for each of them: events between the streams.
        utilisation: the part of peak arithmetic and of peak bandwidth that a large kernel attains (set, not fitted).
        step_cycles: clocks that a matrix product needs for each step along its inner dimension, however few results
            it makes: a thread block waits for what it loads.
        window: the part of the CUDA cores' peak that depthwise convolutions and poolings attain.
        interference: the part of the other groups' work that does not hide in what the longest group leaves idle.
    """

    kernel_us: float
    issue_us: float
    fork_us: float
    utilisation: float
    step_cycles: float
    window: float
    interference: float


CALIBRATION = Calibration(
    kernel_us=7.68, issue_us=12.9, fork_us=7.64, utilisation=0.9, step_cycles=85.5, window=0.0178, interference=0.694
)
