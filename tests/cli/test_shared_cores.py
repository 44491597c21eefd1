"""Before measuring, commands warn that other iosched processes use the cores, and name these processes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import click
import pytest
from click.testing import Result
from scripted import LATENCIES_US, fire_proto, script_models, script_stages

from iosched.runtime.cpu import lane_cpus, remarks
from iosched.runtime.cpu.lane_cpus import SHARE_VARIABLE, Claims

_HOLDS_BOTH = """
import socket, sys
held = [socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(2)]
for cpu, each in enumerate(held):
    each.bind(f"\\0{sys.argv[1]}.{cpu}.0")
print(flush=True)
input()
"""


@pytest.fixture
def other(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The PID of a process that has claimed both cores of this machine."""
    name = f"iosched.test.{uuid4().hex}"
    monkeypatch.delenv(SHARE_VARIABLE)
    monkeypatch.setattr(lane_cpus, "PROCESS", Claims(name))
    for module in (lane_cpus, remarks):
        monkeypatch.setattr(module, "allowed_cpus", lambda: (0, 1))
    monkeypatch.setattr(lane_cpus, "siblings", lambda cpu: frozenset((cpu,)))
    monkeypatch.setattr(lane_cpus, "is_time_shared", lambda: False)
    words = [sys.executable, "-S", "-c", _HOLDS_BOTH, name]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
        process.communicate()


@pytest.mark.parametrize("words", [("optimize", "--json"), ("bench", "--with", "greedy", "--json")])
def test_the_warning_appears_once_before_anything_is_measured(
    words: tuple[str, ...],
    invoke: Callable[..., Result],
    other: int,
    workdir: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (workdir / "fire.onnx").write_bytes(fire_proto().SerializeToString())
    script_stages(monkeypatch, lambda _: click.echo("measured", err=True))
    script_models(monkeypatch, LATENCIES_US)
    command, *options = words
    result = invoke(command, "fire.onnx", "--threads", "2", *options)
    assert result.exit_code == 0
    said = f"Other iosched processes (PID {other}) use all cores, 2 of them together with this process"
    before, _, after = result.stderr.replace("\n", " ").partition("measured")
    assert said in before
    assert "use all cores" not in after
    assert said in result.stdout  # in `notes`
