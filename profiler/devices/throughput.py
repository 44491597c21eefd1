"""Utilization of a device by stages: FLOP/s, the share of the peak, the busy share of the SMs, and idle lanes.

As in the IOS papers (figures 1.2 and 4.3 of the thesis), a multiplication and an addition are two operations. Zero
padding of merged kernels does not count.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from iosched.models.graph import ComputationGraph
from iosched.profiler.devices.gpus import spec_of
from iosched.scheduler.precision import PRECISIONS
from iosched.scheduler.schedule import Stage, Strategy, sum_us, total_us


@dataclass(frozen=True)
class Throughput:
    """Work and speed of some stages.

    Attributes:
        flops: operations; a multiplication and an addition are two.
        latency_us: sum of the stages; None if unknown.
        peak_tflops: of the device; None if unknown, as for CPUs.
        busy_us: time of the work on fully used SMs, by the analytic model; None if latencies are measured.
    """

    flops: int
    latency_us: float | None
    peak_tflops: float | None = None
    busy_us: float | None = None

    @property
    def tflops(self) -> float | None:
        """10^12 operations a second; None if the latency is unknown."""
        return self.flops / self.latency_us / 1e6 if self.latency_us else None

    @property
    def share_of_peak(self) -> float | None:
        """The speed over the device's peak; None if unknown."""
        return self.tflops / self.peak_tflops if self.tflops is not None and self.peak_tflops else None

    @property
    def sm_share(self) -> float | None:
        """The busy share of the SMs' time, from 0 to 1; None if latencies are measured."""
        return self.busy_us / self.latency_us if self.busy_us is not None and self.latency_us else None


@dataclass(frozen=True, eq=False)
class Throughputs:
    """Computes the throughput of stages of `graph` on one device; see `Throughput`."""

    graph: ComputationGraph
    peak_tflops: float | None = None
    busy_us: Callable[[Stage], float] | None = None

    @property
    def measured(self) -> Throughputs:
        """The same for measured latencies, without the busy share of the SMs."""
        return replace(self, busy_us=None)

    def of(self, stages: Iterable[Stage]) -> Throughput:
        """The throughput of consecutive stages, with the latencies that they carry; raises a KeyError for unknown
        operators.
        """
        run = list(stages)
        flops = sum(self.graph.by_name[name].flops for stage in run for name in stage.operators)
        busy_us = None if self.busy_us is None else sum(map(self.busy_us, run))
        return Throughput(flops, total_us(run), self.peak_tflops, busy_us)


def gpu_throughputs(graph: ComputationGraph, device_name: str, precision: str) -> Throughputs:
    """The throughputs of measured stages on the GPU of this driver's name, without a peak if it is unknown."""
    gpu, known = spec_of(device_name), next((name for name in PRECISIONS if name == precision), None)
    return Throughputs(graph) if gpu is None or known is None else Throughputs(graph, gpu.peak_tflops(known))


def idle_share(latency_us: float | None, busy_us: Iterable[float | None], lanes: int) -> float | None:
    """1 - (sum of `busy_us`) / (`lanes` * `latency_us`), from 0 to 1; None if a number is missing or infinite."""
    total_us = sum_us(busy_us)
    if not latency_us or total_us is None or not math.isfinite(latency_us):
        return None
    return min(max(1 - total_us / (lanes * latency_us), 0.0), 1.0)


def idle_streams(stage: Stage, latency_us: Callable[[Stage], float | None]) -> float | None:
    """The idle share of a GPU's streams, one for each group; None for stages that are not concurrent."""
    if stage.strategy is not Strategy.CONCURRENT:
        return None
    alone_us = (latency_us(replace(stage, groups=(group,), division=None)) for group in stage.groups)
    return idle_share(latency_us(stage), alone_us, len(stage.groups))
