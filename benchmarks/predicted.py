"""Compares sums of stages with whole schedules, on small random networks on this machine's CPU.

    python benchmarks/predicted.py [--networks 12] [--seed 0] [--rounds 15] [-o F.json]

The networks are dense networks of two-way layers like Pelee, at 64 pixels: tens of operators of some ten microseconds,
where overhead matters. Each is searched with the effort of `optimize` and a database of its own. Then the schedule
found and the sequential one run as whole models, interleaved with the calibration kernel. `predicted` is the latency
that `optimize` reports; `now` is the same at the speed of the machine during the whole runs.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import median

from command_line import read_options
from result_tables import interval_text, print_table
from results_files import SEEDS, write_results
from testbed import CALIBRATION, in_turn, open_on_cpu

from iosched import load_model, search
from iosched.jobs.matrix_cells import schedule_latency_us
from iosched.models.zoo.network import Network, Value
from iosched.profiler.devices.cpu.calibration_kernel import compile_calibration_kernel
from iosched.profiler.devices.profiled_device import Way
from iosched.profiler.measuring.interleaved_models import Budget
from iosched.profiler.measuring.statistics import quantile
from iosched.runtime.executor import Candidate
from iosched.runtime.inputs import random_inputs
from iosched.scheduler.baselines import sequential

SIZE = 64
HEADERS = ("network", "schedule", "operators", "stages", "measured us", "predicted / measured", "now", "after idle")


def main(words: Sequence[str] | None = None) -> None:
    options = read_options(__file__, words, networks=12, seed=0, rounds=15, output=Path)
    found = []
    for seed in range(options.seed, options.seed + options.networks):
        found += observed(seed, options.rounds)
        print(f"\r{seed}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    print_table(HEADERS, [*map(row, found), *summaries(found)])
    write_results(options, {"schedules": found}, seeds=SEEDS | {"first network": options.seed})


def observed(seed: int, rounds: int) -> list[dict[str, object]]:
    """The schedule found and the sequential one of one network: predicted and measured latencies."""
    model = load_model(small_network(seed), name=f"small{seed}")
    with open_on_cpu(model) as there:
        result = search(there.graph, there.cost, effort=there.effort)
        schedules = {"found": result.schedule, "sequential": sequential(there.graph)}
        predicted = {name: schedule_latency_us(there, schedule) for name, schedule in schedules.items()}
        inputs = random_inputs(model.graph.inputs)
        openers = {name: partial(there.ready, Way(schedule), inputs) for name, schedule in schedules.items()}
        openers[CALIBRATION] = partial(Candidate, compile_calibration_kernel(there.cost.backend).time)
        taken = in_turn(openers, Budget(rounds, 60.0), there.in_turn)
        reference = there.cost.database.calibration(there.cost.device)
        assert reference is not None
        slowness = taken[CALIBRATION].median_us / reference.median_us
    return [
        {
            "network": model.name,
            "schedule": name,
            "operators": len(there.graph.operators),
            "stages": sum(len(block.stages) for block in schedule.blocks),
            "predicted_us": predicted[name],
            "measured_us": taken[name].median_us,
            "slowness": slowness,
            "samples_us": taken[name].samples_us,
            "rested_us": taken[name].rested_us,
            "yardstick_us": taken[CALIBRATION].samples_us,
        }
        for name, schedule in schedules.items()
    ]


def small_network(seed: int) -> bytes:
    """A random network like Pelee: a stem, and groups of two-way dense layers with transitions between them."""
    draw = random.Random(seed)
    net = Network(f"small{seed}")
    x = net.conv(net.input(3, SIZE), draw.choice((16, 24, 32)), 3, "stem", stride=2, padding=1)
    x = net.max_pool(x, 2, "pool", stride=2)
    growth = draw.choice((16, 24, 32))
    for group in range(draw.choice((2, 3, 4))):
        for layer in range(draw.choice((2, 3, 4))):
            x = _two_ways(net, x, growth, draw.choice((1, 2, 4)), f"dense{group}/{layer}")
        x = net.conv(x, x.channels, 1, f"transition{group}")
        if x.shape[1] > 4:
            x = net.average_pool(x, 2, f"shrink{group}", stride=2)
    x = net.flatten(net.global_average_pool(x, "mean"), "row")
    return net.finish(net.linear(x, 10, "classes")).SerializeToString()


def _two_ways(net: Network, x: Value, growth: int, bottleneck: int, name: str) -> Value:
    half = growth // 2
    inner = half * bottleneck
    left = net.conv(net.conv(x, inner, 1, f"{name}/left1"), half, 3, f"{name}/left2", padding=1)
    right = net.conv(net.conv(x, inner, 1, f"{name}/right1"), half, 3, f"{name}/right2", padding=1)
    right = net.conv(right, half, 3, f"{name}/right3", padding=1)
    return net.concat([x, left, right], f"{name}/out")


def ratios(one: dict[str, object]) -> tuple[float, float, float]:
    """Predicted over measured: as reported, at the speed of the whole runs, and over the first run after idle."""
    predicted, measured, slowness = (float(str(one[key])) for key in ("predicted_us", "measured_us", "slowness"))
    rested = median(one["rested_us"])  # type: ignore[call-overload]
    return predicted / measured, predicted * slowness / measured, predicted * slowness / rested


def row(one: dict[str, object]) -> list[str]:
    """A schedule as a row of the table."""
    names = [str(one[key]) for key in ("network", "schedule", "operators", "stages")]
    return [*names, f"{one['measured_us']:.0f}", *(f"{ratio:.2f}" for ratio in ratios(one))]


def summaries(found: Sequence[dict[str, object]]) -> list[list[str]]:
    """For each kind of schedule the median of the ratios, and their tenth and ninetieth percentile."""
    rows = []
    for name in dict.fromkeys(str(one["schedule"]) for one in found):
        columns = zip(*(ratios(one) for one in found if one["schedule"] == name), strict=True)
        cells = [interval_text(*(quantile(each, part) for part in (0.5, 0.1, 0.9))) for each in columns]
        rows.append(["all", name, "", "", "", *cells])
    return rows


if __name__ == "__main__":
    main()
