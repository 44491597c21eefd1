"""Errors of the analytic model's parts, and the share of measurements within its intervals.

Run as `python benchmarks/intervals.py --data FOLDER [-o FILE.json]`; it takes some minutes and measures nothing. Copy
the printed spreads to `profiler/devices/analytic/uncertainty.py`, which makes the intervals.

`intervals_kernels.py` has the errors of kernels, `intervals_networks.py` those of networks. Where few series of
measurements give the common error of a kind of kernels, or few networks that of stages, standard deviations are widened
by Student's t. Coverage is counted outside of the fit: a series of kernels in intervals made from the other series, a
network in intervals made from the other networks, and everything else by the packaged spreads.

Options:
    --data: folder with the measurements
    --analytic: results of analytic.py
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

import numpy as np
from command_line import read_options
from intervals_networks import elsewhere_covered, left_out, network_spreads, networks_covered, widened
from kernels import RESTED_US, TRUSTED_US, Floats, Predicted, family, predict, was_unseen
from kernels_fit import GPUS, bandwidths, fit, for_fit, without_tiles_of
from measured import Row, read
from numpy.typing import NDArray
from results_files import write_results

from iosched.profiler.devices.analytic.constants import measured_card
from iosched.profiler.devices.analytic.uncertainty import (
    LEVEL,
    NORMAL,
    SHORT_US,
    SPREADS,
    ErrorShare,
    Spread,
    Spreads,
    deviation,
)

LEAST = 5  # kernels of a series, below which their offset is not known
SUMS, TERMS, SEED = 400, 30, 0  # sums drawn from each series, and kernels in each


@dataclass(frozen=True)
class Series:
    """Kernels of one kind on one GPU by one library: logarithms of measured over predicted, and latencies."""

    kind: str
    name: str
    off: Floats
    predicted_us: Floats


def short(rows: Sequence[Row]) -> Predicted:
    """Kernels that are short by the model, as measured by DeepBench."""
    found = predict([row for row in rows if row.source == "deepbench" and row.precision == "fp32"])
    return _kept(found, found.predicted_us < SHORT_US)


def seen(rows: Sequence[Row]) -> Predicted:
    """Longer kernels of fitted GPUs, of shapes outside of the fit."""
    return _long(predict([row for row in _unseen(rows) if measured_card(row.gpu) in GPUS]))


def specified(rows: Sequence[Row]) -> Predicted:
    """Longer kernels of every GPU, predicted as if only its specification were known."""
    known, test = bandwidths(for_fit(rows)), _unseen(rows)
    found = [predict([row for row in test if measured_card(row.gpu) not in GPUS])]
    for gpu in GPUS:
        with without_tiles_of(gpu):
            others = fit(rows, [other for other in GPUS if other != gpu], known)
            rested = {**RESTED_US, "neusight": others.rested_us}
            own = [row for row in test if measured_card(row.gpu) == gpu]
            found.append(predict(own, others.constants, {}, rested))
    latencies_us = np.concatenate([part.predicted_us for part in found])
    return _long(Predicted([row for part in found for row in part.rows], latencies_us))


def half_precision(rows: Sequence[Row]) -> float:
    """Error of kernels on the T4's tensor cores over that of its other kernels, root mean square."""
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
    """The common error of kernels of one kind in a series, around zero, and their individual errors."""
    offsets = np.array([each.off.mean() for each in known])
    own = np.concatenate([each.off - each.off.mean() for each in known])
    return Spread(widened(_rms(offsets), len(known)), float(own.std()))


def series_covered(known: Sequence[Series]) -> dict[str, dict[str, float]]:
    """The share of kernels, and of sums of thirty, in intervals made from the other series of the kind."""
    record = {}
    for each in known:
        others = [other for other in known if other.kind == each.kind and other is not each]
        if others:
            record[f"{each.kind}, {each.name}"] = covered(each, spread(others))
    return record


def covered(part: Series, found: Spread) -> dict[str, float]:
    """The share of kernels, and of sums of thirty, in intervals by these spreads."""
    single = np.abs(part.off) <= NORMAL * deviation([ErrorShare("product", found, 1.0)])
    rng, hits = np.random.default_rng(SEED), []
    measured_us = part.predicted_us * np.exp(part.off)
    for _ in range(SUMS):
        chosen, counts = np.unique(rng.choice(len(part.off), TERMS), return_counts=True)
        weights = part.predicted_us[chosen] * counts
        shares = [ErrorShare("product", found, float(weight)) for weight in weights / weights.sum()]
        off = np.log(measured_us[chosen] @ counts / weights.sum())
        hits.append(abs(off) <= NORMAL * deviation(shares))
    return {"kernels": len(part.off), "single": round(float(single.mean()), 2), "sums": round(float(np.mean(hits)), 2)}


def _unseen(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if was_unseen(row) and row.precision == "fp32"]


def _long(found: Predicted) -> Predicted:
    """Kernels that are not short by the model, without those of NeuSight that are blurred by launches."""
    least_us = np.array([SHORT_US if row.source == "deepbench" else TRUSTED_US for row in found.rows])
    return _kept(found, (found.measured_us > 0) & (found.predicted_us >= least_us))


def _kept(found: Predicted, mask: NDArray[np.bool_]) -> Predicted:
    return Predicted([found.rows[index] for index in np.flatnonzero(mask)], found.predicted_us[mask])


def _off(found: Predicted) -> Floats:
    off: Floats = np.log(found.measured_us / found.predicted_us)
    return off


def _rms(values: Floats) -> float:
    return float(np.sqrt((values**2).mean()))


RESULTS = Path(__file__).parent / "results"


def rounded(spreads: Spreads) -> dict[str, object]:
    """To three digits, as they are packaged."""
    return {name: _rounded(value) for name, value in vars(spreads).items()}


def _rounded(value: object) -> object:
    if isinstance(value, Mapping):
        return {name: _rounded(each) for name, each in value.items()}
    if isinstance(value, Spread):
        return _rounded(vars(value))
    return round(float(value), 3)  # type: ignore[arg-type]


def mean_covered(groups: Iterable[Mapping[str, Mapping[str, float]]]) -> dict[str, float]:
    """Mean coverage over all series, each counted once."""
    found = [series for group in groups for series in group.values()]
    return {name: round(fmean(series[name] for series in found), 2) for name in ("single", "sums")}


def main() -> None:
    """Prints the spreads and the coverage."""
    data, analytic = {"type": Path, "required": True}, RESULTS / "analytic-v100.json"
    arguments = read_options(__file__, data=data, analytic=analytic, output=Path)
    rows, networks = read(arguments.data), left_out(json.loads(arguments.analytic.read_text())["leave_one_out"])
    known = {"short": short(rows), "seen": seen(rows), "specified": specified(rows)}
    parts = {name: series(found) for name, found in known.items()}
    by_part = {name: kernel_spreads(each) for name, each in parts.items()}
    found = replace(SPREADS, tensor_cores=half_precision(rows), **by_part)
    found = network_spreads(found, networks)
    covered = {name: series_covered(each) for name, each in parts.items()}
    record = {
        "level": LEVEL,
        "spreads": rounded(found),
        "kernels, mean of all series": mean_covered(covered.values()),
        "kernels": covered,
        "networks": networks_covered(found, networks),
        "elsewhere": elsewhere_covered(found),
    }
    print(json.dumps(record, indent=1))
    write_results(arguments, record, seeds={"sums": SEED})


if __name__ == "__main__":
    main()
