"""Runs our CUDA C++ kernels under g++'s ThreadSanitizer: each CUDA thread is a thread of the host.

Whatever two threads of a block read and write without a barrier between is reported, however they happened to run.
Threads of different blocks are not compared with each other.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
from host_cuda import INCLUDE, Placed, features

from iosched.runtime.cuda.kernel import CudaCall, Pointer

_ALIGNMENT = 256
_REPORT_LINES = 12
_TIMEOUT_S = 120
_FLAGS = ("-std=c++17", "-O0", "-g1", "-w", "-fsanitize=thread", f"-I{INCLUDE}")
_AT_FIXED_ADDRESSES = ("setarch", platform.machine(), "-R")  # where addresses are scattered more than it can bear
_FAILURES = {1: "memory cannot be mapped", 2: "a process may not have as many threads as a block"}


def launch(call: CudaCall, tensors: Sequence[Placed]) -> str:
    """Runs `call` on (*reads, *writes); the tensors hold what was written.

    Returns:
        The first lines of the first report, and the lines of source that it names; nothing where there is none.
    """
    with tempfile.TemporaryDirectory(prefix="iosched-threads-") as name:
        folder = Path(name)
        starts = _starts(tensors)
        memory = np.memmap(folder / "memory", np.uint8, "w+", shape=(starts[-1],))
        for start, tensor in zip(starts, tensors, strict=False):
            memory[start : start + tensor.memory.nbytes] = tensor.memory
        offsets = [start + each.address - each.memory.ctypes.data for start, each in zip(starts, tensors, strict=False)]
        built = _build(_program(call, offsets), folder, features(call.source))
        assert built.returncode == 0, f"{built.stderr}\n{call.source}"
        try:
            done = _run(folder, _starter()[0])
        except subprocess.TimeoutExpired as error:
            raise AssertionError("threads do not meet at a barrier") from error
        for start, tensor in zip(starts, tensors, strict=False):
            tensor.memory[...] = memory[start : start + tensor.memory.nbytes]
    found = re.search(r"WARNING: ThreadSanitizer.*", done.stderr, re.DOTALL)
    assert found or done.returncode == 0, _what_went_wrong(done)
    return _quoted(found[0].splitlines()[:_REPORT_LINES], call) if found else ""


def why_not() -> str:
    """The reason if nothing can be run on this machine, else empty."""
    return _starter()[1]


@cache
def _starter() -> tuple[tuple[str, ...], str]:
    """The prefix of commands that start programs, and the reason if they cannot be started, else empty."""
    if shutil.which("g++") is None:
        return (), "no g++ to compile kernels for the host"
    said = []
    with tempfile.TemporaryDirectory(prefix="iosched-threads-") as name:
        folder = Path(name)
        (folder / "memory").write_bytes(b"\0")
        built = _build(_PROBE, folder)
        if built.returncode != 0:
            return (), f"g++ has no ThreadSanitizer: {built.stderr.strip()}"
        for prefix in ((), _AT_FIXED_ADDRESSES):
            try:
                done = _run(folder, prefix)
            except (OSError, subprocess.TimeoutExpired) as error:
                said.append(str(error))
                continue
            if done.returncode == 0:
                return prefix, ""
            said.append(_what_went_wrong(done))
    return (), f"ThreadSanitizer does not start: {said[0]}; with setarch -R: {said[1]}"


_PROBE = """#include "threads.h"
static void body() {}
int main(int, char** paths) { return host::launch(body, {1, 1, 1}, {256, 1, 1}, paths[1]); }
"""


def _starts(tensors: Sequence[Placed]) -> list[int]:
    """Where the memory of each begins in one file, aligned as it is; behind them the length of the file."""
    starts, end = [], 0
    for each in tensors:
        starts.append(end + (each.memory.ctypes.data - end) % _ALIGNMENT)
        end = starts[-1] + each.memory.nbytes
    return [*starts, end]


def _program(call: CudaCall, offsets: Sequence[int]) -> str:
    arguments = [
        f"host::Address{{{offsets[each.index]}}}" if isinstance(each, Pointer) else _literal(each)
        for each in call.arguments
    ]
    grid, block = (f"{{{', '.join(map(str, extents))}}}" for extents in (call.grid, call.block))
    return (
        f'#include "threads.h"\n#line 1 "{call.entry}.cu"\n{call.source}\n#line 1 "launch.cpp"\n'
        f"static void body() {{ {call.entry}({', '.join(arguments)}); }}\n"
        f"int main(int, char** paths) {{ return host::launch(body, {grid}, {block}, paths[1]); }}\n"
    )


def _quoted(report: Sequence[str], call: CudaCall) -> str:
    numbers = re.findall(rf"{call.entry}\.cu:(\d+)", "\n".join(report))
    lines = call.source.splitlines()
    return "\n".join([*report, *(f"{call.entry}.cu:{each}: {lines[int(each) - 1].strip()}" for each in numbers)])


def _literal(number: np.generic) -> str:
    if isinstance(number, np.float32):
        return f"{float(number).hex()}f"
    assert isinstance(number, np.int32 | np.int64), number
    return f"{number}ll" if isinstance(number, np.int64) else f"{number}"


def _build(program: str, folder: Path, macros: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    (folder / "program.cpp").write_text(program)
    command = ["g++", *_FLAGS, *macros, "-o", str(folder / "program"), str(folder / "program.cpp")]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _run(folder: Path, prefix: Sequence[str]) -> subprocess.CompletedProcess[str]:
    command = [*prefix, str(folder / "program"), str(folder / "memory")]
    environment = {**os.environ, "TSAN_OPTIONS": "halt_on_error=1"}
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S, env=environment)


def _what_went_wrong(done: subprocess.CompletedProcess[str]) -> str:
    said = done.stderr.strip().splitlines()
    return said[0] if said else _FAILURES.get(done.returncode, f"exit status {done.returncode}")
