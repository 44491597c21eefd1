"""Compares the analytic model with kernels that others measured on real GPUs; reports/analytic-evidence.md.

Run as `python benchmarks/kernels.py --data FOLDER [-o FILE.json] [--plot FILE.png]`; it measures nothing. `measured.py`
describes the content of the folder. Unless stated otherwise, errors are for shapes outside of every fit.

Options:
    --data: folder with the measurements
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from command_line import read_options
from measured import SPLIT_SEED, TEST_PART, Row, read
from numpy.typing import NDArray
from result_tables import chart
from results_files import write_results
from testbed import gpu_spec

from iosched.profiler.devices.analytic.constants import (
    KERNELS,
    MEASURED,
    STREAM_LAUNCHES,
    UNMEASURED,
    KernelConstants,
    MeasuredFractions,
    measured_card,
)
from iosched.profiler.devices.analytic.work import ModelledGpu

Floats = NDArray[np.float64]

TRUSTED_US = 300.0  # shorter calls from PyTorch are mostly launch
TRUSTED_ELEMENTWISE_US = 100.0  # their launches are the shortest, and there are few that take longer
SHORTEST_US = 40.0
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
SIZES_US = (0.0, 30.0, 100.0, 300.0, 1000.0, 10_000.0, float("inf"))


@dataclass(frozen=True)
class Predicted:
    """Rows, and the predictions of a model in the same order."""

    rows: Sequence[Row]
    predicted_us: Floats

    @property
    def measured_us(self) -> Floats:
        """Measured latencies, without the host's launch."""
        return np.array([row.measured_us for row in self.rows])

    def where(self, condition: Callable[[Row], bool]) -> Predicted:
        """The rows for which `condition` holds."""
        kept = [index for index, row in enumerate(self.rows) if condition(row)]
        return Predicted([self.rows[index] for index in kept], self.predicted_us[kept])


UNLAUNCHED = replace(STREAM_LAUNCHES, kernel_us=0.0)
RESTED_US = {"neusight": 339.0, "deepbench": 0.0, "here": 0.0}  # one kernel at a time; one after another; see the fit


def predict(
    rows: Sequence[Row], constants: KernelConstants = KERNELS, attained: Mapping[str, MeasuredFractions] = MEASURED,
    rested_us: Mapping[str, float] = RESTED_US,
) -> Predicted:  # fmt: skip
    """The model's latency, without the host's launch."""
    modelled = {
        (gpu, precision, source): ModelledGpu(
            gpu_spec(gpu), precision, UNLAUNCHED, halved=precision == "fp16", rested_us=rested_us[source],
            constants=constants, attained=attained.get(measured_card(gpu), UNMEASURED),
        )
        for gpu, precision, source in {(row.gpu, row.precision, row.source) for row in rows}
    }  # fmt: skip
    latencies = [modelled[row.gpu, row.precision, row.source].work([row.kernel]).path_us for row in rows]
    return Predicted(rows, np.array(latencies))


def agreement(found: Predicted) -> dict[str, float]:
    """Errors of predicted over measured latencies, and the rank correlation."""
    ratio = found.predicted_us / found.measured_us
    off = np.abs(ratio - 1)
    return {
        "kernels": len(found.rows),
        "mean_error": _rounded(off.mean()),
        "median_error": _rounded(np.median(off)),
        "median_ratio": _rounded(np.median(ratio)),
        "spearman": _rounded(spearman(found.predicted_us, found.measured_us)),
    }


def spearman(one: Floats, two: Floats) -> float:
    """The correlation of ranks; undefined if all values of one are equal, and 1 here."""
    if min(len(set(one)), len(set(two))) < 2:
        return 1.0
    return float(np.corrcoef(_ranks(one), _ranks(two))[0, 1])


