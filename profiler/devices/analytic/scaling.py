"""By what computed latencies are multiplied where some operators were measured on the same GPU.

Between a GPU and the model there is what concerns all kernels (its clock, its library), what concerns a kind of kernel,
and what is each kernel's own. The first two are estimated by medians of the logarithms of measured over computed
latencies, which a few wild values do not move. A few kernels say little, so a median of n counts by n / (n + `PRIOR`);
the rest is what was thought before: of a kind that it is as the GPU, of the GPU that it is as the model. With means for
medians this is the estimate of least squared error where the own variance of kernels is `PRIOR` times that of
what kernels share (B. Efron, C. Morris, Stein's estimation rule and its competitors, JASA 68, 1973).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import exp, log
from statistics import median

from iosched.profiler.devices.analytic.kernels import Kind

PRIOR = 2.0
"""How many measured kernels weigh as much as the model: `benchmarks/scaling.py` says what others would do."""


@dataclass(frozen=True)
class Ratio:
    """How far a measured operator lies from the model.

    Attributes:
        kind: of its longest kernel; None where it has none.
        factor: measured over computed latency, above 0 and finite.
    """

    kind: Kind | None
    factor: float


@dataclass(frozen=True)
class Scaling:
    """Factors for operators that were not measured.

    Attributes:
        factor: for those of kinds that were not measured.
        by_kind: for those of kinds that were.
    """

    factor: float
    by_kind: Mapping[Kind | None, float]

    def of(self, kind: Kind | None) -> float:
        """The factor for an operator of this kind."""
        return self.by_kind.get(kind, self.factor)


def scaling(ratios: Iterable[Ratio], prior: float = PRIOR) -> Scaling:
    """The factors by what was measured; all are 1 where nothing was, and then exactly; O(n log n).

    Args:
        prior: see `PRIOR`; with 0, medians count in full.
    """
    logs: dict[Kind | None, list[float]] = {}
    for ratio in ratios:
        logs.setdefault(ratio.kind, []).append(log(ratio.factor))
    whole = _estimate([value for values in logs.values() for value in values], 0.0, prior)
    return Scaling(exp(whole), {kind: exp(_estimate(values, whole, prior)) for kind, values in logs.items()})


def _estimate(logs: list[float], before: float, prior: float) -> float:
    return (len(logs) * median(logs) + prior * before) / (len(logs) + prior) if logs else before
