"""The commands `iosched` and `python` of the shells that run the documentation's blocks.

Nothing interferes, no GPU is attached, libraries load, SqueezeNet is a small network, others of the zoo are narrow,
and commands repeat measurements less often, so that a page takes seconds. All else is unchanged.
"""

from __future__ import annotations

import argparse
import os
import re
import runpy
import sys
from pathlib import Path
from typing import Any

import click

ROOT = Path(__file__).parents[2]


def main() -> None:
    """Runs a command or script; with READ_ONLY, only parses its options, and writes it there if they are wrong."""
    words = [Path(sys.argv[0]).name, *sys.argv[1:]]
    if words[0] == "python":
        words = words[1:]
        if not words or not words[0].startswith(("benchmarks/", "page.py")):
            os.execv(sys.executable, [sys.executable, *words])
    failed = os.environ.get("READ_ONLY")
    try:
        _read_only() if failed else _quieten()
        _carry_out(words)
    except BaseException as error:
        if failed and not (isinstance(error, SystemExit) and not error.code):
            with Path(failed).open("a") as noted:
                noted.write(" ".join(words) + "\n")
        raise


def _carry_out(words: list[str]) -> None:
    sys.argv = words
    if words[0] == "iosched":
        from iosched.cli.main import main as call

        call()
        return
    script = ROOT / words[0] if words[0].startswith("benchmarks/") else Path(words[0])
    if "READ_ONLY" in os.environ and not re.search("parse_args|read_options", script.read_text(encoding="utf-8")):
        return  # without options, it would run
    sys.path.insert(0, str(script.parent))
    runpy.run_path(str(script), run_name="__main__")


def _read_only() -> None:
    """Lets commands and scripts only parse their command lines."""
    read = argparse.ArgumentParser.parse_args

    def parse_args(self: argparse.ArgumentParser, *words: object) -> None:
        read(self, *words)  # type: ignore[call-overload]
        raise SystemExit(0)

    argparse.ArgumentParser.parse_args = parse_args  # type: ignore[assignment,method-assign]
    click.Command.invoke = lambda *_: None  # type: ignore[method-assign,assignment]


def _quieten() -> None:
    from few_samples import FewSamples
    from small_models import branches

    from iosched.cli.main import cli
    from iosched.jobs import time_budget
    from iosched.jobs.doctor import installation
    from iosched.jobs.optimizing import throughput
    from iosched.models.zoo import squeezenet
    from iosched.models.zoo.network import Network
    from iosched.profiler.devices.cpu import measured_cost
    from iosched.profiler.devices.cpu import open as cpu_open
    from iosched.profiler.devices.cuda import device as cuda_device
    from iosched.profiler.measuring import disturbance, idle, interleaved_models
    from iosched.profiler.measuring.interleaved_models import Budget
    from iosched.profiler.measuring.statistics import LEAST_SAMPLES

    conv = Network.conv

    def narrow(self: Network, x: Any, channels: int, *words: Any, **more: Any) -> Any:
        return conv(self, x, max(channels // 8, 1), *words, **more)

    Network.conv = narrow  # type: ignore[method-assign]
    squeezenet.build = branches
    cuda_device.usable_names = lambda: ()  # type: ignore[assignment]
    disturbance.disturbances = disturbance.doubts = lambda *_: ()  # type: ignore[assignment]
    disturbance.interference = lambda *_: disturbance.Interference()  # type: ignore[assignment]
    installation.why_not = lambda _: None  # it starts a process for each of a dozen libraries, for seconds
    cpu_open.CpuStageCost = FewSamples  # type: ignore[assignment,misc]
    idle.LONGEST_SECONDS, interleaved_models.RATE_SECONDS, time_budget.MOST_DECIDING_S = 0.0, 0.01, 0.1
    few = Budget(rounds=LEAST_SAMPLES)
    cpu_open.BUDGET, throughput._COMPARED, measured_cost.SEGMENT_ROUNDS = few, few, LEAST_SAMPLES
    for command, name, default in (("bench", "rounds", LEAST_SAMPLES), ("explore", "trials", 1)):
        for parameter in cli.get_command(None, command).params:  # type: ignore[arg-type,union-attr]
            if parameter.name == name:
                parameter.default = default


if __name__ == "__main__":
    main()
