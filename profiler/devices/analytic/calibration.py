"""The constants of the analytic model, fitted to published latencies by `benchmarks/analytic.py`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Calibration:
    """Constants that are the same for all GPUs; only the specifications of GPUs differ.

    Attributes:
        kernel_us: the time of a kernel beside its work: its launch and its end.
        issue_us: the least time between the starts of two kernels, even if they are on different streams.
        fork_us: the time that each group of a stage with several groups adds, for events between the streams.
        utilisation: the part of peak arithmetic and of peak bandwidth that a large kernel attains (chosen, not fitted).
        step_cycles: clock cycles that a matrix product needs for each step along its inner dimension, however few
            results it has, because a thread block waits for the values that it loads.
        window: the part of the CUDA cores' peak that depthwise convolutions and poolings attain.
        interference: the part of the other groups' work that prolongs the longest group, because it does not fit into
            what that group leaves idle.
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
