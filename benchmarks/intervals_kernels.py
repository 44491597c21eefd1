"""How far kernels lie from the analytic model: what those of a kind share on a GPU, and what is each one's own.

The logarithm of measured over predicted latencies is taken as the sum of an offset, which kernels of a kind share in
one series of measurements (a GPU and a library), and a part of each kernel's own. Short kernels are those of DeepBench,
to which nothing was fitted. Longer ones were, on three GPUs, so that they are predicted in two ways: as they are, and
each of the three by constants that are fitted to the other two, without its clock and bandwidth. The Titan Xp is
predicted as it is, since no fit has used it. Half precision was measured on the T4 alone: how much farther kernels lie
off there is a factor for all that runs on tensor cores.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from kernels import RESTED_US, TRUSTED_US, Floats, Predicted, family, predict, was_unseen
from kernels_fit import GPUS, bandwidths, fit, for_fit
from measured import Row
from numpy.typing import NDArray

from iosched.profiler.devices.analytic.uncertainty import NORMAL, SHORT_US, Share, Spread, deviation

STUDENT = {1: 6.314, 2: 2.920, 3: 2.353, 4: 2.132, 5: 2.015, 6: 1.943}  # two-sided 90 %, by degrees of freedom
LEAST = 5  # kernels of a series, below which their offset is not known
SUMS, TERMS, SEED = 400, 30, 0  # sums that are drawn from each series, and kernels in each


@dataclass(frozen=True)
class Series:
    """Kernels of one kind on one GPU by one library: logarithms of measured over predicted, and latencies."""

    kind: str
    name: str
    off: Floats
    predicted_us: Floats


def short(rows: Sequence[Row]) -> Predicted:
    """Kernels that the model says are short, as measured by DeepBench."""
    found = predict([row for row in rows if row.source == "deepbench" and row.precision == "fp32"])
    return _kept(found, found.predicted_us < SHORT_US)


def seen(rows: Sequence[Row]) -> Predicted:
    """Longer kernels of GPUs that were fitted to, of shapes that were not."""
    return _long(predict([row for row in _unseen(rows) if row.gpu in GPUS]))


def specified(rows: Sequence[Row]) -> Predicted:
    """Longer kernels of every GPU, predicted as if only its specification were known."""
    known, test = bandwidths(for_fit(rows)), _unseen(rows)
    found = [predict([row for row in test if row.gpu not in GPUS])]
    for gpu in GPUS:
        others = fit(rows, [other for other in GPUS if other != gpu], known)
        rested = {**RESTED_US, "neusight": others.rested_us}
        found.append(predict([row for row in test if row.gpu == gpu], others.constants, {}, rested))
    latencies_us = np.concatenate([part.predicted_us for part in found])
    return _long(Predicted([row for part in found for row in part.rows], latencies_us))


def half_precision(rows: Sequence[Row]) -> float:
    """How many times farther off kernels lie on the T4's tensor cores than on its others, root mean square."""
    deepbench = [row for row in rows if row.source == "deepbench" and row.gpu == "t4" and was_unseen(row)]
    half, single = (predict([row for row in deepbench if row.precision == name]) for name in ("fp16", "fp32"))
    return _rms(_off(half)) / _rms(_off(single))


def series(found: Predicted) -> list[Series]:
    """The rows by kind and series, without series of a handful."""
    at = defaultdict(list)
    for index, row in enumerate(found.rows):
        at[family(row), f"{row.gpu}, {row.source}"].append(index)
    off = _off(found)
    return [
        Series(kind, name, off[chosen], found.predicted_us[chosen])
        for (kind, name), chosen in sorted(at.items())
        if len(chosen) >= LEAST
    ]


def kernel_spreads(known: Sequence[Series]) -> dict[str, Spread]:
    """By kind."""
    kinds = sorted({each.kind for each in known})
    return {kind: spread([each for each in known if each.kind == kind]) for kind in kinds}


def spread(known: Sequence[Series]) -> Spread:
    """What kernels of one kind share in a series, around zero, and what is their own."""
    offsets = np.array([each.off.mean() for each in known])
    own = np.concatenate([each.off - each.off.mean() for each in known])
    return Spread(widened(_rms(offsets), len(known)), float(own.std()))


def widened(value: float, n: int) -> float:
    """A standard deviation around zero that is known from `n` values, for a normal interval that allows for that."""
    return value * STUDENT[n] / NORMAL


def series_covered(known: Sequence[Series]) -> dict[str, dict[str, float]]:
    """The part of kernels, and of sums of thirty, in intervals that are made from the other series of the kind."""
    record = {}
    for each in known:
        others = [other for other in known if other.kind == each.kind and other is not each]
        if others:
            record[f"{each.kind}, {each.name}"] = covered(each, spread(others))
    return record


def covered(part: Series, found: Spread) -> dict[str, float]:
    """The part of kernels, and of sums of thirty, in intervals by these spreads."""
    single = np.abs(part.off) <= NORMAL * deviation([Share("product", found, 1.0)])
    rng, hits = np.random.default_rng(SEED), []
    measured_us = part.predicted_us * np.exp(part.off)
    for _ in range(SUMS):
        chosen, counts = np.unique(rng.choice(len(part.off), TERMS), return_counts=True)
        weights = part.predicted_us[chosen] * counts
        shares = [Share("product", found, float(weight)) for weight in weights / weights.sum()]
        off = np.log(measured_us[chosen] @ counts / weights.sum())
        hits.append(abs(off) <= NORMAL * deviation(shares))
    return {"kernels": len(part.off), "single": round(float(single.mean()), 2), "sums": round(float(np.mean(hits)), 2)}


def _unseen(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if was_unseen(row) and row.precision == "fp32"]


def _long(found: Predicted) -> Predicted:
    """Kernels that the model says are not short, without those of NeuSight's that are blurred by launches."""
    least_us = np.array([SHORT_US if row.source == "deepbench" else TRUSTED_US for row in found.rows])
    return _kept(found, (found.measured_us > 0) & (found.predicted_us >= least_us))


def _kept(found: Predicted, mask: NDArray[np.bool_]) -> Predicted:
    return Predicted([found.rows[index] for index in np.flatnonzero(mask)], found.predicted_us[mask])


def _off(found: Predicted) -> Floats:
    off: Floats = np.log(found.measured_us / found.predicted_us)
    return off


def _rms(values: Floats) -> float:
    return float(np.sqrt((values**2).mean()))
