"""Fits the constants of the analytic model's kernels to kernels that others measured on real GPUs.

Run as `python benchmarks/kernels_fit.py --data FOLDER [-o FILE.json]`; it takes some minutes and measures nothing. The
fit uses only the shapes that `measured.py` reserves for it, and of DeepBench only half precision, which no other source
has. Copy the printed constants to `profiler/devices/analytic/constants.py`.

Damped Gauss-Newton steps on the logarithms of the constants minimize residuals log(predicted / measured), weighted so
that the sum of their absolute values becomes small. Constants that the measurements do not determine stay near their
initial values.

Options:
    --data: folder with the measurements
    --only-all: leave no GPU out
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
from command_line import read_options
from kernels import RESTED_US, TRUSTED_US, Floats, agreement, family, is_trusted, predict
from measured import Row, read
from results_files import write_results
from testbed import gpu_spec

from iosched.profiler.devices.analytic import timing, work
from iosched.profiler.devices.analytic.constants import (
    TILES,
    UNMEASURED,
    KernelConstants,
    MeasuredFractions,
    Tile,
    Use,
    measured_card,
    tiles_of,
)

GPUS = ("v100pcie", "t4", "p100pcie", "a100pcie40")  # the last also for the 80 GB card with the same chip
START = KernelConstants(
    fma=0.8, edge=0.3, prologue=12.0, strided=1.5, page_cycles=12.0, winograd_fma=1.2, transform=1.5,
    transform_weights=3.0, start_us=3.0, fma_pj=17.0, load_pj=60.0, convolution_energy=1.0, tensor_fma=1.3,
    tensor_edge=2.0, tensor_energy=0.25,
)  # fmt: skip
"""Initial values of every fit: guesses. The energies of large tiles are those of a V100: 300 W for 15.7 TFLOPS."""
TENSOR = ("tensor_fma", "tensor_edge", "tensor_energy")
SHARED = tuple(field.name for field in fields(KernelConstants) if field.name not in TENSOR)
FREEDOM = 0.5  # standard deviation of a constant's logarithm around its start
FREEDOMS = {"clock": 0.07, "start_us": 0.3}  # of those that are better known
EVEN = 0.05  # residuals below this count squared, larger ones by their size
ROWS = 450  # for each GPU and kind of operator
STEPS = 12
SEED = 0


@dataclass(frozen=True)
class Fitted:
    """All parameters of a fit."""

    constants: KernelConstants
    attained: Mapping[str, MeasuredFractions]
    rested_us: float

    def predict(self, rows: Sequence[Row]) -> Floats:
        """Latencies of `rows` in microseconds."""
        rested = {**RESTED_US, "neusight": self.rested_us}
        return predict(rows, self.constants, self.attained, rested).predicted_us

    def moved(self, logarithms: Mapping[str, float]) -> Fitted:
        """With constants multiplied by the exponentials of these; the clock of a GPU is called "clock GPU"."""
        factors = {name: float(np.exp(value)) for name, value in logarithms.items()}
        shared = {name: getattr(self.constants, name) * factors[name] for name in factors if hasattr(START, name)}
        clocks = {gpu: found.clock * factors.get(f"clock {gpu}", 1.0) for gpu, found in self.attained.items()}
        attained = {gpu: replace(found, clock=clocks[gpu]) for gpu, found in self.attained.items()}
        return Fitted(replace(self.constants, **shared), attained, self.rested_us * factors.get("rested_us", 1.0))


def sample(rows: Sequence[Row], gpus: Sequence[str]) -> list[Row]:
    """A random sample of fit rows, equally many of each GPU and kind."""
    rng, chosen = np.random.default_rng(SEED), []
    for gpu in gpus:
        for kind in ("convolution", "product"):
            kept = [row for row in rows if measured_card(row.gpu) == gpu and family(row) == kind]
            chosen += [kept[index] for index in rng.permutation(len(kept))[:ROWS]]
    return chosen


def for_fit(rows: Sequence[Row]) -> list[Row]:
    """NeuSight's fit rows that are long enough to be trusted."""
    return [row for row in rows if row.source == "neusight" and not row.is_test and row.measured_us > TRUSTED_US / 2]


def bandwidths(rows: Sequence[Row], gpus: Sequence[str] = GPUS) -> dict[str, MeasuredFractions]:
    """Attained share of the memory bandwidth: elementwise kernels at full bandwidth over measured."""
    found = {}
    for gpu in gpus:
        kept = [row for row in rows if measured_card(row.gpu) == gpu and family(row) == "elementwise"]
        there = predict(kept, START, {gpu: MeasuredFractions(1.0, 1.0)}).predicted_us
        dram = float(np.median(there / [row.measured_us for row in kept]))
        found[gpu] = MeasuredFractions(1.0, dram)
    return found


