"""Predicts a GPU's kernels from a few measured kernels of it; see reports/analytic-evidence.md.

Run as `python benchmarks/scaling.py --data FOLDER [-o FILE.json]`; it takes a minute and measures nothing. The folder
is that of `kernels.py`. From the kernels that others measured on a GPU, some are drawn as those of a network. A few of
these, drawn again, are known, and the model predicts the others, scaled by the known ones in several ways. The results
are the mean absolute logarithm of measured over predicted latencies, and that of their mean.

Options:
    --data: folder with the measurements
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from command_line import read_options
from kernels import TRUSTED_US, Floats, Predicted, predict, was_unseen
from measured import Row, read
from results_files import write_results

from iosched.profiler.devices.analytic.kernels import KernelKind, kind_of
from iosched.profiler.devices.analytic.scaled import PRIOR, MeasuredFactor, scaling

KERNELS, GIVEN, NETWORKS, SEED = 40, (1, 3, 6, 12, 24), 60, 0
FORMER = {"convolution": 0.83, "product": 0.45}  # of an earlier model on the T4, fitted to networks alone


@dataclass(frozen=True)
class Way:
    """One way to scale: the number of kernels that weigh as much as the model, and whether factors are per kind."""

    prior: float
    by_kind: bool

    def logs(self, kinds: Sequence[KernelKind], given: Floats, others: Sequence[KernelKind]) -> Floats:
        """The logarithms of the factors of other kernels, from the known ones."""
        names = kinds if self.by_kind else [None] * len(kinds)
        pairs = zip(names, np.exp(given).tolist(), strict=True)
        found = scaling([MeasuredFactor(kind, factor) for kind, factor in pairs], self.prior)
        return np.log([found.of(kind) if self.by_kind else found.factor for kind in others])


WAYS: Mapping[str, Way] = {
    "not scaled": Way(1e12, by_kind=False),
    "median": Way(0.0, by_kind=False),
    "median of the kind": Way(0.0, by_kind=True),
    f"prior {PRIOR:g}": Way(PRIOR, by_kind=False),
    **{f"prior {prior:g}, by kind": Way(prior, by_kind=True) for prior in sorted({1.0, PRIOR, 4.0})},
}


@dataclass(frozen=True)
class Series:
    """Kernels of one GPU, library and precision: kinds, and logarithms of measured over predicted latencies."""

    kinds: Sequence[KernelKind]
    off: Floats

    @cached_property
    def rarity(self) -> Floats:
        """Number of kernels of its kind: rare kinds are drawn as often as others."""
        counts = Counter(self.kinds)
        return np.array([counts[kind] for kind in self.kinds], dtype=np.float64)


def series_of(found: Predicted) -> list[Series]:
    """Kernels of each series outside of the fit, except those of NeuSight that are blurred by launches."""
    at: dict[tuple[str, str, str], list[int]] = {}
    for index, (row, us) in enumerate(zip(found.rows, found.predicted_us, strict=True)):
        if row.source == "deepbench" or us > TRUSTED_US:
            at.setdefault((row.gpu, row.source, row.precision), []).append(index)
    off = np.log(found.measured_us / found.predicted_us)
    return [Series([kind_of(found.rows[index].kernel) for index in chosen], off[chosen]) for chosen in at.values()]


def errors(series: Sequence[Series], count: int) -> dict[str, dict[str, float]]:
    """By way, the mean error of a kernel and of the mean of all, with `count` known kernels of a network."""
    rng = np.random.default_rng(SEED)
    each: dict[str, list[float]] = {name: [] for name in WAYS}
    whole: dict[str, list[float]] = {name: [] for name in WAYS}
    for one in series:
        for _ in range(NETWORKS):
            drawn = np.argsort(rng.exponential(one.rarity))[:KERNELS]  # without replacement, by Efraimidis and Spirakis
            given, others = drawn[:count], drawn[count:]
            for name, way in WAYS.items():
                kinds = ([one.kinds[index] for index in part] for part in (given, others))
                off = one.off[others] - way.logs(next(kinds), one.off[given], next(kinds))
                each[name].append(float(np.abs(off).mean()))
                whole[name].append(float(abs(off.mean())))
    return {name: {"kernel": _mean(each[name]), "all": _mean(whole[name])} for name in WAYS}


def _mean(values: Sequence[float]) -> float:
    return round(float(np.mean(values)), 3)


def as_former(one: Series) -> Series:
    """The series with the errors by kind of the former model."""
    former = np.log([FORMER.get(kind, 1.0) for kind in one.kinds])
    return Series(one.kinds, one.off - former)


def tables(rows: Sequence[Row]) -> dict[str, object]:
    """Errors with a GPU's clock and bandwidth, with only its specification, and with errors that differ by kind."""
    test = [row for row in rows if was_unseen(row) and row.measured_us > 0]
    seen, specified = series_of(predict(test)), series_of(predict(test, attained={}))
    cases: dict[str, tuple[Sequence[Series], Callable[[Series], Series]]] = {
        "seen": (seen, lambda one: one),
        "by the specification": (specified, lambda one: one),
        "kinds off as the former model": (seen, as_former),
    }
    return {
        name: {f"{count} given": errors([change(one) for one in series], count) for count in GIVEN}
        for name, (series, change) in cases.items()
    }


def main() -> None:
    """Prints the tables."""
    arguments = read_options(__file__, data={"type": Path, "required": True}, output=Path)
    record = {"kernels of a network": KERNELS, **tables(read(arguments.data))}
    print(json.dumps(record, indent=1))
    write_results(arguments, record, seeds={"networks": SEED})


if __name__ == "__main__":
    main()
