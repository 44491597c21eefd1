"""Speedup of commands by two workers of one core each on this machine over one: real measurements, through Ray.

    python benchmarks/fleet_local.py [--rounds 2] [-o benchmarks/results/fleet-local.json]

Each command runs as from the shell, on an empty profile database: without a cluster on one thread, with one worker of
one thread, and with two, interleaved. The seconds are those of the whole command, including the start of Ray and the
workers. More workers than cores are not tested; workers on other machines start in parallel.

Options:
    --rounds: repetitions of each case
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from command_line import read_options
from result_tables import Table, print_table, range_text
from results_files import write_results

ROUNDS = 2
WORKERS: Mapping[str, tuple[str, ...]] = {
    "no cluster": ("--threads", "1"),
    "1 worker": ("--threads", "1", "--cluster", "local:1"),
    "2 workers": ("--threads", "1", "--cluster", "local:2"),
}
COMMANDS: Mapping[str, tuple[str, ...]] = {
    "optimize": ("optimize", "zoo:squeezenet", "-o", "out.onnx"),
    "explore": (
        "explore", "--space", "builtin:pelee", "--trials", "8", "--objective", "latency:cpu,params", "-o", "out",
    ),
}  # fmt: skip


def run(command: str, workers: str) -> dict[str, Any]:
    """One command, from an empty database in an empty folder."""
    with tempfile.TemporaryDirectory() as folder:
        words = (*COMMANDS[command], *WORKERS[workers], "--profile-db", "p.db", "--json")
        begun = time.monotonic()
        done = subprocess.run([sys.executable, "-m", "iosched", *words], cwd=folder, capture_output=True)
        wall_s = time.monotonic() - begun
    assert done.returncode == 0, done.stderr.decode()
    return {"command": command, "workers": workers, "wall_s": wall_s, **reported(command, json.loads(done.stdout))}


def reported(command: str, found: Mapping[str, Any]) -> dict[str, Any]:
    """The command's own report, which shows whether two workers measured as much as one."""
    if command == "optimize":
        search = found["search"]
        return {name: search[name] for name in ("seconds", "measurements", "cache_hits")}
    return {"trials": found["trials"], "failed": found["failed"]}


def table(runs: Sequence[Mapping[str, Any]]) -> Table:
    """Medians, and in parentheses the lowest and the highest."""
    rows = []
    for command in COMMANDS:
        walls = {
            workers: [each["wall_s"] for each in runs if (each["command"], each["workers"]) == (command, workers)]
            for workers in WORKERS
        }
        ups = [one / two for one, two in zip(walls["1 worker"], walls["2 workers"], strict=True)]
        seconds = (range_text(walls[workers], ".0f") for workers in WORKERS)
        rows.append([f"`{command}`", *seconds, range_text(ups, ".2f")])
    headers = ["", *(f"{workers}: seconds" for workers in WORKERS), "two are as fast as one, times"]
    return headers, rows


def main(words: Sequence[str] | None = None) -> None:
    options = read_options(__file__, words, rounds=ROUNDS, output=Path)
    runs: list[dict[str, Any]] = []
    for number in range(options.rounds):
        for command in COMMANDS:
            for workers in WORKERS:
                runs.append({"round": number, **run(command, workers)})
                print(json.dumps(runs[-1]), file=sys.stderr, flush=True)
    print_table(*table(runs))
    write_results(options, {"runs": runs})


if __name__ == "__main__":
    main()
