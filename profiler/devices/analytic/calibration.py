"""The constants of stages in the analytic model, where kernels are launched one by one and where by a CUDA graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from iosched.profiler.devices.launch import LaunchName


@dataclass(frozen=True)
class Calibration:
    """Constants that are the same for all GPUs; only the specifications of GPUs differ.

    Attributes:
        kernel_us: what the launch adds to a kernel.
        issue_us: the least time between the starts of two kernels, even if they are on different streams.
        fork_us: the time that each group of a stage with several groups adds, for waits between streams, or between
            branches of a CUDA graph.
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
"""Of kernels launched one by one, fitted to published latencies by `benchmarks/analytic.py`."""

NODE_US, LEAST_NODE_US, MOST_NODE_US = 1.0, 0.5, 2.0
"""Microseconds for each node of a CUDA graph, and the range in which it is known; see reports/analytic-evidence.md."""


def in_graph(node_us: float) -> Calibration:
    """The constants of kernels that one CUDA graph launches, where each node takes `node_us` microseconds to start.

    A group of a stage is a branch of the graph, and waits once for the stage before it, as a kernel does for another.
    """
    return replace(CALIBRATION, kernel_us=node_us, issue_us=node_us, fork_us=node_us)


CALIBRATIONS: Mapping[LaunchName, Calibration] = MappingProxyType({"graph": in_graph(NODE_US), "streams": CALIBRATION})