def descend(start: Fitted, names: Sequence[str], rows: Sequence[Row], *, quiet: bool = False) -> Fitted:
    """Moves the constants `names` until the residuals stop decreasing."""
    measured = np.log([row.measured_us for row in rows])
    freedom = np.array([FREEDOMS.get(name.split()[0], FREEDOM) for name in names])

    def residuals(at: Floats) -> Floats:
        off: Floats = np.log(start.moved(dict(zip(names, at, strict=True))).predict(rows)) - measured
        return off

    def loss(off: Floats, at: Floats) -> float:
        return float(np.sqrt(off**2 + EVEN**2).mean() * 1000 + ((at / freedom) ** 2).sum() / 2)

    at, damping = np.zeros(len(names)), 0.1
    off = residuals(at)
    for step in range(STEPS):
        slopes = _slopes(residuals, at, off)
        weights = 1000 / len(rows) / np.sqrt(off**2 + EVEN**2)
        curvature = slopes.T @ (slopes * weights[:, None]) + np.diag(1 / freedom**2)
        gradient = slopes.T @ (weights * off) + at / freedom**2
        before = loss(off, at)
        for _ in range(6):
            move = -np.linalg.solve(curvature + damping * np.diag(np.diag(curvature)), gradient)
            tried = at + np.clip(move, -0.5, 0.5)
            found = residuals(tried)
            if loss(found, tried) < before:
                break
            damping *= 4
        else:
            break
        at, off, damping = tried, found, damping / 3
        if not quiet:
            print(f"step {step}: loss {loss(off, at):.2f}", file=sys.stderr, flush=True)
        if before - loss(off, at) < 0.1:
            break
    return start.moved(dict(zip(names, at, strict=True)))


def _slopes(function: Callable[[Floats], Floats], at: Floats, value: Floats, width: float = 0.02) -> Floats:
    """Forward differences: a column for each constant."""
    return np.stack([(function(at + width * unit) - value) / width for unit in np.eye(len(at))], axis=1)


def fit(rows: Sequence[Row], gpus: Sequence[str], known: Mapping[str, MeasuredFractions]) -> Fitted:
    """Constants for all GPUs from `gpus` alone, and their clocks."""
    start = Fitted(START, {gpu: known[gpu] for gpu in gpus}, 400.0)
    return descend(start, (*SHARED, "rested_us", *(f"clock {gpu}" for gpu in gpus)), sample(for_fit(rows), gpus))


def fit_tensor(rows: Sequence[Row], found: Fitted) -> Fitted:
    """The constants of tensor cores, from DeepBench's fit shapes in half precision."""
    half = [row for row in rows if row.precision == "fp16" and not row.is_test]
    return descend(found, TENSOR, half, quiet=True)


def left_out(rows: Sequence[Row], known: Mapping[str, MeasuredFractions]) -> dict[str, object]:
    """Each GPU predicted with constants from the others: by its specification, and with its two measured constants."""
    record = {}
    test = [row for row in rows if row.source == "neusight" and row.is_test and is_trusted(row)]
    for gpu in GPUS:
        with without_tiles_of(gpu):
            others = fit(rows, [other for other in GPUS if other != gpu], known)
            start = replace(others, attained={gpu: known[gpu]})
            own = descend(start, [f"clock {gpu}"], sample(for_fit(rows), [gpu]), quiet=True)
            specified = replace(others, attained={gpu: UNMEASURED})
            record[gpu] = {
                name: {
                    kind: agreement(predict(part, fitted.constants, fitted.attained, {"neusight": fitted.rested_us}))
                    for kind in ("convolution", "product", "elementwise")
                    if (part := [row for row in test if measured_card(row.gpu) == gpu and family(row) == kind])
                }
                for name, fitted in (("specification only", specified), ("clock and bandwidth measured", own))
            }
        print(gpu, json.dumps(record[gpu]), file=sys.stderr, flush=True)
    return record


@contextmanager
def without_tiles_of(gpu: str) -> Iterator[None]:
    """Products of the GPU's generation may use any tile, as if those of its libraries were unknown."""
    generation = gpu_spec(gpu).capability // 10

    def unseen(use: Use | None, capability: float) -> Sequence[Tile]:
        return TILES if int(capability) == generation else tiles_of(use, capability)

    with patch.object(timing, "tiles_of", unseen):
        work._time.cache_clear()
        yield
    work._time.cache_clear()


def rounded(found: Fitted) -> dict[str, object]:
    """To three digits, as the constants are packaged."""
    three = lambda values: {name: float(f"{value:.3g}") for name, value in values.items()}  # noqa: E731
    return {
        "constants": three(asdict(found.constants)),
        "measured": {gpu: three({"clock": one.clock, "dram": one.dram}) for gpu, one in found.attained.items()},
        "rested_us": float(f"{found.rested_us:.3g}"),
    }


def main() -> None:
    """Prints the fitted constants, and the errors for GPUs outside of the fit."""
    arguments = read_options(__file__, data={"type": Path, "required": True}, output=Path, only_all=False)
    rows = read(arguments.data)
    known = bandwidths(for_fit(rows))
    record = rounded(fit_tensor(rows, fit(rows, GPUS, known)))
    if not arguments.only_all:
        record["left_out"] = left_out(rows, known)
    print(json.dumps(record, indent=1))
    write_results(arguments, record, seeds={"sample": SEED})


if __name__ == "__main__":
    main()
