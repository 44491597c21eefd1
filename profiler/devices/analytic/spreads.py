"""How far kernels, launches and stages lie from the analytic model, as `benchmarks/intervals.py` finds it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import log
from types import MappingProxyType

from iosched.profiler.devices.analytic.calibration import LEAST_NODE_US, MOST_NODE_US
from iosched.profiler.devices.analytic.constants import Known
from iosched.profiler.devices.analytic.interval import NORMAL, Spread
from iosched.profiler.devices.analytic.kernels import Kind
from iosched.profiler.devices.launch import LaunchName

SHORT_US = 100.0
"""Kernels below were used in no fit of kernels, since those of NeuSight are blurred there by launches."""
NODE_SPREAD = log(MOST_NODE_US / LEAST_NODE_US) / (2 * NORMAL)
"""Of a node of a CUDA graph, if what is published of one is where 90 % would lie."""


@dataclass(frozen=True)
class Spreads:
    """Standard deviations of logarithms of measured over predicted times.

    Attributes:
        short: of kernels below `SHORT_US`, by kind.
        short_by_networks: the shared part of `short` on the GPU that the constants of stages were fitted to.
        seen: of longer kernels by kind, on GPUs whose kernels were fitted to.
        specified: the same on GPUs of which only the specification is known.
        tensor_cores: how many times farther kernels lie off on tensor cores, which were measured on one GPU.
        launches: of what launches and forks take, all at once, one by one or by a CUDA graph.
        side_by_side: the own part of stages of several groups.
        gains: of the logarithm of how much faster such stages are than their groups one after another, all at once.
    """

    short: Mapping[str, Spread]
    short_by_networks: float
    seen: Mapping[str, Spread]
    specified: Mapping[str, Spread]
    tensor_cores: float
    launches: Mapping[LaunchName, float]
    side_by_side: float
    gains: float

    def of_kernel(self, kind: Kind, size_us: float, known: Known, *, tensor_cores: bool = False) -> Spread:
        """How well kernels of this kind are known that the model says take `size_us` without their launch.

        What nobody measured counts as well known as a convolution of the same size: depthwise convolutions, and short
        elementwise operators and poolings.
        """
        if size_us < SHORT_US:
            found = _of(kind, self.short)
            found = Spread(self.short_by_networks, found.own) if known == "networks" else found
        else:
            found = _of(kind, self.specified if known == "specification" else self.seen)
        factor = self.tensor_cores if tensor_cores else 1.0
        return Spread(found.shared * factor, found.own * factor)

    def of_launches(self, launch: LaunchName, known: Known) -> Spread:
        """How well launches are known; those of the networks that were fitted to count in `short_by_networks`."""
        is_fitted = known == "networks" and launch == "streams"
        return Spread(0.0 if is_fitted else self.launches[launch], 0.0)

    def of_gains(self, known: Known) -> Spread:
        """How well gains are known as a whole; those of the networks that were fitted to count in `side_by_side`."""
        return Spread(0.0 if known == "networks" else self.gains, 0.0)


def _of(kind: Kind, spreads: Mapping[str, Spread]) -> Spread:
    return spreads.get(kind, spreads["convolution"])


SPREADS = Spreads(
    short=MappingProxyType({"convolution": Spread(0.296, 0.178), "product": Spread(0.284, 0.295)}),
    short_by_networks=0.09,
    seen=MappingProxyType(
        {
            "convolution": Spread(0.025, 0.141),
            "elementwise": Spread(0.028, 0.017),
            "product": Spread(0.082, 0.16),
        }
    ),
    specified=MappingProxyType(
        {
            "convolution": Spread(0.099, 0.167),
            "elementwise": Spread(0.144, 0.016),
            "product": Spread(0.142, 0.204),
        }
    ),
    tensor_cores=1.368,
    launches=MappingProxyType({"graph": NODE_SPREAD, "streams": 0.301}),
    side_by_side=0.236,
    gains=0.81,
)
"""As they were found; see `benchmarks/reports/analytic-evidence.md`."""
