"""The constants of stages in the analytic model, fitted to published latencies by `benchmarks/analytic.py`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Calibration:
    """Constants that are the same for all GPUs; only the specifications of GPUs differ.

    Attributes:
        kernel_us: what the host's launch adds to a kernel.
        issue_us: the least time between the starts of two kernels, even if they are on different streams.
        fork_us: the time that each group of a stage with several groups adds, for events between the streams.
        tuned: the part of what a product or a convolution takes beyond its arithmetic at the peak that is left where
            the fastest kernel is found by timing, as the published runtime and ours do, and not guessed by the library.
        window: the part of the CUDA cores' peak that depthwise convolutions attain.
        interference: the part of the other groups' work that prolongs the longest group, because it does not fit into
            what that group leaves idle.
    """

    kernel_us: float
    issue_us: float
    fork_us: float
    tuned: float
    window: float
    interference: float


CALIBRATION = Calibration(kernel_us=6.42, issue_us=5.6, fork_us=7.79, tuned=0.816, window=0.0247, interference=1.0)
