"""Rate of right decisions of `optimize` on machines with scripted noise, load, drift and stolen time.

    python benchmarks/deciding.py -o results/deciding.json [--searches 10000] [--calls 10]

Rounds are simulated; the decisions are made by the code of `optimize` (`until_settled`). The noise is that of real
rounds: the samples of a random network of results/cpu-networks-zen5.json, divided by their medians, with the samples of
one round kept together; the script `noisy` has those of results/noisy-networks.json. Other scripts add disturbances. A
true ratio is the speedup of the best of our schedules over the faster runtime.

Options:
    --output: results file
    --searches: total number of searches
    --calls: successive calls of each search
"""

from __future__ import annotations

import math
import random
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from command_line import read_options
from result_tables import Table, print_table
from results_files import results, write_results

from iosched.jobs.time_budget import TimeBudget
from iosched.profiler.measuring.deciding import LEAST_ROUNDS, Trial, shares, until_settled
from iosched.profiler.measuring.disturbance import Interference
from iosched.profiler.measuring.interleaved_models import Round
from iosched.profiler.measuring.statistics import quantile

RATIOS = (0.95, 0.99, 1.0, 1.01, 1.03, 1.05, 1.10)
SEARCH_S = 80.0
"""Seconds of a search; rounds may take half of it in the first call, and 8 s in later ones."""

REST_S = 0.05
"""Wait before an alternative's turn: 60 to 90 ms after onnxruntime, whose threads spin, and 10 after others."""

SLOWER = {"session": 0.97, "sequential": 0.96, "lanes": 0.95, "by_image": 0.9, "greedy": 0.85}
"""Speeds of our other candidates over the schedule found."""

OPENVINO = 0.93
"""Speed of the slower runtime over the faster one."""

_SAMPLES_OF = {
    "found": "iosched", "session": "rewritten", "sequential": "sequential", "greedy": "greedy", "lanes": "both",
    "by_image": "aligned",
    "reference": "onnxruntime", "openvino": "openvino",
}  # fmt: skip


@dataclass
class Machine:
    """A machine that runs made-up models; its clock advances as rounds are taken."""

    latency_us: Mapping[str, float]
    noise: Sequence[Sequence[float]]
    script: Callable[[Machine], tuple[Callable[[], float], Interference]]
    draws: random.Random
    now_s: float = 0.0
    state: dict[str, float] = field(default_factory=dict)

    def take(self, names: Sequence[str]) -> Round:
        """A round: the noise of a real round, plus the disturbance of the script for each run."""
        noise, (factor, load) = list(self.draws.choice(self.noise)), self.script(self)
        self.draws.shuffle(noise)  # so that all are equally noisy, and the ratio of equal ones is 1
        samples_us = {}
        for name, times in zip(names, noise, strict=False):
            samples_us[name] = self.latency_us[name] * times * factor()
            self.now_s += REST_S + 2 * samples_us[name] / 1e6
        return Round(samples_us, samples_us, load)


def quiet(machine: Machine) -> tuple[Callable[[], float], Interference]:
    """Only noise."""
    return lambda: 1.0, Interference()


def bursty(machine: Machine) -> tuple[Callable[[], float], Interference]:
    """Neighbours come and go; each run is slowed down by their share of its time."""
    draws, is_on = machine.draws, machine.state.get("on", 0.0) > 0
    machine.state["on"] = float(draws.random() < (0.85 if is_on else 0.1))
    if not machine.state["on"]:
        return lambda: 1.0, Interference()
    share = draws.uniform(0.1, 0.9)
    return lambda: 1 + share * draws.uniform(0.0, 2.0), Interference(others=share)


def drifting(machine: Machine) -> tuple[Callable[[], float], Interference]:
    """The speed drifts by up to a quarter within a minute, also within a round."""

    def factor() -> float:
        phase = machine.state.setdefault("phase", machine.draws.uniform(0, 2 * math.pi))
        return 1 + 0.25 * math.sin(phase + machine.now_s / 10)

    return factor, Interference()


def stolen(machine: Machine) -> tuple[Callable[[], float], Interference]:
    """The host steals some of the cores in every second round, at times too little to count as interference."""
    draws = machine.draws
    share = draws.uniform(0.0, 0.25) if draws.random() < 0.5 else 0.0
    return lambda: 1 / (1 - share * draws.uniform(0.0, 2.0)), Interference(stolen=share)


SCRIPTS = {"quiet": quiet, "bursty": bursty, "drifting": drifting, "stolen": stolen, "noisy": quiet}


