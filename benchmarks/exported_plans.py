"""Cost and savings of plan files: sizes, opening times with and without a plan, and whether outputs have the same bits.

Greedy schedules are exported, so nothing is searched. Opening times are of iosched.load in one process, interleaved;
the first of each is omitted.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnx
from command_line import read_options
from result_tables import NAMES, Table, range_text
from results_files import resumed_results, write_results

import iosched
from iosched.jobs.annotate import annotated
from iosched.jobs.export import export
from iosched.jobs.schedule_file import document_from
from iosched.models import zoo
from iosched.models.model import Model
from iosched.profiler.devices.cpu.device import CpuDevice
from iosched.runtime.inputs import random_inputs
from iosched.scheduler.baselines import greedy

LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"
BATCH_SIZES = (1, 2, 4)


def table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Sizes and opening times of each network; the median speedup within rounds, with the lowest and the highest."""
    headers = ("network", "batch", "model", "plan", "calls", "sessions", "opening", "with a plan", "times as fast")
    return headers, [
        (
            NAMES.get(row["network"], row["network"]),
            row["batch_size"] or 1,
            *(f"{row[key] / 1e6:.1f} MB" for key in ("model_nbytes", "plan_nbytes")),
            *(row["kernels"], row["sessions"]),
            *(f"{median(row['opening_ms'][key]):.0f} ms" for key in ("without_plan", "plan")),
            range_text(_speedups(row["opening_ms"]), ".1f"),
        )
        for row in rows
    ]


def _speedups(opening_ms: Mapping[str, Sequence[float]]) -> list[float]:
    rounds = zip(opening_ms["without_plan"], opening_ms["plan"], strict=True)
    return [before / after for before, after in rounds]


def main() -> None:
    options = read_options(__file__, output=Path, networks=[*zoo.names(), "light"], rounds=7)
    rows: list[Mapping[str, object]] = resumed_results(options.output).get("rows", [])
    for network in options.networks:
        for name, source in sources(network):
            for size in BATCH_SIZES if network != "light" else (None,):
                if not any((row["network"], row["batch_size"]) == (name, size) for row in rows):
                    rows.append({"network": name, **tried(source, size, options.rounds)})
                    write_results(options, {"rows": rows}, goes_on=True)
                print(name, size, {key: value for key, value in rows[-1].items() if key != "opening_ms"})


def sources(network: str) -> Iterator[tuple[str, bytes | Path]]:
    if network != "light":
        yield network, zoo.build(network).SerializeToString()
        return
    for path in sorted(LIGHT.glob("light_*.onnx")):
        yield path.stem, path


def tried(source: bytes | Path, batch_size: int | None, rounds: int) -> Mapping[str, object]:
    """One row: the model at a batch size, exported to a temporary folder."""
    model = iosched.load_model(source, batch_size=batch_size)
    with tempfile.TemporaryDirectory() as folder:
        optimized, plan = Path(folder, "m.iosched.onnx"), Path(folder, "m.plan")
        document = document_from(model, CpuDevice(), None, greedy(model.graph))
        iosched.write_model(annotated(model, document), model.weights, optimized)
        begun = time.perf_counter()
        written = export(optimized, plan)
        exported_s = time.perf_counter() - begun
        return {
            "batch_size": batch_size,
            "model_nbytes": written.model_nbytes,
            "plan_nbytes": written.plan_nbytes,
            "kernels": written.programs[0].kernels,
            "sessions": written.programs[0].sessions,
            "export_s": exported_s,
            "same_bits": same_bits(model, optimized, plan),
            "opening_ms": opening_ms({"without_plan": optimized, "plan": plan}, rounds),
        }


def same_bits(model: Model, optimized: Path, plan: Path) -> bool:
    inputs = random_inputs(model.graph.inputs)
    with iosched.load(optimized) as own, iosched.load(plan, strict=True) as other:
        expected, found = own.run(inputs), other.run(inputs)
    return all(np.array_equal(found[name], expected[name], equal_nan=True) for name in expected)


def opening_ms(paths: Mapping[str, Path], rounds: int) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {name: [] for name in paths}
    for _ in range(rounds + 1):
        for name, path in paths.items():
            begun = time.perf_counter()
            opened = iosched.load(path)
            found[name].append((time.perf_counter() - begun) * 1e3)
            opened.close()
    return {name: each[1:] for name, each in found.items()}


if __name__ == "__main__":
    main()
