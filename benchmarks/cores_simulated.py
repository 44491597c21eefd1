"""SIMULATED: schedules on 4, 8 and 16 cores, from operator latencies measured on one core and on two.

    python benchmarks/cores_simulated.py [--networks squeezenet,...] [-o results.json] [--plot F.svg]

`cores_model.py` is the model. The first table compares it with whole networks measured on one core and on two.
Everything on more cores is simulated under two assumptions about memory: its bandwidth grows with the cores, or it
stays at that of the two cores of this machine. Measurements in the results file are reused, and simulated again.

Options:
    --profile-db: profile database of the measurements
    --output: raw results as JSON
    --plot: draw a chart (needs matplotlib)
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from command_line import OUTPUTS, read_options
from cores_model import SimulatedCost, Unit, largest_parts, latencies_us, unit_nbytes
from published import PACKRAT_MS
from result_tables import NAMES, Table, chart, print_table
from results_files import resumed_results, write_results
from testbed import CALIBRATION, zoo_model

from iosched import Effort, Model, Schedule, Stage, Strategy, search
from iosched.profiler.devices.cpu.calibration_kernel import compile_calibration_kernel
from iosched.profiler.devices.cpu.measured_cost import CpuStageCost
from iosched.profiler.devices.cpu.open import CPU_EFFORT
from iosched.profiler.measuring.interleaved_models import Budget, measure_interleaved
from iosched.profiler.store.database import ProfileDatabase
from iosched.runtime.cpu.backend import CpuBackend
from iosched.runtime.executor import Candidate
from iosched.runtime.inputs import random_inputs
from iosched.scheduler.baselines import greedy, sequential
from iosched.scheduler.signature import default_label

CORES = (1, 2, 4, 8, 16)
EFFORT = Effort(tolerance=CPU_EFFORT.tolerance, max_measurements=CPU_EFFORT.max_measurements, remeasure_rounds=0)
READ_NBYTES = 32 << 20
ROUNDS = 9


def main(words: Sequence[str] | None = None) -> None:
    options = read_options(__file__, words, networks=("squeezenet", "inception_v3", "randwire", "nasnet_a"), **OUTPUTS)
    earlier = resumed_results(options.output)
    bandwidth = earlier.get("bandwidth_bytes_per_us") or bandwidths()
    networks = earlier.get("networks", {})
    for name in options.networks:
        model = zoo_model(name)
        found = networks.get(name, {})
        for part, measure in (("units", measure_units), ("samples_us", measure_networks)):
            if part not in found:
                found |= measure(model, options.profile_db, found)
        networks[name] = {**found, "simulated": simulate(model, found, bandwidth)}
        content = {"bandwidth_bytes_per_us": bandwidth, "networks": networks}
        write_results(options, content, goes_on=True)
    print_table(*errors_table(networks))
    print("SIMULATED, not measured:")
    print_table(*simulated_table(networks))
    if options.plot:
        plot(networks, options.plot)


def bandwidths() -> list[float]:
    """Bytes a microsecond that one core reads, and two together, of arrays as large as a network's weights."""
    arrays = [np.ones(READ_NBYTES // 4, np.float32) for _ in range(2)]

    def read(count: int) -> float:
        with ThreadPoolExecutor(count) as pool:
            begin = time.perf_counter()
            list(pool.map(lambda array: float(np.dot(array, array)), arrays[:count]))
            return count * READ_NBYTES / (time.perf_counter() - begin) / 1e6

    return [median(read(count) for _ in range(15)) for count in (1, 2)]


def measure_units(model: Model, profile_db: Path | None, _: Mapping[str, Any]) -> dict[str, Any]:
    """Every unit on one core and on two: microseconds relative to the calibration kernel, and the bytes."""
    with ProfileDatabase(profile_db) as database, closing(CpuBackend(model, lanes=2)) as backend:
        cost = CpuStageCost(backend, database)
        units = {name: _measured(cost, name) for name in backend.graph.by_name}
        begun = database.calibration(cost.device)
    return {
        "units": {name: [unit.one_us, unit.two_us, unit.nbytes] for name, unit in units.items()},
        "yardstick_us": None if begun is None else begun.median_us,
    }


def measure_networks(model: Model, _: Path | None, known: Mapping[str, Any]) -> dict[str, Any]:
    """All samples of whole networks on one core and two, interleaved with the calibration kernel."""
    units = {name: Unit(*unit) for name, unit in known["units"].items()}
    inputs = random_inputs(model.graph.inputs)
    with closing(CpuBackend(model, lanes=2)) as backend, closing(CpuBackend(model, lanes=1)) as alone:
        schedules = {
            "sequential": sequential(backend.graph),
            "greedy": greedy(backend.graph),
            "found": _found(backend, _cost(backend, units, largest_parts(backend, 2))),
        }
        compiled = {"one core": alone.compile(sequential(alone.graph))}
        compiled |= {name: backend.compile(schedule) for name, schedule in schedules.items()}
        candidates = {name: Candidate(partial(each.time, inputs), each.close) for name, each in compiled.items()}
        candidates[CALIBRATION] = Candidate(compile_calibration_kernel(backend).time)
        found = measure_interleaved(candidates, Budget(ROUNDS, 120.0))
    return {"samples_us": {name: each.samples_us for name, each in found.items()}}


def _measured(cost: CpuStageCost, name: str) -> Unit:
    nbytes = unit_nbytes(cost.backend, name)
    two_us = cost.operator_latency_us(name)
    cost.operator_work_us(name)
    one = cost.known(Stage(Strategy.CONCURRENT, ((name,),)), lanes=1)
    return Unit(two_us if one is None else one.median_us, two_us, nbytes)


def simulate(model: Model, measured: Mapping[str, Any], bandwidth: Sequence[float]) -> list[dict[str, Any]]:
    """Latencies of schedules by number of cores, with both assumptions about memory."""
    units = {name: Unit(*unit) for name, unit in measured["units"].items()}
    rows = []
    for cores in CORES:
        with closing(CpuBackend(model, lanes=cores)) as backend:
            cost = partial(_cost, backend, units, largest_parts(backend, cores))
            chosen, guessed = cost(), cost(chooses=False)
            begin = time.monotonic()
            found = _found(backend, chosen)
            seconds, tried = time.monotonic() - begin, chosen.tried
            schedules = {"sequential": sequential(backend.graph), "greedy": greedy(backend.graph), "found": found}
            by_guess = _found(backend, guessed)
            tried_by_guess = guessed.tried
            capped = cost(bytes_per_us=bandwidth[min(cores, 2) - 1])
            rows.append({
                "cores": cores,
                "us": {name: chosen.schedule_us(each) for name, each in schedules.items()},
                "capped_us": {name: capped.schedule_us(each) for name, each in schedules.items()},
                "guessed_us": guessed.schedule_us(by_guess),
                "tried": tried,
                "tried_by_guess": tried_by_guess,
                "search_s": round(seconds, 2),
            })  # fmt: skip
    return rows


def _cost(
    backend: CpuBackend, units: Mapping[str, Unit], parts: Mapping[str, Sequence[float]], *, chooses: bool = True,
    bytes_per_us: float = math.inf,
) -> SimulatedCost:  # fmt: skip
    label, operators = default_label(backend.graph), backend.graph.by_name
    us = {name: latencies_us(unit, parts[name]) for name, unit in units.items()}
    nbytes = {name: unit.nbytes for name, unit in units.items()}
    keys = {name: f"{label(operator)}{units[name]}" for name, operator in operators.items()}
    guessed = backend.guessed_lanes
    return SimulatedCost(backend.lanes, us, nbytes, keys.__getitem__, guessed, chooses, bytes_per_us)


def _found(backend: CpuBackend, cost: SimulatedCost) -> Schedule:
    return search(backend.graph, cost, strategy="concurrent", effort=EFFORT).schedule


def errors_table(networks: Mapping[str, Any]) -> Table:
    """The errors on one core and two, of measured milliseconds, the fastest round."""
    rows = []
    for name, found in networks.items():
        slowness = min(found["samples_us"][CALIBRATION]) / (found["yardstick_us"] or math.inf)
        one, two = (next(row["us"] for row in found["simulated"] if row["cores"] == cores) for cores in (1, 2))
        pairs = {"one core": one["sequential"], **two}
        measured_us = {each: min(found["samples_us"][each]) / slowness for each in pairs}
        gains = (us["sequential"] / us["found"] for us in (measured_us, two))
        cells = (_error(measured_us[each], us) for each, us in pairs.items())
        rows.append([NAMES.get(name, name), *cells, ", ".join(f"{gain:.2f}" for gain in gains)])
    headers = ["network", "one core", "two cores: one after another", "greedy", "schedule found by the simulation"]
    return [*headers, "its gain, measured and simulated"], rows


def simulated_table(networks: Mapping[str, Any]) -> Table:
    """SIMULATED milliseconds, and the speedup over one operator after another on the same cores."""
    rows = [
        [NAMES.get(name, name), row["cores"], *_cells(row)]
        for name, found in networks.items()
        for row in found["simulated"]
        if row["cores"] > 2
    ]
    headers = ["network", "cores", "one after another", "greedy", "schedule found", "the same with lanes guessed"]
    return [*headers, "schedule found, memory no faster than for two cores"], rows


def packrat_table(networks: Mapping[str, Any]) -> Table:
    """Speedups over one core of one operator after another: measured by Packrat, and SIMULATED here."""
    name = "inception_v3"
    rows = networks[name]["simulated"]
    simulated = [rows[0]["us"]["sequential"] / row["us"]["sequential"] for row in rows]
    measured = [[ms[0] / each for each in ms] for ms in (PACKRAT_MS["resnet50"], PACKRAT_MS[name])]
    cells = zip(*measured, simulated, strict=True)
    headers = ["cores", "ResNet-50, Packrat", f"{NAMES.get(name, name)}, Packrat", f"{NAMES[name]}, simulated"]
    return headers, [
        [row["cores"], *(f"{each:.2f}x" for each in speedups)] for row, speedups in zip(rows, cells, strict=True)
    ]


def _error(measured_us: float, simulated_us: float) -> str:
    return f"{measured_us / 1e3:.2f}, {simulated_us / 1e3:.2f} ({simulated_us / measured_us - 1:+.0%})"


def _cells(row: Mapping[str, Any]) -> list[str]:
    us, capped = row["us"], row["capped_us"]
    return [
        f"{us['sequential'] / 1e3:.2f}",
        *(f"{us[name] / 1e3:.2f} ({us['sequential'] / us[name]:.2f}x)" for name in ("greedy", "found")),
        f"{row['guessed_us'] / 1e3:.2f} ({us['sequential'] / row['guessed_us']:.2f}x)",
        f"{capped['found'] / 1e3:.2f} ({capped['sequential'] / capped['found']:.2f}x)",
    ]


def plot(networks: Mapping[str, Any], path: Path) -> None:
    """Speed-up over one core against the number of cores: one operator after another, and the schedule found."""
    lines = ("sequential", "#888888", "one after another"), ("found", "#c8553d", "schedule found")
    title = "SIMULATED from operators measured on one core and two; shaded: with memory no faster than for two"
    size = (3.2 * len(networks), 3.4)
    with chart(path, 1, len(networks), figsize=size, sharey=True, squeeze=False) as (figure, axes):
        for axis, (name, found) in zip(axes[0], networks.items(), strict=True):
            rows = found["simulated"]
            base = rows[0]["us"]["sequential"]
            for which, colour, text in lines:
                least, most = ([base / row[key][which] for row in rows] for key in ("capped_us", "us"))
                axis.plot(range(len(rows)), most, color=colour, marker="o", markersize=4, label=text)
                axis.fill_between(range(len(rows)), least, most, color=colour, alpha=0.15, linewidth=0)
            axis.axvspan(1.5, len(rows) - 0.8, color="#f3efe6", zorder=0)
            axis.text(0.97, 0.04, "simulated", fontsize=9, color="#777777", ha="right", transform=axis.transAxes)
            axis.set_xticks(range(len(rows)), [str(row["cores"]) for row in rows])
            axis.set_title(name, fontsize=10)
            axis.set(xlabel="cores", xlim=(-0.2, len(rows) - 0.8))
            axis.spines[["top", "right"]].set_visible(False)
        axes[0][0].set_ylim(bottom=0)
        axes[0][0].set_ylabel("times as fast as on one core")
        axes[0][0].legend(frameon=False, fontsize=8, loc="upper left")
        figure.suptitle(title, fontsize=9)


if __name__ == "__main__":
    main()
