"""Time and verdicts of `optimize` in several versions, on a quiet or a busy machine.

    python benchmarks/optimized_by.py MODEL... --version NAME=COMMAND [--version ...] [--load none,core,half]
                                      [--repeats 1] [-o results/F.json]

COMMAND is the path of an `iosched`, such as that in the environment of another checkout. `cpu_models.py` explains the
names of models. Each call of `optimize` has an empty profile database and an empty cache. Versions are interleaved
within a model and a load. `core` is a process that keeps one core busy. `half` is one process per core, busy half of
the time, in turns of up to a second. Calls in the results file are not repeated.

Options:
    --load: of `none`, `core` and `half`, comma-separated
    --output: raw results as JSON; calls are added to those in it
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from command_line import read_options
from cpu_models import cpu_model, short_name
from result_tables import NAMES, Table, interval_text
from results_files import known_results, write_results

from iosched.jobs.bench import busy_processes
from iosched.models.export import write_model

_HALF = """
import random, time
draws = random.Random(0)
while True:
    share_s = draws.uniform(0.1, 1.0)
    until = time.monotonic() + share_s
    while time.monotonic() < until:
        pass
    time.sleep(share_s)
"""
KEPT = ("latency_us", "shipped", "reason", "verdict", "candidate", "optimal", "search", "check")


def main(words: Sequence[str] | None = None) -> None:
    versions = {"action": "append", "required": True}
    takes = {"models": {"nargs": "+"}}
    options = read_options(__file__, words, takes, version=versions, load=("none",), repeats=1, output=Path)
    calls: list[dict[str, Any]] = known_results(options.output).get("calls", [])
    done = {_key(each) for each in calls}
    commands = {name: str(Path(command).absolute()) for name, command in (v.split("=", 1) for v in options.version)}
    for source, load, repeat in product(options.models, options.load, range(options.repeats)):
        for version in list(commands)[:: 1 if repeat % 2 == 0 else -1]:
            asked = {"model": short_name(source), "load": load, "repeat": repeat, "version": version}
            if _key(asked) in done:
                continue
            calls.append({**asked, **called(commands[version], source, load)})
            write_results(options, {"calls": calls}, rivals=("openvino",), goes_on=True)


def _key(call: Mapping[str, Any]) -> tuple[object, ...]:
    return call["model"], call["load"], call["repeat"], call["version"]


def called(command: str, source: str, load: str) -> dict[str, Any]:
    """JSON output of one call of `optimize`, and its total seconds."""
    with TemporaryDirectory() as name, loaded(load):
        folder = Path(name)
        model = cpu_model(source)
        write_model(model.proto, model.weights, folder / "model.onnx")
        environment = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache")}
        environment |= {"IOSCHED_PROFILE_DB": str(folder / "profile.db")}
        started = time.monotonic()
        words = [command, "optimize", "model.onnx", "--json", "-q"]
        done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        seconds = round(time.monotonic() - started, 1)
    if done.returncode:
        raise SystemExit(f"{command} optimize {source}: exit code {done.returncode}\n{done.stderr[-2000:]}")
    printed = json.loads(done.stdout)
    return {"seconds": seconds, **{key: printed[key] for key in KEPT if key in printed}}


@contextmanager
def loaded(load: str) -> Iterator[None]:
    """The processes of a load, while the context is open."""
    if load not in ("none", "core", "half"):
        raise SystemExit(f"no load {load!r}: none, core and half are known")
    with ExitStack() as stack:
        if load == "core":
            stack.enter_context(busy_processes(1))
        elif load == "half":
            for _ in os.sched_getaffinity(0):
                process = stack.enter_context(subprocess.Popen([sys.executable, "-I", "-S", "-c", _HALF]))
                stack.callback(process.kill)
        yield


def table(calls: Sequence[Mapping[str, Any]], version: str) -> Table:
    """A row of the report for each network and load with a call."""
    once = {_key(each): each for each in calls if each["load"] != "half"}
    headers = ["network", "s", "measurements", "ships", "verdict", "best of ours over the faster runtime"]
    return [*headers, "predicted / measured"], [_row(each) for key, each in once.items() if key[2:] == (0, version)]


def _row(call: Mapping[str, Any]) -> list[str]:
    ratio, measured_us = call["latency_us"]["ratio"], call["latency_us"]["measured"]
    shipped = {"reference": "onnxruntime", "openvino": "OpenVINO"}.get(call["shipped"], "ours")
    best = interval_text(ratio["median"], ratio["low"], ratio["high"]) if ratio else ""
    is_found = measured_us and call.get("candidate") in (None, "iosched")
    predicted = f"{call['latency_us']['predicted'] / measured_us:.2f}" if is_found else ""
    name = NAMES[call["model"]] + (", one core busy" if call["load"] == "core" else "")
    measurements = f"{call['search']['measurements']:,}"
    return [name, f"{call['seconds']:.0f}", measurements, shipped, call["verdict"], best, predicted]


if __name__ == "__main__":
    main()
