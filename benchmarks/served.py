"""Interference between servers of a model: threads that share cores, unpinned threads, and a CPU quota.

    python benchmarks/served.py [--group FOLDER] [--rounds 8] [--seconds 1.5] [-o F.json]

A line of the table is one or more processes that run a network all the time, one operator after another on all their
threads. Lines are interleaved, n seconds in each round; every single run counts. With `--group`, a folder of a control
group with a quota of less than two cores, some processes run in that:

    mkdir /sys/fs/cgroup/cpu/served; echo 150000 > /sys/fs/cgroup/cpu/served/cpu.cfs_quota_us     # version 1, as root

Options:
    --group: a control group with a quota
    --serve: be one of the processes
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from command_line import read_options
from result_tables import Table, print_table
from results_files import write_results
from testbed import zoo_model

from iosched.profiler.measuring.statistics import quantile, quantile_interval
from iosched.runtime.cpu.backend import CpuBackend
from iosched.runtime.cpu.lane_cpus import SHARE_VARIABLE
from iosched.runtime.inputs import random_inputs
from iosched.scheduler.baselines import sequential

THREADS = 2


@dataclass(frozen=True)
class Line:
    """Processes that run at the same time: how many, of how many threads, and whether these stay on a core each."""

    name: str
    servers: int
    threads: int
    is_pinned: bool = True
    in_group: bool = False


ALONE = (
    Line("one process, 2 threads", 1, THREADS),
    Line("one process, 2 threads, placed by the system", 1, THREADS, is_pinned=False),
    Line("two processes, 2 threads each, on the same cores", 2, THREADS),
    Line("two processes, 2 threads each, placed by the system", 2, THREADS, is_pinned=False),
    Line("two processes, 1 thread each", 2, 1),
)
IN_GROUP = (
    Line("one process under the quota, 1 thread", 1, 1, in_group=True),
    Line("one process under the quota, 2 threads", 1, THREADS, is_pinned=False, in_group=True),
)


def main() -> None:
    options = read_options(
        __file__, networks="squeezenet", group=Path, rounds=8, seconds=1.5, serve={"nargs": 2}, output=Path
    )
    if options.serve is not None:
        serve(options.networks, int(options.serve[0]), options.serve[1] == "pinned")
        return
    lines = (*ALONE, *(IN_GROUP if options.group else ()))
    found = measured(options.networks, lines, options.group, options.rounds, options.seconds)
    taken_s = options.rounds * options.seconds
    print_table(*table(found, f"{taken_s}"))
    quota = {"quota_us": quota_text(options.group)} if options.group else {}
    write_results(options, {"network": options.networks, **quota, "runs_us": found})


def measured(
    network: str, lines: Sequence[Line], group: Path | None, rounds: int, seconds: float
) -> dict[str, list[int]]:
    """All single runs of each line, in microseconds."""
    found: dict[str, list[int]] = {line.name: [] for line in lines}
    with ExitStack() as stack:
        servers = {line: [started(stack, network, line, group) for _ in range(line.servers)] for line in lines}
        for number in range(-1, rounds):  # the first one is warm-up
            for line in lines:
                time.sleep(0.2)
                for server in servers[line]:
                    print(seconds, file=server.stdin, flush=True)
                runs_us = [run for server in servers[line] for run in json.loads(heard(server))]
                found[line.name] += runs_us if number >= 0 else []
    return found


def started(stack: ExitStack, network: str, line: Line, group: Path | None) -> subprocess.Popen[str]:
    """Starts a process that is ready to run."""
    words = ["--networks", network, "--serve", str(line.threads), "pinned" if line.is_pinned else "unpinned"]
    pipe, environment = subprocess.PIPE, {**os.environ, SHARE_VARIABLE: "1"}
    command = [sys.executable, __file__, *words]
    server = stack.enter_context(subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment))
    stack.callback(server.kill)
    if line.in_group and group is not None:
        (group / "cgroup.procs").write_text(f"{server.pid}\n")
    assert heard(server) == "ready\n"
    return server


def heard(server: subprocess.Popen[str]) -> str:
    assert server.stdout is not None
    return server.stdout.readline()


def serve(network: str, threads: int, is_pinned: bool) -> None:
    """Runs the network for the seconds in each line of stdin, and answers with the microseconds of each run."""
    model = zoo_model(network)
    with CpuBackend(model, lanes=threads) as backend:
        backend.cpus.is_pinned = is_pinned and threads > 1
        compiled, inputs = backend.compile(sequential(backend.graph)), random_inputs(model.graph.inputs)
        compiled.time(inputs, 3)
        print("ready", flush=True)
        for text in sys.stdin:
            end, runs_us = time.monotonic() + float(text), []
            while time.monotonic() < end:
                runs_us += compiled.time(inputs, 1)
            print(json.dumps([round(us) for us in runs_us]), flush=True)


def table(found: Mapping[str, Sequence[int]], taken_s: str) -> Table:
    """Quantiles of each line, and its runs per second."""
    rows = [row(name, runs_us, float(taken_s)) for name, runs_us in found.items()]
    return ["", "p50", "p90", "p99 (95 % interval)", "runs a second"], rows


def row(name: str, runs_us: Sequence[int], taken_s: float) -> tuple[str, ...]:
    p50, p90, p99 = (f"{quantile(runs_us, part) / 1e3:.1f} ms" for part in (0.5, 0.9, 0.99))
    ends = quantile_interval(runs_us, 0.99)
    interval = "not known" if ends is None else f"{p99} ({ends[0] / 1e3:.1f} to {ends[1] / 1e3:.1f})"
    return name, p50, p90, interval, f"{len(runs_us) / taken_s:.0f}"


def quota_text(group: Path) -> str:
    names = ("cpu.max", "cpu.cfs_quota_us", "cpu.cfs_period_us")
    return " ".join((group / name).read_text().strip() for name in names if (group / name).exists())


if __name__ == "__main__":
    main()
