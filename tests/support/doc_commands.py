"""Carries out `iosched` and scripts for the shells that run the documentation's blocks: one process imports, and forks.

    python doc_commands.py SOCKET      # then each connection brings argv, environment, folder, and three open files

Nobody disturbs, no GPU is attached, libraries load, SqueezeNet is a small network, others of the zoo are narrow,
and what a command repeats by itself it repeats less often, so that a page takes seconds. All else is as ever.
"""

from __future__ import annotations

import argparse
import json
import os
import pkgutil
import runpy
import signal
import socket
import sys
import traceback
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import click
from few_samples import FewSamples
from small_models import branches

import iosched
from iosched.cli.main import cli, main
from iosched.jobs import time_budget
from iosched.jobs.doctor import installation
from iosched.jobs.optimizing import throughput
from iosched.models.zoo import squeezenet
from iosched.models.zoo.network import Network, Value
from iosched.profiler.devices.cpu import open as cpu_open
from iosched.profiler.devices.cpu import segment_latencies as stretches
from iosched.profiler.devices.cuda import device as cuda_device
from iosched.profiler.measuring import disturbance, idle, rate
from iosched.profiler.measuring.interleaved_models import Budget
from iosched.profiler.measuring.statistics import LEAST_SAMPLES

ROOT = Path(__file__).parents[2]
FEWER = {"bench": {"rounds": LEAST_SAMPLES}, "explore": {"trials": 1}}


def serve(path: str) -> None:
    _import_all()
    _quieten()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the children
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen()
        sys.stdout.write("listening\n")
        sys.stdout.flush()
        while True:
            talk, _ = listening.accept()
            if os.fork() == 0:
                listening.close()
                _answer(talk)
            talk.close()


def _import_all() -> None:
    import onnxruntime  # noqa: F401
    import optuna  # noqa: F401

    for package in (iosched, import_module("iosched.cli"), import_module("iosched.jobs")):
        _import_below(package)


def _import_below(package: ModuleType) -> None:
    for found in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        if not found.name.endswith("__main__"):
            import_module(found.name)


def _quieten() -> None:
    cuda_device.usable_names = lambda: ()  # type: ignore[assignment]
    disturbance.disturbances = lambda *_: ()  # type: ignore[assignment]
    disturbance.interference = lambda *_: disturbance.Interference()  # type: ignore[assignment]
    disturbance.doubts = lambda *_: ()  # type: ignore[assignment]
    squeezenet.build = branches
    _narrow(Network)
    installation.why_not = lambda _: None  # a process for each of a dozen libraries, which takes seconds
    cpu_open.CpuStageCost = FewSamples  # type: ignore[assignment,misc]
    idle.LONGEST_SECONDS, rate.TURN_SECONDS, time_budget.LEAST_DECIDING_S = 0.0, 0.01, 0.1
    few = Budget(rounds=LEAST_SAMPLES)
    cpu_open.BUDGET, throughput._COMPARED, stretches.ROUNDS = few, few, LEAST_SAMPLES
    for command, defaults in FEWER.items():
        for parameter in cli.get_command(None, command).params:  # type: ignore[arg-type,union-attr]
            parameter.default = defaults.get(str(parameter.name), parameter.default)


def _narrow(network: type[Network]) -> None:
    """Networks of the zoo get an eighth of their channels."""
    conv = network.conv

    def narrow(self: Network, x: Value, channels: int, *words: Any, **more: Any) -> Value:
        return conv(self, x, max(channels // 8, 1), *words, **more)

    network.conv = narrow  # type: ignore[method-assign]


def _answer(talk: socket.socket) -> None:
    """Does what one connection asks, and says the exit code; never returns."""
    code = 70
    try:
        message, files, _, _ = socket.recv_fds(talk, 1 << 20, 3)
        for file, standard in zip(files, (0, 1, 2), strict=True):
            os.dup2(file, standard)
            os.close(file)
        code = _carry_out(**json.loads(message))
    except BaseException:  # noqa: BLE001 - the shell that asked reads it, and gets an exit code
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        talk.send(bytes([code]))
        os._exit(code)


def _carry_out(words: list[str], environment: dict[str, str], folder: str) -> int:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv = words
    try:
        if "READ_ONLY" in environment:
            _read_only()
        if words[0] == "iosched":
            main()
        else:
            _run_script(ROOT / words[0] if words[0].startswith("benchmarks/") else Path(words[0]))
    except SystemExit as left:
        return left.code if isinstance(left.code, int) else int(left.code is not None)
    return 0


def _read_only() -> None:
    """Commands and scripts read what they are given, and end."""
    read = argparse.ArgumentParser.parse_args

    def parse_args(self: argparse.ArgumentParser, *words: object) -> None:
        read(self, *words)  # type: ignore[call-overload]
        raise SystemExit(0)

    argparse.ArgumentParser.parse_args = parse_args  # type: ignore[assignment,method-assign]
    click.Command.invoke = lambda *_: None  # type: ignore[method-assign,assignment]


def _run_script(script: Path) -> None:
    """Runs a script; one that reads no options is left alone where nothing is to be carried out."""
    if "READ_ONLY" in os.environ and "parse" not in script.read_text(encoding="utf-8"):
        return
    sys.path.insert(0, str(script.parent))
    runpy.run_path(str(script), run_name="__main__")


if __name__ == "__main__":
    serve(sys.argv[1])
