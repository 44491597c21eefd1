"""Images per second on all cores of this CPU: teams of cores, onnxruntime in one session and in several, and OpenVINO.

    python benchmarks/throughput_cpu.py MODEL... [--batch-sizes 1,8,32] [--seconds 60] [-o results.json]

MODEL is a file or `zoo:NAME`. All divisions of the cores into teams are measured with schedules that need no search.
They run interleaved with onnxruntime's one session for all cores, its sessions of one thread (with a request each, or
with shares of the batch), and OpenVINO in its throughput settings. Outputs are first compared with onnxruntime's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from statistics import median
from typing import Any

from command_line import read_options
from cpu_models import cpu_model
from cpu_table import ratio
from result_tables import NAMES, Table, ratio_text
from results_files import RESULTS, resumed_results, write_results
from testbed import Openers, open_on_cpu

from iosched import DeviceError, Model
from iosched.jobs.optimizing.throughput import team_choices
from iosched.profiler.baselines.requests import open_in_teams, open_streams
from iosched.profiler.devices.profiled_device import TeamWays
from iosched.profiler.measuring.interleaved_models import Budget, close_all, measure_rates
from iosched.runtime.compare import compare
from iosched.runtime.executor import Candidate
from iosched.runtime.inputs import Arrays, random_inputs
from iosched.runtime.reference import Reference, ReferenceSettings
from iosched.scheduler.baselines import greedy, sequential, together
from iosched.scheduler.teams import Teams

HEADERS = ["network", "batch", "onnxruntime", "OpenVINO", "ours", "way", "ours over the better of both"]
FAMILIES = ("onnxruntime", "openvino", "iosched")

Way = Mapping[str, Any]


def main() -> None:
    """Measures every model at every batch size, and writes the results after each."""
    output, takes = RESULTS / "throughput-cpu.json", {"models": {"nargs": "+"}}
    asked = read_options(__file__, None, takes, batch_sizes=(1, 8, 32), seconds=60.0, rounds=9, output=output)
    rows = resumed_results(asked.output).get("rows", [])
    for text in asked.models:
        for batch in asked.batch_sizes:
            found = measured(text, batch, Budget(asked.rounds, asked.seconds))
            rows = [*(row for row in rows if (row["model"], row["batch_size"]) != (found["model"], batch)), found]
            write_results(asked, {"rows": rows}, rivals=["openvino"], goes_on=True)


def measured(text: str, batch: int, budget: Budget) -> dict[str, Any]:
    """All ways for one model at one batch size: microseconds from run to run, and images per second."""
    model = cpu_model(text, batch)
    inputs = random_inputs(model.graph.inputs)
    with open_on_cpu(model) as opened:
        candidates: dict[str, Candidate] = {}
        try:
            for name, opener in openers(model, opened.teams, opened.cost.lanes, inputs).items():
                with suppress(DeviceError):
                    candidates[name] = opener()
            found = measure_rates(candidates, budget)
        finally:
            close_all(candidates.values())
    rates = {name: 1e6 * batch / each.median_us for name, each in found.items()}
    rows = {name: {"images_per_s": rates[name], "samples_us": each.samples_us} for name, each in found.items()}
    return {"model": model.name, "batch_size": batch, "ways": rows}


def openers(model: Model, ways: TeamWays, lanes: int, inputs: Arrays) -> Openers:
    """For each way, by name, a function that opens it."""
    found: dict[str, Callable[[], Candidate]] = {
        "onnxruntime, one session": partial(_one_session, model, lanes, inputs),
        "openvino, throughput": partial(open_streams, model, lanes, inputs),
    }
    choices = team_choices(model, lanes)
    for teams in choices.sessions:
        found[f"onnxruntime, {teams.text}"] = partial(open_in_teams, model, teams, lanes, inputs)
    with Reference(model) as reference:
        expected = reference.run(inputs)
    for teams in choices.ours:
        for make in (sequential, greedy) if teams.lanes(lanes) > 1 else (sequential, together):
            name = f"iosched, {teams.text}, {make.__name__}"
            found[name] = partial(_checked, ways, make(model.graph), teams, inputs, expected)
    return found


def _one_session(model: Model, lanes: int, inputs: Arrays) -> Candidate:
    reference = Reference(model, ReferenceSettings("sequential", lanes))
    return Candidate(partial(reference.time, inputs), reference.close)


def _checked(ways: TeamWays, schedule: Any, teams: Teams, inputs: Arrays, expected: Arrays) -> Candidate:
    candidate, run = ways.ready(schedule, teams, inputs)
    check = compare(run(), expected)
    if not check.passed:
        raise SystemExit(f"{teams.text}: {check.reasons}")
    return candidate


def table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """A row for each model and batch size, in the order of `NAMES`."""
    places = {name: place for place, name in enumerate(NAMES)}
    ordered = sorted(rows, key=lambda row: (places.get(row["model"], len(places)), row["model"], row["batch_size"]))
    return HEADERS, [_row(row) for row in ordered]


def _row(row: Mapping[str, Any]) -> list[str]:
    ways: Mapping[str, Way] = row["ways"]
    best = {family: best_of(ways, family) for family in FAMILIES}
    rivals = [name for name in (best["onnxruntime"], best["openvino"]) if name is not None]
    rival = min(rivals, key=lambda name: _median_us(ways, name))
    samples = {name: way["samples_us"] for name, way in ways.items()}
    cells = [_images(ways, best[family]) for family in FAMILIES]
    ours = best["iosched"] or ""
    against = ratio_text(ratio(samples, rival, ours))
    network, way = NAMES.get(row["model"], row["model"]), ours.removeprefix("iosched, ")
    return [network, str(row["batch_size"]), *cells, way, against]


def best_of(ways: Mapping[str, Way], family: str) -> str | None:
    """The way with the smallest median whose name starts with `family`; None without any."""
    found = [name for name in ways if name.startswith(family)]
    return min(found, key=lambda name: _median_us(ways, name), default=None)


def _median_us(ways: Mapping[str, Way], name: str) -> float:
    return float(median(ways[name]["samples_us"]))


def _images(ways: Mapping[str, Way], name: str | None) -> str:
    return "" if name is None else f"{ways[name]['images_per_s']:.1f}"


if __name__ == "__main__":
    main()
