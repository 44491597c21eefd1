"""How much of a device a schedule's stages use: FLOP/s, the share of the peak, and the model's share of the SMs.

The IOS papers show this for stages (figures 1.2 and 4.3 of the thesis). A multiply and an add count as two, as in
figure 1.2; zeros that a merge pads kernels with are no work of the model's, and do not count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from iosched.models.graph import ComputationGraph
from iosched.profiler.devices.gpus import spec_of
from iosched.scheduler.precision import PRECISIONS
from iosched.scheduler.schedule import Stage, total_us


@dataclass(frozen=True)
class Throughput:
    """What some stages compute, and how fast.

    Attributes:
        flops: of their operators; a multiply and an add count as two.
        latency_us: of all of them; None where one is not known.
        peak_tflops: of the device, by its specification; None where that is not known, as for CPUs.
        busy_us: by the analytic model, for how long the work would fill all SMs; None where latencies are measured.
    """

    flops: int
    latency_us: float | None
    peak_tflops: float | None = None
    busy_us: float | None = None

    @property
    def tflops(self) -> float | None:
        """10^12 operations a second; None where the latency is not known."""
        return self.flops / self.latency_us / 1e6 if self.latency_us else None

    @property
    def share_of_peak(self) -> float | None:
        """Part of the device's peak; None where that or the latency is not known."""
        return self.tflops / self.peak_tflops if self.tflops is not None and self.peak_tflops else None

    @property
    def sm_share(self) -> float | None:
        """Part of the SMs' time that is filled with work, by the analytic model; from 0 to 1."""
        return self.busy_us / self.latency_us if self.busy_us is not None and self.latency_us else None


@dataclass(frozen=True, eq=False)
class Throughputs:
    """Says the throughput of stages of `graph` on one device.

    Attributes:
        graph: whose operators the stages name: the model's, or the CPU's units.
        peak_tflops: of the device; None where not known.
        busy_us: by a model of the device, for how long a stage's work would fill all SMs; None where it is measured.
    """

    graph: ComputationGraph
    peak_tflops: float | None = None
    busy_us: Callable[[Stage], float] | None = None

    def of(self, stages: Iterable[Stage]) -> Throughput:
        """The throughput of `stages`, run one after another; latencies are those that the stages carry.

        Raises:
            KeyError: a stage names an operator that the graph does not have.
        """
        run = list(stages)
        flops = sum(self.graph.by_name[name].flops for stage in run for name in stage.operators)
        busy_us = None if self.busy_us is None else sum(map(self.busy_us, run))
        return Throughput(flops, total_us(run), self.peak_tflops, busy_us)


def gpu_throughputs(graph: ComputationGraph, device_name: str, precision: str) -> Throughputs:
    """For stages measured on a GPU, by the name that its driver gives; of one that is not known, only the speed."""
    gpu, known = spec_of(device_name), next((name for name in PRECISIONS if name == precision), None)
    return Throughputs(graph) if gpu is None or known is None else Throughputs(graph, gpu.peak_tflops(known))