def _ranks(values: Floats) -> Floats:
    """From 0; equal values share the mean of their ranks."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts) - 1
    ranks: Floats = (last - (counts - 1) / 2)[inverse]
    return ranks


def _rounded(value: float | np.floating) -> float:
    return round(float(value), 3)


def family(row: Row) -> str:
    """The operators that the tables combine."""
    kinds = {"linear": "product", "bmm": "product", "gemm": "product", "conv": "convolution"}
    return kinds.get(row.operator, "elementwise")


def _size(row: Row) -> str:
    least = max(size for size in SIZES_US if size <= row.measured_us)
    return f"from {least:g} us"


def was_unseen(row: Row) -> bool:
    """Whether no fit uses the row. Of DeepBench only half precision is used, by the fit of tensor cores."""
    return row.is_test or (row.source == "deepbench" and row.precision != "fp16")


def is_trusted(row: Row) -> bool:
    """Whether a call from PyTorch is long enough for its launch to matter little."""
    return row.measured_us > (TRUSTED_ELEMENTWISE_US if family(row) == "elementwise" else TRUSTED_US)


def tables(found: Predicted) -> dict[str, object]:
    """All tables of the results file on the test rows."""
    test = found.where(lambda row: row.measured_us > 0 and was_unseen(row))
    long = test.where(is_trusted)
    mid = test.where(lambda row: SHORTEST_US < row.measured_us <= TRUSTED_US)
    return {
        "neusight, above 300 us": _by(long, "neusight", lambda row: ""),
        "neusight, 40 to 300 us": _by(mid, "neusight", lambda row: ""),
        "neusight, above 300 us, by operator": _by(long, "neusight", lambda row: row.operator),
        "neusight, above 300 us, by algorithm": _by(long, "neusight", lambda row: row.algorithm),
        "neusight, by size": _by(test, "neusight", _size),
        "deepbench": _by(test, "deepbench", lambda row: ""),
        "deepbench, by algorithm": _by(test, "deepbench", lambda row: row.algorithm),
        "deepbench, by size": _by(test, "deepbench", _size),
        "measured over predicted, quantiles": _spread(test),
    }


def _spread(found: Predicted) -> dict[str, dict[str, list[float]]]:
    """Quantiles of measured over predicted latencies by kind and predicted size, the basis of intervals.

    Of kernels that are predicted to be short only DeepBench's count, since launches blur NeuSight's.
    """
    spread: dict[str, dict[str, list[float]]] = {}
    clear = [
        row.source == "deepbench" or predicted_us > TRUSTED_US
        for row, predicted_us in zip(found.rows, found.predicted_us, strict=True)
    ]
    found = Predicted([row for row, kept in zip(found.rows, clear, strict=True) if kept], found.predicted_us[clear])
    for kind in ("convolution", "product", "elementwise"):
        part = found.where(lambda row, kind=kind: family(row) == kind)
        ratio, sizes = part.measured_us / part.predicted_us, np.digitize(part.predicted_us, SIZES_US) - 1
        for size in sorted(set(sizes)):
            quantiles = np.quantile(ratio[sizes == size], QUANTILES)
            spread.setdefault(kind, {})[f"from {SIZES_US[size]:g} us"] = [_rounded(value) for value in quantiles]
    return spread


def _by(found: Predicted, source: str, kind: Callable[[Row], str]) -> dict[str, dict[str, float]]:
    """Agreement by GPU, precision, family of operators and `kind`; groups of a single row are left out."""

    def name(row: Row) -> str:
        return ", ".join(part for part in (row.gpu, row.precision, family(row), kind(row)) if part)

    chosen = found.where(lambda row: row.source == source)
    names = np.array([name(row) for row in chosen.rows])
    return {
        str(key): agreement(Predicted([chosen.rows[index] for index in at], chosen.predicted_us[at]))
        for key in sorted(set(names))
        if len(at := np.flatnonzero(names == key)) > 1
    }


def microseconds_a_kernel(rows: Sequence[Row]) -> float:
    """Time to compute the latency of a new kernel, one at a time like in a search."""
    gpu, kernels = ModelledGpu(gpu_spec("v100")), [row.kernel for row in rows[:: max(len(rows) // 2000, 1)]]
    started = time.perf_counter()
    for kernel in kernels:
        gpu.work([kernel])
    return round((time.perf_counter() - started) * 1e6 / len(kernels), 1)


def plot(found: Predicted, destination: Path) -> None:
    """Predicted against measured latencies of test rows, a panel for each GPU and family of operators."""
    panels, columns = list(_panels(found)), 3
    rows = -(-len(panels) // columns)
    with chart(destination, rows, columns, figsize=(9.6, 3.1 * rows), layout="constrained") as (figure, axes):
        for axis, (title, chosen) in zip(axes.flat, panels, strict=False):
            _panel(axis, title, chosen)
        for axis in axes.flat[len(panels) :]:
            axis.axis("off")
        figure.supxlabel("measured, us", fontsize=9)
        figure.supylabel("predicted, us", fontsize=9)


def _panel(axis: Any, title: str, chosen: Predicted) -> None:
    kinds = sorted({row.algorithm for row in chosen.rows}, key=lambda kind: (kind == "direct", kind))
    convolves = family(chosen.rows[0]) == "convolution"
    for kind in kinds if convolves else [None]:
        part = chosen if kind is None else chosen.where(lambda row, kind=kind: row.algorithm == kind)
        axis.scatter(part.measured_us, part.predicted_us, s=4, alpha=0.35, linewidths=0, label=kind)
    band = [chosen.measured_us.min() / 1.5, chosen.measured_us.max() * 1.5]
    axis.plot(band, band, color="#444444", linewidth=0.8)
    low, high = ([part * end for end in band] for part in (0.8, 1.25))
    axis.fill_between(band, low, high, color="#444444", alpha=0.12, linewidth=0)
    axis.set(xscale="log", yscale="log", xlim=band, ylim=band)
    said = agreement(chosen)
    axis.set_title(f"{title}\nmean error {said['mean_error']:.0%}, {said['kernels']} kernels", fontsize=8)
    axis.tick_params(labelsize=7)
    if len(kinds) > 1 and convolves:
        axis.legend(fontsize=6, markerscale=2, loc="upper left")


def _panels(found: Predicted) -> Iterator[tuple[str, Predicted]]:
    test = found.where(lambda row: was_unseen(row) and (row.source == "deepbench" or is_trusted(row)))
    for source, name in (("neusight", "NeuSight"), ("deepbench", "DeepBench")):
        for kind in ("convolution", "product"):
            part = test.where(lambda row, source=source, kind=kind: (row.source, family(row)) == (source, kind))
            for key in sorted({(row.gpu, row.precision) for row in part.rows}):
                own = part.where(lambda row, key=key: (row.gpu, row.precision) == key)
                yield f"{key[0]} {key[1]}, {kind}s, {name}", own


def split(rows: Sequence[Row]) -> Mapping[str, object]:
    """The split of shapes between fit and test."""
    measured = [row for row in rows if row.source == "neusight"]
    return {
        "by": "hash of operator and shape, never by row",
        "seed": SPLIT_SEED,
        "test_part": TEST_PART,
        "fit_rows": sum(not row.is_test for row in measured),
        "test_rows": sum(row.is_test for row in measured),
        "deepbench": "test only, but for half precision, whose fit shapes serve for tensor cores",
    }


def main() -> None:
    """Writes the tables and draws the plot."""
    arguments = read_options(__file__, data={"type": Path, "required": True}, output=Path, plot=Path)
    rows = read(arguments.data)
    found = predict(rows)
    record = {"split": split(rows), "microseconds_a_kernel": microseconds_a_kernel(rows), **tables(found)}
    print(json.dumps(record, indent=1))
    write_results(arguments, record, seeds={})
    if arguments.plot:
        plot(found, arguments.plot)


if __name__ == "__main__":
    main()
