"""How much of a device the stages of a schedule use: FLOP/s, the share of the peak, and the share of the SMs' time.

The IOS papers show these numbers for stages (figures 1.2 and 4.3 of the thesis). A multiplication and an addition count
as two operations, as in figure 1.2. Zeros that merging pads kernels with are not part of the model, and do not count.
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
    """How much some stages compute, and how fast.

    Attributes:
        flops: operations of the stages' operators; a multiplication and an addition count as two.
        latency_us: the sum of the stages' latencies; None if one of them is not known.
        peak_tflops: the peak of the device by its specification; None if that is not known, as for CPUs.
        busy_us: for how long the work would fill all SMs, by the analytic model; None if latencies are
            measured, be it in part.
    """

    flops: int
    latency_us: float | None
    peak_tflops: float | None = None
    busy_us: float | None = None

    @property
    def tflops(self) -> float | None:
        """Speed in 10^12 operations a second; None if the latency is not known."""
        return self.flops / self.latency_us / 1e6 if self.latency_us else None

    @property
    def share_of_peak(self) -> float | None:
        """The speed over the device's peak; None if the peak or the latency is not known."""
        return self.tflops / self.peak_tflops if self.tflops is not None and self.peak_tflops else None

    @property
    def sm_share(self) -> float | None:
        """The part of the SMs' time that is filled with work, from 0 to 1; None if latencies are measured."""
        return self.busy_us / self.latency_us if self.busy_us is not None and self.latency_us else None


@dataclass(frozen=True, eq=False)
class Throughputs:
    """Computes the throughput of stages of `graph` on one device.

    Attributes:
        graph: the graph whose nodes the stages name: the model's operators, or the CPU's units.
        peak_tflops: the peak of the device; None if it is not known.
        busy_us: returns for how long the work of a stage would fill all SMs; None if latencies are measured.
    """

    graph: ComputationGraph
    peak_tflops: float | None = None
    busy_us: Callable[[Stage], float] | None = None

    @property
    def measured(self) -> Throughputs:
        """The same where latencies are measured, be it in part: the SMs' time is known beside the model's own alone."""
        return replace(self, busy_us=None)

    def of(self, stages: Iterable[Stage]) -> Throughput:
        """The throughput of `stages` that run one after another, with the latencies that are written in the stages.

        Raises:
            KeyError: a stage names an operator that the graph does not have.
        """
        run = list(stages)
        flops = sum(self.graph.by_name[name].flops for stage in run for name in stage.operators)
        busy_us = None if self.busy_us is None else sum(map(self.busy_us, run))
        return Throughput(flops, total_us(run), self.peak_tflops, busy_us)


def gpu_throughputs(graph: ComputationGraph, device_name: str, precision: str) -> Throughputs:
    """The throughputs of stages that were measured on the GPU that its driver calls `device_name`.

    If the GPU or the precision is not known, they have no peak to be compared with.
    """
    gpu, known = spec_of(device_name), next((name for name in PRECISIONS if name == precision), None)
    return Throughputs(graph) if gpu is None or known is None else Throughputs(graph, gpu.peak_tflops(known))


def idle_share(latency_us: float | None, busy_us: Iterable[float | None], lanes: int) -> float | None:
    """1 - (sum of `busy_us`) / (`lanes` * `latency_us`), from 0 to 1; None where a number is missing or not finite.

    Args:
        latency_us: of the stage.
        busy_us: how long lanes are busy, in any number of parts.
        lanes: how many the stage has.
    """
    total_us = sum_us(busy_us)
    if not latency_us or total_us is None or not math.isfinite(latency_us):
        return None
    return min(max(1 - total_us / (lanes * latency_us), 0.0), 1.0)


def idle_streams(stage: Stage, latency_us: Callable[[Stage], float | None]) -> float | None:
    """The idle share of a GPU's streams, of which each group has one that is busy for as long as the group takes alone.

    Args:
        stage: None is returned for one that is not concurrent.
        latency_us: returns a stage's latency in microseconds; None where it is not known.
    """
    if stage.strategy is not Strategy.CONCURRENT:
        return None
    alone_us = (latency_us(replace(stage, groups=(group,), division=None)) for group in stage.groups)
    return idle_share(latency_us(stage), alone_us, len(stage.groups))