def noises(script: str) -> list[tuple[float, list[list[float]]]]:
    """By network, its latency in seconds, and for each round its samples over the medians of their rows."""
    found = []
    for network in results("noisy-networks" if script == "noisy" else "cpu-networks-zen5")["networks"].values():
        samples = {name: network["samples_us"][row] for name, row in _SAMPLES_OF.items()}
        medians = {name: quantile(each, 0.5) for name, each in samples.items()}
        rounds = zip(*([us / medians[name] for us in each] for name, each in samples.items()), strict=True)
        found.append((medians["reference"] / 1e6, list(map(list, rounds))))
    return found


def searched(
    script: str, ratio: float, calls: int, number: int, networks: Sequence[tuple[float, list[list[float]]]]
) -> list[str]:
    """The verdicts of n consecutive calls of `optimize` on one database."""
    draws = random.Random(f"{script} {ratio} {number}")
    latency_s, noise = draws.choice(networks)
    found_us = latency_s * 1e6 / ratio
    latency_us = {"found": found_us, **{name: found_us / speed for name, speed in SLOWER.items()}}
    latency_us |= {"reference": latency_s * 1e6, "openvino": latency_s * 1e6 / OPENVINO}
    machine = Machine(latency_us, noise, SCRIPTS[script], draws)
    trial = Trial((), shares(["found"], 0, list(SLOWER)), ("reference", "openvino"))
    verdicts = []
    for call in range(calls):
        searched_s = SEARCH_S if call == 0 else 0.0
        limit_s = TimeBudget(None, 0.0).deciding_s(searched_s, trial.compared_s)
        deadline = machine.now_s + limit_s

        def is_over(done: int, deadline: float = deadline) -> bool:
            return done >= LEAST_ROUNDS and machine.now_s >= deadline

        names = {name: name for name in latency_us}
        trial = until_settled(trial, machine.take, names, is_over, random.Random(0))
        verdicts.append(trial.verdict)
    return verdicts


def measured(searches: int, calls: int) -> list[dict[str, object]]:
    """Number of each verdict by script and ratio, after the first call and after the last."""
    rows = []
    for script in SCRIPTS:
        networks = noises(script)
        for ratio in RATIOS:
            count = searches // (len(SCRIPTS) * len(RATIOS))
            found = [searched(script, ratio, calls, number, networks) for number in range(count)]
            ever = sum("faster" in each for each in found)
            first, last = (Counter(each[place] for each in found) for place in (0, -1))
            about = {"script": script, "ratio": ratio, "searches": count, "calls": calls}
            rows.append({**about, "first": first, "last": last, "ever_faster": ever})
            print(rows[-1], file=sys.stderr)
    return rows


def table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Shares of wrong verdicts, of a gain of 3 % that was found, and of undecided searches."""
    wrong: Mapping[str, Callable[[float], bool]] = {
        "faster": lambda ratio: ratio <= 1,
        "slower": lambda ratio: ratio >= 1,
        "equal": lambda ratio: abs(ratio - 1) > 0.02,
    }
    cells = []
    for script in dict.fromkeys(row["script"] for row in rows):
        own = [row for row in rows if row["script"] == script]
        for when, calls in (("first", 1), ("last", own[0]["calls"])):
            shares = [_share(own, when, verdict, is_wrong) for verdict, is_wrong in wrong.items()]
            found = _share(own, when, "faster", lambda ratio: ratio == 1.03)
            undecided = _share(own, when, "undecided", lambda _: True)
            cells.append([script, calls, *(f"{share:.1%}" for share in shares), f"{found:.0%}", f"{undecided:.0%}"])
    headers = ["script", "calls", *(f"wrong `{verdict}`" for verdict in wrong)]
    return [*headers, "gain of 3 % found", "undecided"], cells


def _share(rows: Sequence[Mapping[str, Any]], when: str, verdict: str, is_counted: Callable[[float], bool]) -> float:
    counted = [row for row in rows if is_counted(row["ratio"])]
    return sum(row[when].get(verdict, 0) for row in counted) / sum(row["searches"] for row in counted)


def main(words: Sequence[str] | None = None) -> None:
    """Runs the simulation and prints its table."""
    options = read_options(__file__, words, output=Path, searches=10000, calls=10)
    rows = measured(options.searches, options.calls)
    write_results(options, {"rest_s": REST_S, "search_s": SEARCH_S, "rows": rows}, seeds={"rounds": 0})
    print_table(*table(rows))


if __name__ == "__main__":
    main()
